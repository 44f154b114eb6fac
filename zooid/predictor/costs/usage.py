"""Use of the store and of links by a whole run: requests, stored bytes, and bytes between sites.

Most of it is the traffic of the steps. The rest is small but not negligible: the coordinator's heartbeats and looks for
events, the members' rendezvous, checkpoints, and the data set.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zooid.core.errors import PlanError
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.prices import DATA_SITE
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.step_measurements import num_writes
from zooid.core.runs.store_rules import (
    CHANGE_LOOK_S,
    DELETE_AFTER_S,
    EVENT_FLUSH_S,
    EVENT_LOOK_S,
    FENCE_FRESH_S,
    FENCE_LOOK_S,
    INVITATION_LOOK_S,
    LEASE_HEARTBEAT_S,
    REQUEST_LOOK_S,
    SEAT_LOOK_S,
    put_requests,
)
from zooid.predictor.costs.traffic import Seat, Traffic
from zooid.schedule.heartbeats import requests_per_s

_MESSAGE_STEPS = 2.0
"""Number of steps after which all readers have reported that they no longer need a message."""
_RENDEZVOUS_PUTS, _RENDEZVOUS_GETS, _RENDEZVOUS_LISTS = 8, 16, 5
"""Requests of one member in its life, as counted: its spec, plan and roster, and joining and leaving its groups. To
wait for all others, it needs one more get for each of them."""


@dataclass(frozen=True)
class Move:
    """Bytes from one site to another; STORE_SITE and DATA_SITE count as sites."""

    from_site: str
    to_site: str
    num_bytes: float


@dataclass(frozen=True, kw_only=True)
class RunUsage:
    """Requests and bytes of one run."""

    num_puts: float = 0.0
    num_gets: float = 0.0
    """Number of gets, including those that came too early."""
    num_lists: float = 0.0
    stored_byte_s: float = 0.0
    """Bytes in the store times the seconds that they stay there during the run."""
    moves: tuple[Move, ...] = ()
    data_gets: float = 0.0
    """Number of gets from the store of the data set."""
    data_moves: tuple[Move, ...] = ()
    """Bytes from DATA_SITE to members."""

    def __post_init__(self) -> None:
        counts = [(name, getattr(self, name)) for name in _COUNTS]
        counts += [("num_bytes", move.num_bytes) for move in (*self.moves, *self.data_moves)]
        for name, value in counts:
            if not (math.isfinite(value) and value >= 0):
                raise PlanError(f"`{name}` of a run's usage is {value}; it must be a finite number of at least 0")

    def __add__(self, other: "RunUsage") -> "RunUsage":
        return RunUsage(
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            moves=_joined(self.moves + other.moves),
            data_moves=_joined(self.data_moves + other.data_moves),
        )


_COUNTS = ("num_puts", "num_gets", "num_lists", "stored_byte_s", "data_gets")
NO_USAGE = RunUsage()


def _joined(moves: Iterable[Move]) -> tuple[Move, ...]:
    """The same bytes, with one move for each link."""
    num_bytes: defaultdict[tuple[str, str], float] = defaultdict(float)
    for move in moves:
        num_bytes[move.from_site, move.to_site] += move.num_bytes
    return tuple(Move(*ends, moved) for ends, moved in sorted(num_bytes.items()))


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints that a run writes."""

    num_written: int
    """Number of checkpoints, including the last, but without the first, which holds only weights."""
    stage_bytes: tuple[float, ...]
    """Size of each stage in a checkpoint: weights, buffers, and optimizer state."""
    weight_bytes: tuple[float, ...]
    """Size of each stage in the first checkpoint, from which all of its replicas start."""
    keep: int = 2
    """Number of checkpoints that stay in the store."""

    def __post_init__(self) -> None:
        if self.num_written < 0 or self.keep < 1:
            raise PlanError(
                f"`num_written` is {self.num_written} and `keep` {self.keep}; give at least 0 and at least 1"
            )
        is_negative = min((*self.stage_bytes, *self.weight_bytes), default=0) < 0
        if len(self.stage_bytes) != len(self.weight_bytes) or is_negative:
            raise PlanError(
                f"`stage_bytes` is {self.stage_bytes} and `weight_bytes` {self.weight_bytes}; they must be bytes of "
                "the same stages, 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set that members read from a store because it does not come with the job."""

    num_bytes: float
    num_objects: int = 1
    epochs: int = 1
    is_cached: bool = True
    """Whether a member keeps what it has loaded. Otherwise it loads the whole data set in every epoch."""

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or self.num_objects < 0 or self.epochs < 1:
            raise PlanError(
                f"a data set has `num_bytes` {self.num_bytes}, `num_objects` {self.num_objects} and `epochs` "
                f"{self.epochs}; give at least 0, 0 and 1"
            )


def num_checkpoints(rule: CheckpointRule, num_steps: int, training_s: float) -> int:
    """Number of checkpoints that a run writes after the first: those of the rule, and the last.

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
) -> RunUsage:
    """Predict what a run of `num_steps` steps uses in `running_s` seconds; `sites` are the sites of all seats.

    The last `num_copies` seats are copies, which write no checkpoints and read no samples.
    """
    seats = sorted(traffic.seats)
    computing = seats[: len(seats) - num_copies]
    usage = _step_usage(traffic, sites, num_steps, step_s) + _control_usage(len(seats), num_steps, running_s)
    if traffic.total.num_puts > 0:  # members without connections write their heartbeats into the store
        puts, gets = (rate * len(seats) * running_s for rate in requests_per_s(len(seats)))
        usage += RunUsage(num_puts=puts, num_gets=gets)
    if checkpoints is not None:
        usage += _checkpoint_usage(checkpoints, sites, computing, running_s)
        copied = [Move(STORE_SITE, sites[seat], checkpoints.weight_bytes[seat[1]]) for seat in seats[len(computing) :]]
        usage += RunUsage(num_gets=2 * num_copies, moves=_joined(copied))
    if data is not None:
        usage += _data_usage(data, sites, computing)
    return usage


def _step_usage(traffic: Traffic, sites: Mapping[Seat, str], num_steps: float, step_s: float) -> RunUsage:
    total = traffic.total
    if total.num_puts == 0:
        moves = [
            Move(sites[source], sites[reader], num_bytes * num_steps)
            for (source, reader), num_bytes in traffic.passed_bytes.items()
        ]
        return RunUsage(moves=_joined(moves))
    moves = [Move(sites[seat], STORE_SITE, own.sent_bytes * num_steps) for seat, own in traffic.seats.items()]
    moves += [Move(STORE_SITE, sites[seat], own.received_bytes * num_steps) for seat, own in traffic.seats.items()]
    return RunUsage(
        num_puts=total.num_puts * num_steps,
        num_gets=(total.num_gets + total.num_early_gets) * num_steps,
        stored_byte_s=total.sent_bytes * num_steps * (_MESSAGE_STEPS * step_s + DELETE_AFTER_S),
        moves=_joined(moves),
    )


def joining_usage(num_joined: float, num_members: int) -> RunUsage:
    """Requests with which members join a run of this many members, besides those for its state."""
    return RunUsage(
        num_puts=_RENDEZVOUS_PUTS * num_joined,
        num_gets=(_RENDEZVOUS_GETS + num_members - 1) * num_joined,
        num_lists=_RENDEZVOUS_LISTS * num_joined,
    )


def waiting_usage(num_joined: float) -> RunUsage:
    """Requests of processes that wait for their seats, until the first member has found the change and two steps pass.

    Each looks for the change, for a newer roster, and whether it is still wanted. Then it looks for its roster.
    """
    num_looks = 1 + CHANGE_LOOK_S / INVITATION_LOOK_S  # of two gets each
    return RunUsage(num_gets=(2 * num_looks + CHANGE_LOOK_S / SEAT_LOOK_S) * num_joined, num_lists=num_joined)


def _control_usage(num_members: int, num_steps: float, running_s: float) -> RunUsage:
    """Requests of the rendezvous, of events, of measurements, of leases, of fences, and of looks for changes."""
    num_events = min(num_steps, running_s / EVENT_FLUSH_S) + 2 * num_members
    num_measurements = num_members * num_writes(num_steps)
    num_looks = running_s / EVENT_LOOK_S
    # one member writes an event for every step, and checks its fence before each; it also looks for a request to stop
    num_fence_looks = running_s * ((num_members - 1) / FENCE_LOOK_S + 1 / FENCE_FRESH_S + 1 / LEASE_HEARTBEAT_S)
    num_stop_looks = running_s / FENCE_LOOK_S
    num_change_looks = running_s / CHANGE_LOOK_S  # of the first member
    joining = joining_usage(num_members, num_members)
    return RunUsage(
        num_puts=running_s / LEASE_HEARTBEAT_S + num_events + num_measurements + joining.num_puts,
        num_gets=num_looks * (num_members + 1)
        + num_fence_looks
        + num_stop_looks
        + num_change_looks
        + num_events
        + joining.num_gets,
        num_lists=num_looks + running_s / REQUEST_LOOK_S + joining.num_lists,
    )


def _checkpoint_usage(
    checkpoints: Checkpoints, sites: Mapping[Seat, str], seats: Sequence[Seat], running_s: float
) -> RunUsage:
    """Requests and bytes of checkpoints.

    The first member writes the first checkpoint, and all members read their weights from it. The replicas of a stage
    divide the writing of later ones. A checkpoint is deleted once there are `keep` newer ones.
    """
    num_replicas = len({replica for replica, _ in seats})
    interval_s = running_s / max(1, checkpoints.num_written)
    whole_bytes, first_bytes = sum(checkpoints.stage_bytes), sum(checkpoints.weight_bytes)
    intervals = [min(checkpoints.keep, checkpoints.num_written - n) for n in range(1, checkpoints.num_written + 1)]
    first_kept_s = interval_s * min(checkpoints.keep, max(1, checkpoints.num_written))
    moves = [Move(sites[seats[0]], STORE_SITE, first_bytes)]
    part_puts = 0
    for seat in seats:
        part_bytes = checkpoints.stage_bytes[seat[1]] / num_replicas
        moves.append(Move(STORE_SITE, sites[seat], checkpoints.weight_bytes[seat[1]]))
        moves.append(Move(sites[seat], STORE_SITE, part_bytes * checkpoints.num_written))
        part_puts += 1 + put_requests(part_bytes)  # weights and optimizer state are two objects
    first_puts = sum(put_requests(num_bytes) for num_bytes in checkpoints.weight_bytes)
    return RunUsage(
        num_puts=first_puts + 1 + (part_puts + 1) * checkpoints.num_written,  # a manifest is one more object
        num_gets=2 * len(seats),
        num_lists=5 * checkpoints.num_written,  # to check the roster, to find all parts, and to find old checkpoints
        stored_byte_s=first_bytes * first_kept_s + whole_bytes * interval_s * sum(intervals),
        moves=_joined(moves),
    )


def _data_usage(data: DataSet, sites: Mapping[Seat, str], seats: Sequence[Seat]) -> RunUsage:
    """Requests and bytes of samples: each member of the first and the last stage fetches all shards."""
    last_stage = max(stage for _, stage in seats)
    readers = [seat for seat in seats if seat[1] in (0, last_stage)]
    num_loads = 1 if data.is_cached else data.epochs
    return RunUsage(
        data_gets=data.num_objects * num_loads * len(readers),
        data_moves=_joined(Move(DATA_SITE, sites[seat], data.num_bytes * num_loads) for seat in readers),
    )
