"""Everything that is decided before members start: markets, searches, forecasts, and checks of given plans."""
