"""Records that are made before a run: profiles, plans, forecasts and search results."""
