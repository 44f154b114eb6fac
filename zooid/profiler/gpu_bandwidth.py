"""The bandwidth between a GPU and pinned memory, which the GPU reads and writes by itself."""

import statistics
from collections.abc import Callable

import torch

from zooid.core.plans.profile import Copies
from zooid.profiler.cut_marks import Clock, clock_for

NUM_BYTES = 64 * 2**20
"""Bytes of one copy: it takes milliseconds on any bus, so that the microseconds of its start do not count."""
_WARM_UPS = 2
_REPEATS = 11


def measure_copies(device: torch.device) -> Copies | None:
    """Measure copies from pinned memory to the device and back; None on a CPU, where nothing is copied."""
    if device.type != "cuda":
        return None
    clock = clock_for(device)
    on_host = torch.empty(NUM_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(NUM_BYTES, dtype=torch.uint8, device=device)
    return Copies(
        to_device_bytes_per_s=copy_rate(lambda: on_device.copy_(on_host, non_blocking=True), NUM_BYTES, clock),
        to_host_bytes_per_s=copy_rate(lambda: on_host.copy_(on_device, non_blocking=True), NUM_BYTES, clock),
    )


def copy_rate(copy: Callable[[], object], num_bytes: int, clock: Clock) -> float:
    """Return bytes per second, from the median of several copies after a warm-up."""
    seconds = []
    for _ in range(_WARM_UPS + _REPEATS):
        begin = clock.now()
        copy()
        end = clock.now()
        clock.finish()
        seconds.append(clock.seconds(begin, end))
    return num_bytes / statistics.median(seconds[_WARM_UPS:])
