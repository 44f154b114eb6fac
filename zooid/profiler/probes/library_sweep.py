"""The work of a member that times a library's all-reduces: bytes × members × how many at once, all members in step."""

import time
from collections.abc import Callable, Iterator
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
from zooid.profiler.probes.store_meeting import Gathering
from zooid.store import ObjectStore

_BYTES_IN_A_ROW = 2**20
_MAX_IN_A_ROW = 10
"""Small all-reduces are timed in a row: one alone would mostly tell how far apart members began."""
_WARM_UP_BYTES = 2**20


@dataclass(frozen=True)
class Setting:
    """What one measurement of a sweep is about."""

    num_bytes: int
    num_members: int
    concurrency: int

    @property
    def num_in_a_row(self) -> int:
        return min(max(1, _BYTES_IN_A_ROW // (self.num_bytes * self.concurrency)), _MAX_IN_A_ROW)


def settings_of(spec: SweepSpec) -> list[Setting]:
    """All that is measured, once."""
    chosen = product(sorted(spec.num_members), sorted(spec.num_bytes), sorted(spec.concurrency))
    return [Setting(num_bytes, num_members, concurrency) for num_members, num_bytes, concurrency in chosen]


def sweep_all_reduces(spec: SweepSpec, store: ObjectStore, progress: Callable[[int, int], None], abort: Abort) -> None:
    """Time all-reduces together with the other members of the spec; the first of them writes the samples."""
    names = [member.name for member in spec.members]
    prefix = keys.probes_of(spec.run)
    gathering = Gathering(store, prefix, names, spec.rank, timeout_s=spec.timeout_s, abort=abort)
    gathering.meet("the first meeting")
    device = _device(spec)
    numbers = _numbers(spec, device)
    with _losses_named(spec), _joined(spec, store, f"{prefix}/groups", device, abort):
        taken = _Sweep(spec, numbers).run(progress)
    said = gathering.meet("the end", taken, list[tuple[float, float] | None])
    if spec.rank == 0:
        store.put(keys.ALL_REDUCES, encode_record(_samples(spec, said)))


def _numbers(spec: SweepSpec, device: torch.device) -> list[torch.Tensor]:
    """One tensor for each all-reduce at once. Zeros stay what they are, however often they are added up; they are
    written, so that their memory is really there."""
    most = max(spec.num_bytes) // ELEMENT_BYTES
    return [torch.empty(most, device=device).fill_(0.0) for _ in range(max(spec.concurrency))]


@contextmanager
def _joined(spec: SweepSpec, store: ObjectStore, prefix: str, device: torch.device, abort: Abort) -> Iterator[None]:
    """In a process group of everybody."""
    meeting = ObjectRendezvous(store, prefix, timeout_s=spec.timeout_s, abort=abort)
    dist.init_process_group(
        spec.library,
        store=meeting,
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
            f"{len(spec.members)} members are to measure nccl, which takes a GPU for each of them; this machine has "
            f"{torch.cuda.device_count()}: give fewer members, or gloo"
        )
    device = torch.device("cuda", spec.rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def _losses_named(spec: SweepSpec) -> Iterator[None]:
    """Libraries raise a plain RuntimeError where a peer is gone, which is then the cause, and not this member."""
    try:
        yield
    except ZooidError:
        raise
    except RuntimeError as error:
        raise PeerLost(f"{spec.library} lost a member, or the way to it, in an all-reduce: {error}") from error


class _Sweep:
    """One member's part: its groups, its numbers, and its clock."""

    def __init__(self, spec: SweepSpec, numbers: list[torch.Tensor]) -> None:
        self._spec = spec
        self._numbers = numbers
        self._device = numbers[0].device
        self._settings = settings_of(spec)
        # everybody makes every group, in the same order, as torch.distributed wants it
        self._groups = {number: dist.new_group(range(number)) for number in sorted(spec.num_members)}

    def run(self, progress: Callable[[int, int], None]) -> list[tuple[float, float] | None]:
        """All settings, again and again, so that the repeats of one are some time apart: of each when it was, and what
        it took on this member; None where it took no part."""
        self._warm_up()
        total = self._spec.num_repeats * len(self._settings)
        taken: list[tuple[float, float] | None] = []
        for done in range(total):
            progress(done, total)
            # all wait for every measurement, so that nobody waits for longer than one; members that take no part then
            # wait for the next one, and are silent meanwhile
            self._meet()
            setting = self._settings[done % len(self._settings)]
            taken.append(self._measure(setting) if self._spec.rank < setting.num_members else None)
        progress(total, total)
        return taken

    def _warm_up(self) -> None:
        """Connections are made, and have gathered some speed."""
        self._meet()
        size = min(_WARM_UP_BYTES, max(self._spec.num_bytes))
        for number in self._groups:
            if self._spec.rank < number:
                self._measure(Setting(size, number, max(self._spec.concurrency)))

    def _measure(self, setting: Setting) -> tuple[float, float]:
        group = self._groups[setting.num_members]
        count = setting.num_bytes // ELEMENT_BYTES
        parts = [numbers[:count] for numbers in self._numbers[: setting.concurrency]]
        at_s, began_s = time.time(), time.perf_counter()
        for _ in range(setting.num_in_a_row):
            for work in [dist.all_reduce(part, group=group, async_op=True) for part in parts]:
                work.wait()
            self._finish()
        return at_s, (time.perf_counter() - began_s) / setting.num_in_a_row

    def _meet(self) -> None:
        """A barrier that every library has."""
        dist.all_reduce(torch.zeros(1, device=self._device))
        self._finish()

    def _finish(self) -> None:
        """Waiting for NCCL's work only puts it into the order of a stream."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _samples(spec: SweepSpec, said: list[list[tuple[float, float] | None]]) -> AllReduceSamples:
    """The last member that is done with a measurement says what it took; members begin together, so that no clock has
    to agree with another one."""
    settings = settings_of(spec)
    samples = []
    for number in range(spec.num_repeats * len(settings)):
        setting = settings[number % len(settings)]
        measured = [each for of_member in said if number < len(of_member) and (each := of_member[number]) is not None]
        if len(measured) != setting.num_members:
            raise CommError(
                f"{len(measured)} members have timed measurement {number}, in which {setting.num_members} take part: "
                "start them with the same version of zooid"
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
