"""Whole runs: real members, real stores, compared with the plain single-process run."""
