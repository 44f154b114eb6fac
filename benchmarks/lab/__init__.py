"""A laboratory on one machine: real servers and real links, so that what is measured is real."""
