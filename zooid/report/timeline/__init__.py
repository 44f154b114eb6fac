"""Timelines of steps as a table, a page and a trace file."""
