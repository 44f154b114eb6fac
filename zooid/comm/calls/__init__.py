"""Calls of a process group: arguments, buffers, and the transfers that are in flight."""
