"""A search for a plan as a table and as a page."""
