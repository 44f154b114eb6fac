"""Probes of links: members that run together measure bandwidth and round trips to the store and to each other.

Importing this package does not import torch, so that a probe starts fast.
"""

from zooid.profiler.probes.probe_member import probe_links

__all__ = ["probe_links"]
