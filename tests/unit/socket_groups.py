"""Groups over sockets whose ranks are threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from zooid.comm import Options, ProcessGroup
from zooid.comm.tcp import connect
from zooid.core.abort import Abort

TCP = Options(transport="tcp")


def connect_all(stores: list[Any], options: Options = TCP, timeout_s: float = 10.0) -> list[ProcessGroup]:
    def make(rank: int) -> ProcessGroup:
        abort = Abort()
        transport, latency_s = connect(stores[rank], rank, len(stores), options, timeout_s=timeout_s, abort=abort)
        return ProcessGroup(
            transport, rank, len(stores), abort=abort, timeout_s=timeout_s, options=options,
            latency_s=latency_s,
        )  # fmt: skip

    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(make, range(len(stores))))


def summed(groups: list[ProcessGroup], num_elements: int = 10) -> list[float]:
    def body(group: ProcessGroup) -> float:
        tensor = torch.ones(num_elements)
        group.allreduce([tensor]).wait()
        assert bool((tensor == tensor[0]).all())
        return float(tensor[0])

    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(body, groups))


def close(groups: list[ProcessGroup]) -> None:
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(ProcessGroup.shutdown, groups))
