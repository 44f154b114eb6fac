"""How a member reaches the others of its run, under one roster after the other."""

from zooid.worker.peers.roster_groups import Groups, Peers
from zooid.worker.peers.transport_choice import open_peers

__all__ = ["Groups", "Peers", "open_peers"]
