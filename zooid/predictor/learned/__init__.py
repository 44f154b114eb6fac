"""Models that are fitted to measurements: the all-reduces of libraries, and how step times scale."""
