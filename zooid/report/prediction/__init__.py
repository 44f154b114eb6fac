"""A forecast as a table and as a page."""
