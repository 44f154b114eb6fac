"""Proves an action list before anyone runs it: complete, in a possible order, and free of deadlock."""

from collections import Counter

from zooid.core.errors import ScheduleError
from zooid.schedule.actions import Action, Kind, Lane, local_dependencies, peer_action
from zooid.schedule.pipelines import StepSchedule

Seat = tuple[int, int]
"""(replica, stage)."""


def check_schedule(schedule: StepSchedule) -> None:
    """Raise ScheduleError, with the whole grid and the place, if the step cannot run to its end."""
    _check_complete(schedule)
    _check_progress(schedule)


def _check_complete(schedule: StepSchedule) -> None:
    last = schedule.num_stages - 1
    owners = Counter(grain for grains in schedule.grains for grain in grains)
    if twice := [grain for grain, count in owners.items() if count > 1]:
        raise ScheduleError(f"grains {twice} are in more than one replica, or twice in one\n{schedule.text()}")
    for replica, stages in enumerate(schedule.lists):
        for stage, actions in enumerate(stages):
            wanted = Counter([Action(stage, Kind.REDUCE), Action(stage, Kind.COMMIT)])
            for grain in schedule.grains[replica]:
                kinds = [Kind.FORWARD, Kind.BACKWARD]
                if stage > 0:
                    kinds += [Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD]
                if stage < last:
                    kinds += [Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD]
                wanted.update(Action(stage, kind, grain) for kind in kinds)
            found = Counter(actions)
            for what, difference in (("lacks", wanted - found), ("has too often or by mistake", found - wanted)):
                if difference:
                    names = " ".join(str(action) for action in difference)
                    raise ScheduleError(f"member r{replica}s{stage} {what} {names}\n{schedule.text()}")


def _check_progress(schedule: StepSchedule) -> None:
    """Run all lanes without time: whatever can go, goes; if nothing can and something is left, that is a deadlock."""
    queues: dict[tuple[Seat, Lane], list[Action]] = {
        ((replica, stage), lane): [action for action in reversed(actions) if action.lane is lane]
        for replica, stages in enumerate(schedule.lists)
        for stage, actions in enumerate(stages)
        for lane in Lane
    }
    done: set[tuple[Seat, Action]] = set()
    moved = True
    while moved:
        moved = False
        for (seat, _), queue in queues.items():
            while queue and _is_ready(schedule, seat, queue[-1], done):
                done.add((seat, queue.pop()))
                moved = True
    stuck = [f"r{seat[0]}s{seat[1]} waits at {queue[-1]}" for (seat, _), queue in queues.items() if queue]
    if stuck:
        raise ScheduleError(f"the schedule deadlocks: {'; '.join(stuck)}\n{schedule.text()}")


def _is_ready(schedule: StepSchedule, seat: Seat, action: Action, done: set[tuple[Seat, Action]]) -> bool:
    replica, stage = seat
    local = local_dependencies(action, schedule.num_stages, schedule.grains[replica])
    if any((seat, dependency) not in done for dependency in local):
        return False
    if (sent := peer_action(action)) is not None:
        return ((replica, sent.stage), sent) in done
    if action.kind is Kind.REDUCE:  # a collective starts when every replica of the stage has come to it
        return all(
            ((other, stage), Action(stage, Kind.BACKWARD, grain)) in done
            for other in range(schedule.num_replicas)
            for grain in schedule.grains[other]
        )
    return True
