"""A profile as a table and as a page."""
