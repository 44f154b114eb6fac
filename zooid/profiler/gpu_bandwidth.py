"""How fast bytes get onto a GPU and back: from pinned memory, which it reads and writes by itself."""

import statistics
from collections.abc import Callable

import torch

from zooid.core.plans.profile import Copies
from zooid.profiler.cut_marks import Clock, clock_for

NUM_BYTES = 64 * 2**20
"""Milliseconds on any bus, so that the microseconds which starting a copy takes do not count."""
_WARM_UPS = 2
_REPEATS = 11


def measure_copies(device: torch.device) -> Copies | None:
    """Both ways between pinned memory of the host and the device; None on a CPU, where nothing is copied."""
    if device.type != "cuda":
        return None
    clock = clock_for(device)
    of_host = torch.empty(NUM_BYTES, dtype=torch.uint8, pin_memory=True)
    of_device = torch.empty(NUM_BYTES, dtype=torch.uint8, device=device)
    return Copies(
        to_device_bytes_per_s=copy_rate(lambda: of_device.copy_(of_host, non_blocking=True), NUM_BYTES, clock),
        to_host_bytes_per_s=copy_rate(lambda: of_host.copy_(of_device, non_blocking=True), NUM_BYTES, clock),
    )


def copy_rate(copy: Callable[[], object], num_bytes: int, clock: Clock) -> float:
    """Bytes a second, from the median of several copies; the first ones, which also warm up, are left out."""
    seconds = []
    for _ in range(_WARM_UPS + _REPEATS):
        begin = clock.now()
        copy()
        end = clock.now()
        clock.finish()
        seconds.append(clock.seconds(begin, end))
    return num_bytes / statistics.median(seconds[_WARM_UPS:])
