"""Models that are fitted to measurements: the all-reduces of libraries, and profiles and links corrected by runs."""
