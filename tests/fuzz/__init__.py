"""Bytes that nobody should have written, for every decoder: `python -m tests.fuzz --inputs 10000 --seed 1`."""
