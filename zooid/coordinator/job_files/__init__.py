"""Job files, also for jobs that are given as objects or notebook cells."""
