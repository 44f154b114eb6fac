"""Jobs that are given as objects or notebook cells, written to files that members can run."""
