"""What a whole run uses beside its members' time: requests, bytes that lie in the store, bytes that move between sites.

A step's traffic is most of it. The rest is small and does not vanish: the coordinator looks for news and shows that it
is there, members meet, checkpoints are written, and the data set is loaded.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zooid.core.errors import PlanError
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.prices import DATA_SITE
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.predictor.costs.traffic import Seat, Traffic, put_requests
from zooid.schedule.heartbeats import requests_per_s

LOOK_S = 1.0
"""How often the coordinator of a run in a bucket looks for news: a listing, and a get for each writer of events."""
BEAT_S = 3.0
"""How often it shows that it is there, and looks for a newer claim: a put and a get."""
FENCE_S, FENCE_FRESH_S = 2.0, 1.0
"""How often a member looks for a newer claim, and one that tells of every step: a get."""
FLUSH_S = 0.3
"""How often the first member writes what it has to tell, at most: a put, and a get of whoever reads it."""
LIFETIME_STEPS, LIFETIME_S = 2.0, 2.0
"""How long a message lies in the store: until its readers have told that they are past it, and some more."""
MEETING_PUTS, MEETING_GETS, MEETING_LISTS = 8, 16, 5
"""Of one member, once, as counted: its spec, plan and roster, the groups that it joins, and leaving them. Waiting for
everybody is a get for each of the others."""


@dataclass(frozen=True)
class Move:
    """Bytes from one site to another; STORE_SITE and DATA_SITE are sites, too."""

    from_site: str
    to_site: str
    num_bytes: float


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Of one run."""

    num_puts: float = 0.0
    num_gets: float = 0.0
    """Those that came too early as well."""
    num_lists: float = 0.0
    stored_byte_s: float = 0.0
    """Bytes times the seconds that they lie in the store while the run lasts; what stays there is not the run's."""
    moves: tuple[Move, ...] = ()
    data_gets: float = 0.0
    """Requests to where the data set lies."""
    data_moves: tuple[Move, ...] = ()
    """From DATA_SITE to members."""

    def __post_init__(self) -> None:
        counts = [(name, getattr(self, name)) for name in _COUNTS]
        counts += [("num_bytes", each.num_bytes) for each in (*self.moves, *self.data_moves)]
        for name, value in counts:
            if not (math.isfinite(value) and value >= 0):
                raise PlanError(f"`{name}` of a run's usage is {value}; it must be a finite number of at least 0")

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            moves=_joined(self.moves + other.moves),
            data_moves=_joined(self.data_moves + other.data_moves),
        )


_COUNTS = ("num_puts", "num_gets", "num_lists", "stored_byte_s", "data_gets")
NO_USAGE = Usage()


def _joined(moves: Iterable[Move]) -> tuple[Move, ...]:
    """One for each way."""
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for move in moves:
        found[move.from_site, move.to_site] += move.num_bytes
    return tuple(Move(*way, num_bytes) for way, num_bytes in sorted(found.items()))


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """What a run saves."""

    num_written: int
    """Beside the first, which holds the weights alone; the last one is among them."""
    stage_bytes: tuple[float, ...]
    """Of each stage in one of them: weights, buffers, and what the optimizer keeps."""
    weight_bytes: tuple[float, ...]
    """Of each stage in the first one, from which all its replicas start."""
    keep: int = 2

    def __post_init__(self) -> None:
        if self.num_written < 0 or self.keep < 1:
            raise PlanError(
                f"`num_written` is {self.num_written} and `keep` {self.keep}; give at least 0 and at least 1"
            )
        if (
            len(self.stage_bytes) != len(self.weight_bytes)
            or min((*self.stage_bytes, *self.weight_bytes), default=0) < 0
        ):
            raise PlanError(
                f"`stage_bytes` is {self.stage_bytes} and `weight_bytes` {self.weight_bytes}; they must be bytes of "
                "the same stages, 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What members read their samples from, where it does not come with the job."""

    num_bytes: float
    num_objects: int = 1
    epochs: int = 1
    is_cached: bool = True
    """Whether a member keeps what it has loaded, so that it loads the whole once; otherwise in every epoch."""

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or self.num_objects < 0 or self.epochs < 1:
            raise PlanError(
                f"a data set has `num_bytes` {self.num_bytes}, `num_objects` {self.num_objects} and `epochs` "
                f"{self.epochs}; give at least 0, 0 and 1"
            )


def num_checkpoints(rule: CheckpointRule, num_steps: int, training_s: float) -> int:
    """How many a run writes beside the first: one whenever the rule says so, and the last.

    >>> num_checkpoints(CheckpointRule(every_steps=40), 100, 60.0), num_checkpoints(CheckpointRule(), 100, 60.0)
    (3, 1)
    """
    if rule.every_steps is not None:
        return max(1, -(-num_steps // rule.every_steps))
    if rule.every_s is not None:
        return int(min(training_s // rule.every_s, max(0, num_steps - 1))) + 1
    return 1


def run_usage(
    traffic: Traffic,
    sites: Mapping[Seat, str],
    *,
    num_steps: float,
    step_s: float,
    running_s: float,
    checkpoints: Checkpoints | None = None,
    data: DataSet | None = None,
    num_copies: int = 0,
) -> Usage:
    """What a run of so many steps uses that lasts so long in all; `sites` says where every seat's member stands.

    The seats of `num_copies` copies come last. Copies write no checkpoints and read no samples.
    """
    seats = sorted(traffic.seats)
    computing = seats[: len(seats) - num_copies]
    usage = _exchanging(traffic, sites, num_steps, step_s) + _attending(len(seats), num_steps, running_s)
    if traffic.total.num_puts > 0:
        usage += _giving_signs(len(seats), running_s)
    if checkpoints is not None:
        usage += _saving(checkpoints, sites, computing, running_s)
        copied = [Move(STORE_SITE, sites[seat], checkpoints.weight_bytes[seat[1]]) for seat in seats[len(computing) :]]
        usage += Usage(num_gets=2 * num_copies, moves=_joined(copied))
    if data is not None:
        usage += _loading(data, sites, computing)
    return usage


def _exchanging(traffic: Traffic, sites: Mapping[Seat, str], num_steps: float, step_s: float) -> Usage:
    """What the steps themselves send and take."""
    total = traffic.total
    if total.num_puts == 0:
        moves = [
            Move(sites[source], sites[reader], num_bytes * num_steps)
            for (source, reader), num_bytes in traffic.passed_bytes.items()
        ]
        return Usage(moves=_joined(moves))
    moves = [Move(sites[seat], STORE_SITE, own.sent_bytes * num_steps) for seat, own in traffic.seats.items()]
    moves += [Move(STORE_SITE, sites[seat], own.received_bytes * num_steps) for seat, own in traffic.seats.items()]
    return Usage(
        num_puts=total.num_puts * num_steps,
        num_gets=(total.num_gets + total.num_early_gets) * num_steps,
        stored_byte_s=total.sent_bytes * num_steps * (LIFETIME_STEPS * step_s + LIFETIME_S),
        moves=_joined(moves),
    )


def _attending(num_members: int, num_steps: float, running_s: float) -> Usage:
    """Members meet and tell what happens, and the coordinator is there and looks."""
    num_events = min(num_steps, running_s / FLUSH_S) + 2 * num_members
    num_looks = running_s / LOOK_S
    num_fence_looks = running_s * ((num_members - 1) / FENCE_S + 1 / FENCE_FRESH_S + 1 / BEAT_S)
    return Usage(
        num_puts=running_s / BEAT_S + num_events + MEETING_PUTS * num_members,
        num_gets=num_looks * (num_members + 1)
        + num_fence_looks
        + num_events
        + (MEETING_GETS + num_members - 1) * num_members,
        num_lists=num_looks + MEETING_LISTS * num_members,
    )


def _giving_signs(num_members: int, running_s: float) -> Usage:
    """Members that exchange through a store let one another know there that they live."""
    puts, gets = requests_per_s(num_members)
    return Usage(num_puts=puts * num_members * running_s, num_gets=gets * num_members * running_s)


def _saving(checkpoints: Checkpoints, sites: Mapping[Seat, str], seats: Sequence[Seat], running_s: float) -> Usage:
    """The first member writes the first checkpoint, and all read their weights from it; the replicas of a stage divide
    what they write of the others. One is deleted when `keep` newer ones are there."""
    num_replicas = len({replica for replica, _ in seats})
    interval_s = running_s / max(1, checkpoints.num_written)
    whole_bytes, first_bytes = sum(checkpoints.stage_bytes), sum(checkpoints.weight_bytes)
    intervals = [min(checkpoints.keep, checkpoints.num_written - n) for n in range(1, checkpoints.num_written + 1)]
    kept_s = interval_s * min(checkpoints.keep, max(1, checkpoints.num_written))
    moves = [Move(sites[seats[0]], STORE_SITE, first_bytes)]
    part_puts = 0
    for seat in seats:
        part_bytes = checkpoints.stage_bytes[seat[1]] / num_replicas
        moves.append(Move(STORE_SITE, sites[seat], checkpoints.weight_bytes[seat[1]]))
        moves.append(Move(sites[seat], STORE_SITE, part_bytes * checkpoints.num_written))
        part_puts += 1 + put_requests(part_bytes)  # weights and what the optimizer keeps are two objects
    first_puts = sum(put_requests(num_bytes) for num_bytes in checkpoints.weight_bytes)
    return Usage(
        num_puts=first_puts + 1 + (part_puts + 1) * checkpoints.num_written,  # manifests are objects, too
        num_gets=2 * len(seats),
        num_lists=5 * checkpoints.num_written,  # is the roster still ours, are all parts there, which are old
        stored_byte_s=first_bytes * kept_s + whole_bytes * interval_s * sum(intervals),
        moves=_joined(moves),
    )


def _loading(data: DataSet, sites: Mapping[Seat, str], seats: Sequence[Seat]) -> Usage:
    """First and last stages read samples, each member of them the whole data set, since shards are fetched whole."""
    last = max(stage for _, stage in seats)
    readers = [seat for seat in seats if seat[1] in (0, last)]
    times = 1 if data.is_cached else data.epochs
    return Usage(
        data_gets=data.num_objects * times * len(readers),
        data_moves=_joined(Move(DATA_SITE, sites[seat], data.num_bytes * times) for seat in readers),
    )
