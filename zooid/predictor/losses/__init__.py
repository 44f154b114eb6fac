"""The expected time and cost of a run whose members are lost or run out of time."""
