"""Process groups for torch.distributed between members that may reach nothing but an object store.

Importing this registers the backend `zooid`, as torch.distributed backends do.
"""

from zooid.comm.backend import register
from zooid.comm.c10d_store import ObjectRendezvous
from zooid.comm.group_options import Options
from zooid.comm.monitoring import monitored_barrier, statistics
from zooid.comm.process_group import ProcessGroup
from zooid.comm.rendezvous import leave
from zooid.comm.store.groups import StoreGroups
from zooid.comm.tcp.connections import MemberLinks, connect_members
from zooid.comm.traffic_counter import Statistics

register()

__all__ = [
    "MemberLinks",
    "ObjectRendezvous",
    "Options",
    "ProcessGroup",
    "Statistics",
    "StoreGroups",
    "connect_members",
    "leave",
    "monitored_barrier",
    "statistics",
]
