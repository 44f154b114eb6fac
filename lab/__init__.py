"""A laboratory on one machine for tests and benchmarks: real servers, real links, and faults on purpose."""
