"""Records and rules that all other packages of zooid share. Imports neither these packages nor torch."""
