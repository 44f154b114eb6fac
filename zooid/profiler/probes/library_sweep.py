"""The work of a member that times a library's all-reduces, for every size, number of members and concurrency."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import torch
from torch import distributed as dist

from zooid.comm import ObjectRendezvous
from zooid.core.abort import Abort
from zooid.core.errors import CommError, InputError, PeerLost, ZooidError
from zooid.core.plans.all_reduce_samples import ELEMENT_BYTES, AllReduceSample, AllReduceSamples
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import SweepSpec
from zooid.core.version import VERSION
from zooid.profiler.probes.probe_barrier import ProbeBarrier
from zooid.profiler.probes.probe_member import Progress
from zooid.store import ObjectStore

_BYTES_IN_A_ROW = 2**20
_MAX_IN_A_ROW = 10
"""Small all-reduces are timed in a row: a single one would mostly measure how far apart members began."""
_WARM_UP_BYTES = 2**20


@dataclass(frozen=True)
class Setting:
    """The size, number of members and concurrency of one measurement."""

    num_bytes: int
    num_members: int
    concurrency: int

    @property
    def num_in_a_row(self) -> int:
        return min(max(1, _BYTES_IN_A_ROW // (self.num_bytes * self.concurrency)), _MAX_IN_A_ROW)


def settings_of(spec: SweepSpec) -> list[Setting]:
    """Return every combination that the sweep measures."""
    chosen = product(sorted(spec.num_members), sorted(spec.num_bytes), sorted(spec.concurrency))
    return [Setting(num_bytes, num_members, concurrency) for num_members, num_bytes, concurrency in chosen]


def sweep_all_reduces(spec: SweepSpec, store: ObjectStore, progress: Progress, abort: Abort) -> None:
    """Time all-reduces together with the other members of the spec; the first member stores the samples."""
    names = [member.name for member in spec.members]
    prefix = keys.probes_of(spec.run)
    barrier = ProbeBarrier(store, prefix, names, spec.rank, timeout_s=spec.timeout_s, abort=abort)
    barrier.meet("the start")
    device = _device(spec)
    # One tensor for each concurrent all-reduce. Zeros stay zero when added up; writing them allocates their memory.
    max_elements = max(spec.num_bytes) // ELEMENT_BYTES
    tensors = [torch.empty(max_elements, device=device).fill_(0.0) for _ in range(max(spec.concurrency))]
    with _peer_errors(spec), _process_group(spec, store, f"{prefix}/groups", device, abort):
        timings = _Sweep(spec, tensors).run(progress)
    member_timings = barrier.meet("the end", timings, list[Timing | None])
    if spec.rank == 0:
        store.put(keys.ALL_REDUCES, encode_record(_samples(spec, member_timings)))


@contextmanager
def _process_group(
    spec: SweepSpec, store: ObjectStore, prefix: str, device: torch.device, abort: Abort
) -> Iterator[None]:
    """While inside, all members form the default process group."""
    rendezvous = ObjectRendezvous(store, prefix, timeout_s=spec.timeout_s, abort=abort)  # torch keeps no reference
    dist.init_process_group(
        spec.library,
        store=rendezvous,
        rank=spec.rank,
        world_size=len(spec.members),
        timeout=timedelta(seconds=spec.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _device(spec: SweepSpec) -> torch.device:
    if spec.library == "gloo":
        return torch.device("cpu")
    if torch.cuda.device_count() < len(spec.members):
        raise InputError(
            f"{len(spec.members)} members are to measure nccl, which needs one GPU per member; this machine has "
            f"{torch.cuda.device_count()}: give fewer members, or use gloo"
        )
    device = torch.device("cuda", spec.rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def _peer_errors(spec: SweepSpec) -> Iterator[None]:
    """Raise PeerLost for the plain RuntimeError with which libraries report that a peer is gone."""
    try:
        yield
    except ZooidError:
        raise
    except RuntimeError as error:
        raise PeerLost(f"{spec.library} lost a member, or the link to it, in an all-reduce: {error}") from error


Timing = tuple[float, float]
"""The time of day at which a measurement began, and the seconds that it took on one member."""


class _Sweep:
    """One member's part of the sweep, in all process groups that it belongs to."""

    def __init__(self, spec: SweepSpec, tensors: list[torch.Tensor]) -> None:
        self._spec = spec
        self._tensors = tensors
        self._device = tensors[0].device
        self._settings = settings_of(spec)
        # torch.distributed requires that every rank creates every group, in the same order.
        self._groups = {size: dist.new_group(range(size)) for size in sorted(spec.num_members)}

    def run(self, progress: Progress) -> list[Timing | None]:
        """Time all settings, with their repeats some time apart; None where this member takes no part."""
        self._warm_up()
        total = self._spec.num_repeats * len(self._settings)
        timings: list[Timing | None] = []
        for done in range(total):
            progress(done, total)
            # All members pass a barrier before every measurement, so that nobody waits for longer than one.
            self._barrier()
            setting = self._settings[done % len(self._settings)]
            timings.append(self._measure(setting) if self._spec.rank < setting.num_members else None)
        progress(total, total)
        return timings

    def _warm_up(self) -> None:
        """Open all connections and let them ramp up."""
        self._barrier()
        num_bytes = min(_WARM_UP_BYTES, max(self._spec.num_bytes))
        for size in self._groups:
            if self._spec.rank < size:
                self._measure(Setting(num_bytes, size, max(self._spec.concurrency)))

    def _measure(self, setting: Setting) -> Timing:
        group = self._groups[setting.num_members]
        count = setting.num_bytes // ELEMENT_BYTES
        parts = [tensor[:count] for tensor in self._tensors[: setting.concurrency]]
        at_s, began_s = time.time(), time.perf_counter()
        for _ in range(setting.num_in_a_row):
            for work in [dist.all_reduce(part, group=group, async_op=True) for part in parts]:
                work.wait()
            self._finish()
        return at_s, (time.perf_counter() - began_s) / setting.num_in_a_row

    def _barrier(self) -> None:
        """Pass a barrier made of an all-reduce, which every library has."""
        dist.all_reduce(torch.zeros(1, device=self._device))
        self._finish()

    def _finish(self) -> None:
        """Wait for the GPU, since waiting for NCCL's work only orders it in a stream."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _samples(spec: SweepSpec, member_timings: list[list[Timing | None]]) -> AllReduceSamples:
    """Return the longest time of all members for each measurement.

    Members begin together, so that their clocks need not agree.
    """
    settings = settings_of(spec)
    samples = []
    for number in range(spec.num_repeats * len(settings)):
        setting = settings[number % len(settings)]
        entries = [timings[number] for timings in member_timings if number < len(timings)]
        measured = [timing for timing in entries if timing is not None]
        if len(measured) != setting.num_members:
            raise CommError(
                f"{len(measured)} members have timed measurement {number}, in which {setting.num_members} take part: "
                "start all members with the same version of zooid"
            )
        samples.append(
            AllReduceSample(
                library=spec.library,
                offer=spec.offer,
                site=spec.members[0].site,
                num_bytes=setting.num_bytes,
                num_members=setting.num_members,
                concurrency=setting.concurrency,
                took_s=max(took_s for _, took_s in measured),
                at_s=measured[0][0],
            )
        )
    return AllReduceSamples(zooid_version=VERSION, samples=tuple(samples))
