"""A forecast as tables and as a page."""
