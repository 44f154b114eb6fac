"""A measured step and a simulated one as the same numbers, to compare them one by one.

Members have different clocks, so each time is taken on one member. When a member begins to compute shows how long it
waited for messages and all-reduces. Times of messages count only through a store, where a put or a get takes as long as
its bytes. Over sockets, a sender is done when the bytes are in a buffer, and a reader may find them in one. The time of
an all-reduce counts everywhere, since it ends when the results of all members are there.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zooid.core.plans.plan import Plan
from zooid.core.runs.step_measurements import StepMeasurements, step_means
from zooid.core.runs.timeline import Timeline, action_name
from zooid.predictor.simulation.layout import Layout

Seat = tuple[int, int]
"""Replica and stage."""


@dataclass(frozen=True)
class MeasuredStep:
    """The times of one step, measured or simulated."""

    step_s: float
    """Time from one step to the next."""
    forward_s: dict[Seat, float]
    backward_s: dict[Seat, float]
    update_s: dict[Seat, float]
    starts_s: dict[Seat, dict[str, float]]
    """When each action of a member that computes began, from the beginning of the step."""
    messages_s: dict[tuple[Seat, str], float]
    """Mean time of one message of each kind that a member sends or receives through a store."""
    reduces_s: dict[tuple[Seat, int], float]
    """Time of each all-reduce of a member, with the wait for members that join it later."""


def measured_step(plan: Plan, members: Sequence[StepMeasurements]) -> MeasuredStep:
    """Combine what all members of a plan have measured."""
    seats = {(member.replica, member.stage): member for member in members}
    return MeasuredStep(
        step_s=max(member.step.median_s + member.between.median_s for member in members),
        forward_s={seat: member.forward.median_s for seat, member in seats.items()},
        backward_s={seat: member.backward.median_s for seat, member in seats.items()},
        update_s={seat: member.update.median_s for seat, member in seats.items()},
        starts_s=_with_last_commits({seat: member.starts_s for seat, member in seats.items()}),
        messages_s={
            (seat, message.kind): message.time.median_s
            for seat, member in seats.items()
            for message in member.messages
            if not plan.is_direct
        },
        reduces_s={
            (seat, reduce.number): reduce.time.median_s for seat, member in seats.items() for reduce in member.reduces
        },
    )


def simulated_step(plan: Plan, layout: Layout, timeline: Timeline) -> MeasuredStep:
    """Take the same numbers from the timeline of a simulated step."""
    runs: defaultdict[Seat, list[tuple[str, int | None, float]]] = defaultdict(list)
    starts_s: defaultdict[Seat, dict[str, float]] = defaultdict(dict)
    for interval in timeline.intervals:
        replica, stage = map(int, interval.member.removeprefix("r").split("s"))
        name = action_name(interval.action)
        runs[replica, stage].append((name.kind, name.number, interval.end_s - interval.start_s))
        if interval.lane == "compute":
            starts_s[replica, stage][interval.action] = interval.start_s
    means = {seat: step_means(own) for seat, own in runs.items()}
    rows = layout.of_replicas(plan.num_replicas).stages
    return MeasuredStep(
        step_s=timeline.step_s,
        forward_s={seat: own["F"] for seat, own in means.items()},
        backward_s={seat: own["B"] for seat, own in means.items()},
        update_s={(replica, stage): rows[replica][stage].update_s for replica, stage in means},
        starts_s=_with_last_commits(starts_s),
        messages_s={
            (seat, kind): mean_s
            for seat, own in means.items()
            for kind, mean_s in own.items()
            if kind.startswith(("SEND_", "RECV_")) and not plan.is_direct
        },
        reduces_s={
            (seat, int(kind.removeprefix("REDUCE"))): mean_s
            for seat, own in means.items()
            for kind, mean_s in own.items()
            if kind.startswith("REDUCE")
        },
    )


def _with_last_commits(starts_s: Mapping[Seat, Mapping[str, float]]) -> dict[Seat, dict[str, float]]:
    """Give every replica of a stage the last commit among them.

    The all-reduce of a member that joins late may end for it while its own bytes are still in a buffer.
    """
    last_s: defaultdict[str, float] = defaultdict(float)
    for own in starts_s.values():
        for action, start_s in own.items():
            if action_name(action).kind == "COMMIT":
                last_s[action] = max(last_s[action], start_s)
    return {seat: {action: last_s.get(action, own[action]) for action in own} for seat, own in starts_s.items()}
