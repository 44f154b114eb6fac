"""Random runs with random faults, each compared with the run that nobody disturbs: `python -m benchmarks.chaos`."""
