"""Members that measure instead of training: link probes, sweeps of all-reduces, and rehearsals."""
