"""Measures the times, bytes and memory of a model's layers on a device, and the links of its site.

A platform starts it as a member, `python -m zooid.profiler SPEC`, so that profiles are measured on the offers.
"""
