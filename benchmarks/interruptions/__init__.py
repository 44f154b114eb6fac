"""Predicted against simulated time and cost of runs whose members are lost or run out of time."""
