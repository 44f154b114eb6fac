"""Checks that the action lists of a step are complete and free of deadlock, before anybody runs them."""

from collections import Counter

from zooid.core.errors import ScheduleError
from zooid.schedule.actions import Action, Kind, Lane, peer_action, taking_action
from zooid.schedule.pipelines import StepSchedule

Seat = tuple[int, int]
"""The (replica, stage) of a member."""


def check_schedule(schedule: StepSchedule) -> None:
    """Raise ScheduleError if the step cannot run to its end; the message shows the lists and the problem."""
    _check_complete(schedule)
    _check_progress(schedule)


def _check_complete(schedule: StepSchedule) -> None:
    owners = Counter(grain for grains in schedule.grains for grain in grains)
    if repeated := [grain for grain, count in owners.items() if count > 1]:
        raise ScheduleError(f"grains {repeated} are in more than one replica, or twice in one\n{schedule.text()}")
    for stage in range(schedule.num_stages):
        buckets = [_numbers(stages[stage], Kind.REDUCE) for stages in schedule.lists]
        for replica, numbers in enumerate(buckets):
            if numbers != buckets[0]:
                raise ScheduleError(
                    f"member r{replica}s{stage} reduces buckets {numbers}, but r0s{stage} reduces {buckets[0]}\n"
                    f"{schedule.text()}"
                )
    for replica, stages in enumerate(schedule.lists):
        for stage, actions in enumerate(stages):
            present = Counter(actions)
            required = _required(schedule, replica, stage)
            for what, difference in (
                ("lacks", required - present),
                ("has too often or by mistake", present - required),
            ):
                if difference:
                    names = " ".join(str(action) for action in difference)
                    raise ScheduleError(f"member r{replica}s{stage} {what} {names}\n{schedule.text()}")


def _required(schedule: StepSchedule, replica: int, stage: int) -> Counter[Action]:
    last = schedule.num_stages - 1
    required = Counter([Action(stage, Kind.COMMIT)] if schedule.is_training else [])
    for grain in schedule.grains[replica]:
        kinds = [Kind.FORWARD]
        kinds += [Kind.RECEIVE_FORWARD] if stage > 0 else []
        kinds += [Kind.SEND_FORWARD] if stage < last else []
        if schedule.is_training:
            kinds += [Kind.BACKWARD]
            kinds += [Kind.SEND_BACKWARD] if stage > 0 else []
            kinds += [Kind.RECEIVE_BACKWARD] if stage < last else []
        required.update(Action(stage, kind, grain) for kind in kinds)
    if schedule.is_training:
        buckets = _numbers(schedule.lists[replica][stage], Kind.REDUCE)
        required.update(Action(stage, Kind.REDUCE, bucket) for bucket in range(max(1, len(buckets))))
        required.update(Action(stage, Kind.SHARE, tie) for tie, stages in enumerate(schedule.ties) if stage in stages)
    return required


def _numbers(actions: tuple[Action, ...], kind: Kind) -> list[int | None]:
    return [action.number for action in actions if action.kind is kind]


def _check_progress(schedule: StepSchedule) -> None:
    """Run the actions in any possible order; actions that can never run are a deadlock."""
    progress = _Progress(schedule)
    while progress.advance():
        pass
    if stuck := progress.stuck():
        raise ScheduleError(f"the schedule deadlocks: {'; '.join(stuck)}\n{schedule.text()}")


class _Progress:
    """The actions that are done and those that are left.

    Computations run in list order. So do collectives, which all of their members must join in the same order.
    """

    def __init__(self, schedule: StepSchedule) -> None:
        self._schedule = schedule
        self._queues: dict[tuple[Seat, Lane], list[Action]] = {
            ((replica, stage), lane): [action for action in reversed(actions) if action.lane is lane]
            for replica, stages in enumerate(schedule.lists)
            for stage, actions in enumerate(stages)
            for lane in Lane
        }
        self._done: set[tuple[Seat, Action]] = set()

    def advance(self) -> bool:
        """Finish every action that can end now; False if there was none."""
        has_advanced = False
        for (seat, lane), queue in self._queues.items():
            in_order = lane in (Lane.COMPUTE, Lane.REDUCE)
            for action in queue[-1:] if in_order else queue[::-1]:
                if self._can_end(seat, action):
                    self._done.add((seat, action))
                    queue.remove(action)
                    has_advanced = True
        return has_advanced

    def stuck(self) -> list[str]:
        return [f"r{seat[0]}s{seat[1]} waits at {queue[-1]}" for (seat, _), queue in self._queues.items() if queue]

    def _can_end(self, seat: Seat, action: Action) -> bool:
        replica = seat[0]
        if not self._can_begin(seat, action):
            return False
        if (send := peer_action(action)) is not None:
            return ((replica, send.stage), send) in self._done
        if (receive := taking_action(action)) is not None:  # over sockets a send ends only when its reader has room
            return self._can_begin((replica, receive.stage), receive)
        if action.lane is Lane.REDUCE:  # a collective ends when all of its members have joined it
            return all(self._has_joined(member, action) for member in self._members_of(seat, action))
        return True

    def _can_begin(self, seat: Seat, action: Action) -> bool:
        needs = self._schedule.needs[seat[0]][seat[1]].get(action, ())
        return all((seat, before) in self._done for before in needs)

    def _has_joined(self, member: Seat, action: Action) -> bool:
        its_action = Action(member[1], action.kind, action.number)
        if (member, its_action) in self._done:
            return True
        queue = self._queues[member, Lane.REDUCE]
        return bool(queue) and queue[-1] == its_action and self._can_begin(member, its_action)

    def _members_of(self, seat: Seat, action: Action) -> list[Seat]:
        if action.kind is Kind.REDUCE:
            return [(replica, seat[1]) for replica in range(self._schedule.num_replicas)]
        assert action.number is not None
        return [(seat[0], stage) for stage in self._schedule.ties[action.number]]
