"""Times, bytes and memory of a model's layers on a device, and of the way to the store.

Itself a member: started by a platform as `python -m zooid.profiler SPEC`, so that a profile comes from the offers.
"""
