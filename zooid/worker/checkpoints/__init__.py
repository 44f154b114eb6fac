"""Checkpoints: read when a member starts, and written while it trains."""
