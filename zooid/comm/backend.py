"""Makes `dist.init_process_group("zooid", store=ObjectRendezvous(…))` work like any other backend."""

from typing import Any

from torch import distributed as dist

from zooid.comm.process_group import ProcessGroup
from zooid.comm.rendezvous import ObjectRendezvous
from zooid.comm.transport import StoreTransport
from zooid.core.errors import CommError

BACKEND = "zooid"


def register() -> None:
    """Tell torch.distributed about the backend; once per process."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, group_options: Any) -> ProcessGroup:
    store = options.store
    while isinstance(store, dist.distributed_c10d.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, ObjectRendezvous):
        raise CommError(
            f"the backend zooid meets through an object store, not a {type(store).__name__}; "
            "pass store=zooid.comm.ObjectRendezvous(open_store(url), prefix) to init_process_group"
        )
    timeout_s = options.timeout.total_seconds()
    transport = StoreTransport(
        store.objects, f"{store.prefix}/group-{options.group_id}", timeout_s=timeout_s, abort=store.abort
    )
    group = ProcessGroup(
        transport, options.group_rank, options.group_size, abort=store.abort, all_reduce=store.all_reduce
    )
    group.rendezvous = store  # torch keeps only the C++ half of a Python store alive
    return group
