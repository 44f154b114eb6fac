"""Models that are fitted to measurements: all-reduces of libraries, and how steps scale."""
