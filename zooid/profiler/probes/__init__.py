"""Bandwidth and round trip of links, measured by members that run together: to the store, and between them.

Imports no torch, so that a probe starts at once wherever a member can.
"""

from zooid.profiler.probes.probe_member import probe_links

__all__ = ["probe_links"]
