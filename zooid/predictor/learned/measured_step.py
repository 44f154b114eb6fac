"""A measured step and a simulated one as the same numbers, to compare them one by one.

Members have different clocks, so times are compared only within a member. In an all-reduce, members wait for the last
one to join, which itself waits for nobody. So the shortest time among its members is the time of the all-reduce.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zooid.core.plans.plan import Plan
from zooid.core.runs.step_measurements import StepMeasurements, step_means
from zooid.core.runs.timeline import Timeline, action_name
from zooid.predictor.simulation.layout import Layout

Seat = tuple[int, int]
"""Replica and stage."""
Transfer = tuple[str, Seat]
"""A kind of message and its member; an all-reduce and the stage of its first replica; or the vote of all."""

_VOTE: Transfer = ("vote", (0, 0))
_RECEIVES = ("RECV_F", "RECV_B")
_SENDS = ("SEND_F", "SEND_B")


@dataclass(frozen=True)
class MeasuredStep:
    """The times of one step, measured or simulated."""

    step_s: float
    """Time from one step to the next."""
    forward_s: dict[Seat, float]
    backward_s: dict[Seat, float]
    update_s: dict[Seat, float]
    transfers_s: dict[Transfer, float]
    """Mean time of each kind of transfer."""
    num_transfers: dict[Transfer, int]
    """Number of transfers of each kind in a step."""


def timed_messages(plan: Plan) -> tuple[str, ...]:
    """The kinds of messages whose times show the speed of links.

    A receive begins with its first byte. A put into the store does so, too, but over TCP a large message first waits
    for its reader. Libraries do not tell when the first byte moves.
    """
    if plan.transport == "store":
        return (*_SENDS, *_RECEIVES)
    return _RECEIVES if plan.transport == "tcp" else ()


def measured_step(plan: Plan, members: Sequence[StepMeasurements]) -> MeasuredStep:
    """Combine what all members of a plan have measured."""
    kinds = timed_messages(plan)
    seats = {(member.replica, member.stage): member for member in members}
    times: list[tuple[Transfer, float, int]] = [
        ((message.kind, seat), message.time.median_s, member.num_grains)
        for seat, member in seats.items()
        for message in member.messages
        if message.kind in kinds
    ]
    times += [
        ((f"REDUCE{reduce.number}", (0, stage)), reduce.time.median_s, 1)
        for (_, stage), member in seats.items()
        for reduce in member.reduces
    ]
    if len(members) > 1:
        times += [(_VOTE, member.vote.median_s, 1) for member in members]
    transfers_s, num_transfers = _shortest(times)
    return MeasuredStep(
        step_s=max(member.step.median_s + member.between.median_s for member in members),
        forward_s={seat: member.forward.median_s for seat, member in seats.items()},
        backward_s={seat: member.backward.median_s for seat, member in seats.items()},
        update_s={seat: member.update.median_s for seat, member in seats.items()},
        transfers_s=transfers_s,
        num_transfers=num_transfers,
    )


def simulated_step(plan: Plan, layout: Layout, timeline: Timeline) -> MeasuredStep:
    """Take the same numbers from the timeline of a simulated step."""
    kinds = timed_messages(plan)
    runs: defaultdict[Seat, list[tuple[str, int | None, float]]] = defaultdict(list)
    for interval in timeline.intervals:
        name = action_name(interval.action)
        replica, stage = interval.member.removeprefix("r").split("s")
        runs[int(replica), int(stage)].append((name.kind, name.number, interval.end_s - interval.start_s))
    means = {seat: step_means(own) for seat, own in runs.items()}
    rows = layout.of_replicas(plan.num_replicas).stages
    update_s = {(replica, stage): rows[replica][stage].update_s for replica, stage in means}
    times: list[tuple[Transfer, float, int]] = []
    for seat, own in means.items():
        num_grains = sum(kind == "F" for kind, _, _ in runs[seat])
        times += [((kind, seat), own[kind], num_grains) for kind in kinds if kind in own]
        times += [((name, (0, seat[1])), own[name], 1) for name in own if name.startswith("REDUCE")]
        times.append((_VOTE, max(0.0, own["COMMIT"] - update_s[seat]), 1))
    transfers_s, num_transfers = _shortest(times)
    return MeasuredStep(
        step_s=timeline.step_s,
        forward_s={seat: own["F"] for seat, own in means.items()},
        backward_s={seat: own["B"] for seat, own in means.items()},
        update_s=update_s,
        transfers_s=transfers_s,
        num_transfers=num_transfers,
    )


def _shortest(times: Iterable[tuple[Transfer, float, int]]) -> tuple[dict[Transfer, float], dict[Transfer, int]]:
    """The shortest time of each transfer, and how often it occurs in a step."""
    shortest_s: dict[Transfer, float] = {}
    numbers: dict[Transfer, int] = {}
    for transfer, seconds, number in times:
        shortest_s[transfer] = min(seconds, shortest_s.get(transfer, seconds))
        numbers[transfer] = number
    return shortest_s, numbers
