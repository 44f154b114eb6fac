"""Job files that benchmarks train."""
