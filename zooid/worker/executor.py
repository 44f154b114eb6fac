"""Runs a member's action list: compute, uplink and downlink at the same time, each lane in list order."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from zooid.core.abort import Abort
from zooid.core.timeline import Interval, Timeline
from zooid.schedule.actions import Action, Kind, Lane, local_dependencies

Handler = Callable[[Action], None]


class Executor:
    """Runs steps one after the other. A failing action stops all lanes; its error is raised to the caller."""

    def __init__(self, member: str, handlers: Mapping[Kind, Handler], abort: Abort) -> None:
        self._member = member
        self._handlers = handlers
        self._abort = abort

    def run(self, actions: Sequence[Action], num_stages: int, grains: Sequence[int]) -> Timeline:
        """Run one step's list and return when every action is done; compute runs in the calling thread."""
        step = _Step(self._member, self._handlers, self._abort, num_stages, tuple(grains))
        lanes = {lane: [action for action in actions if action.lane is lane] for lane in Lane}
        threads = [
            threading.Thread(target=step.run_lane, args=(lanes[lane],), name=f"zooid-{lane.value}", daemon=True)
            for lane in (Lane.UPLINK, Lane.DOWNLINK)
            if lanes[lane]
        ]
        for thread in threads:
            thread.start()
        step.run_lane(lanes[Lane.COMPUTE])
        for thread in threads:
            thread.join()
        if step.error is not None:
            raise step.error
        return Timeline(intervals=tuple(step.intervals))


class _Step:
    def __init__(
        self, member: str, handlers: Mapping[Kind, Handler], abort: Abort, num_stages: int, grains: tuple[int, ...]
    ) -> None:
        self.error: BaseException | None = None
        self.intervals: list[Interval] = []
        self._member = member
        self._handlers = handlers
        self._abort = abort
        self._num_stages = num_stages
        self._grains = grains
        self._done: set[Action] = set()
        self._changed = threading.Condition()
        self._start_s = time.perf_counter()

    def run_lane(self, actions: Sequence[Action]) -> None:
        try:
            for action in actions:
                if not self._wait_for(local_dependencies(action, self._num_stages, self._grains)):
                    return
                self._run(action)
        except BaseException as error:  # noqa: BLE001  # every error must reach the caller's thread
            self._fail(error)

    def _run(self, action: Action) -> None:
        start_s = time.perf_counter() - self._start_s
        self._handlers[action.kind](action)
        end_s = time.perf_counter() - self._start_s
        interval = Interval(
            member=self._member, lane=action.lane.value, action=str(action), start_s=start_s, end_s=end_s
        )
        with self._changed:
            self.intervals.append(interval)
            self._done.add(action)
            self._changed.notify_all()

    def _wait_for(self, dependencies: tuple[Action, ...]) -> bool:
        """False where another lane failed; the flag is looked at every 50 ms, so that a stop takes less than 100."""
        with self._changed:
            while self.error is None and not self._done.issuperset(dependencies):
                self._abort.check()
                self._changed.wait(0.05)
            self._abort.check()
            return self.error is None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                self.error = error
                self._abort.set(f"{type(error).__name__} in another lane of {self._member}")
            self._changed.notify_all()
