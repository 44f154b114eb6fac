"""The rate of copies to a GPU and back: what usual ones take, whatever the first ones and hiccups do."""

import pytest
import torch

from zooid.core.plans.profile import Copies, DeviceKind
from zooid.profiler.cut_marks import Clock
from zooid.profiler.gpu_bandwidth import copy_rate, measure_copies


class Watch(Clock):
    """A clock of its own; copies move it on, and their times can be asked for when all of them are done."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.num_copies = 0
        self._finished_at_s = 0.0

    def copy(self) -> None:
        """Two seconds; the first takes a minute, and every fifth nine seconds."""
        self.at_s += 60.0 if self.num_copies == 0 else 9.0 if self.num_copies % 5 == 0 else 2.0
        self.num_copies += 1

    def now(self) -> float:
        return self.at_s

    def seconds(self, begin: float, end: float) -> float:
        assert end <= self._finished_at_s, "the device had not done it yet"
        return end - begin

    def finish(self) -> None:
        self._finished_at_s = self.at_s


def test_the_rate_is_that_of_the_usual_copy() -> None:
    watch = Watch()
    assert copy_rate(watch.copy, 1000, watch) == 500.0
    assert watch.num_copies > 5


def test_on_a_cpu_nothing_is_copied() -> None:
    assert measure_copies(torch.device("cpu")) is None
    with pytest.raises(ValueError, match="`copies` is given for a cpu; only a GPU has copies"):
        a_device("cpu", Copies(to_device_bytes_per_s=1.0, to_host_bytes_per_s=1.0))


@pytest.mark.parametrize(("to_device", "to_host"), [(0.0, 1.0), (1.0, -1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_a_rate_is_a_number_above_zero(to_device: float, to_host: float) -> None:
    with pytest.raises(ValueError, match=r"a copy rate is .* bytes per second"):
        Copies(to_device_bytes_per_s=to_device, to_host_bytes_per_s=to_host)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_gpu_copies_gigabytes_a_second() -> None:
    copies = measure_copies(torch.device("cuda"))
    assert copies is not None
    print(copies)
    for rate in (copies.to_device_bytes_per_s, copies.to_host_bytes_per_s):
        assert 1e9 < rate < 1e12


def a_device(kind: str, copies: Copies | None) -> DeviceKind:
    return DeviceKind(kind=kind, name="made", num_threads=1, num_cores=1.0, score=1e10, copies=copies)  # type: ignore[arg-type]
