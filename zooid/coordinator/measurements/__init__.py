"""Measurements by members that do not train: profiles, link probes, all-reduce sweeps and rehearsals."""
