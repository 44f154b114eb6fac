"""Simulated steps: the action lists that members execute, in simulated time."""
