"""Records of what is known and decided before a run: profiles, plans, forecasts and searches."""
