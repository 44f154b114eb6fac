"""A member computes in order, keeps messages under way meanwhile, and stops within 100 ms wherever it is."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from tests.contract.groups import Opener
from tests.unit.action_texts import parse_action
from zooid.comm.calls.work import Completion, TransferWork
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, PeerLost
from zooid.core.plans.plan import ScheduleName
from zooid.core.runs.timeline import Timeline
from zooid.schedule.actions import (
    MESSAGES,
    RECEIVES_AHEAD,
    SENDS_BEHIND,
    Action,
    Kind,
    Lane,
    needs_of,
)
from zooid.schedule.pipelines import StepShape
from zooid.worker.step.executor import Executor
from zooid.worker.step.pending import Pending

pytestmark = pytest.mark.timeout(30)

STOP_S = 0.1
"""How long an abort may take."""


class Message(dist.Work):
    """Ends when it is waited for, and tells so."""

    def __init__(self, name: str, tell: Callable[[str], None], error: Exception | None) -> None:
        super().__init__()
        self._name = name
        self._tell = tell
        self._error = error

    def wait(self, timeout: object = None) -> bool:
        self._tell(f"end {self._name}")
        if self._error is not None:
            raise self._error
        return True


class Actor:
    """Notes what it is told to do, in order; `during` is called in the middle of computing, `errors` are raised."""

    def __init__(
        self, during: dict[str, Callable[[], None]] | None = None, errors: dict[str, Exception] | None = None
    ) -> None:
        self.told: list[str] = []
        self._during = during or {}
        self.errors = errors or {}

    def compute(self, action: Action) -> None:
        self.told.append(str(action))
        self._during.get(str(action), lambda: None)()
        if str(action) in self.errors:
            raise self.errors[str(action)]

    def begin(self, action: Action) -> Pending:
        self.told.append(f"begin {action}")
        return Pending([Message(str(action), self.told.append, self.errors.get(str(action)))])

    @property
    def computed(self) -> list[str]:
        return [told for told in self.told if " " not in told]

    def before(self, told: str) -> list[str]:
        return self.told[: self.told.index(told)]


def a_list(schedule: ScheduleName, stage: int, num_stages: int, num_grains: int) -> tuple[Action, ...]:
    """What one member of a single replica does; its gradients are reduced in two messages."""
    shape = StepShape(schedule, num_stages, buckets=(2,) * num_stages)
    return shape.step([range(num_grains)]).lists[0][stage]


def run(actor: Actor, actions: Sequence[Action], abort: Abort | None = None) -> Timeline:
    return Executor("r0s0", actor, abort or Abort()).run(actions, needs_of(actions)).timeline()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_computing_keeps_the_order_and_nothing_begins_before_what_it_needs(schedule: ScheduleName, stage: int) -> None:
    actions = a_list(schedule, stage, 3, 9)
    actor = Actor()
    run(actor, actions)
    assert actor.computed == [str(action) for action in actions if action.lane is Lane.COMPUTE]

    def first_word(action: Action) -> str:
        return str(action) if action.lane is Lane.COMPUTE else f"begin {action}"

    def last_word(action: Action) -> str:
        return str(action) if action.lane is Lane.COMPUTE else f"end {action}"

    for action, needed in needs_of(actions).items():
        assert {last_word(before) for before in needed} <= set(actor.before(first_word(action)))
    words = [word for action in actions for word in dict.fromkeys((first_word(action), last_word(action)))]
    assert sorted(actor.told) == sorted(words), "each began once and ended once"


def test_receives_begin_ahead_of_computing() -> None:
    actor = Actor()
    run(actor, a_list("gpipe", 1, 2, 6))
    ahead = [f"begin 1RECV_F{grain}" for grain in range(RECEIVES_AHEAD)]
    assert actor.before("end 1RECV_F0") == ahead
    further = f"begin 1RECV_F{RECEIVES_AHEAD}"
    assert actor.told.index(further) == actor.told.index("1F0") + 1, "as soon as there is room"


def test_sends_hold_up_computing_only_when_too_many_are_on_their_way() -> None:
    """Here a message ends when somebody waits for it, and not before."""
    actor = Actor()
    run(actor, a_list("gpipe", 0, 2, 8))
    computed = [word for word in actor.before("end 0SEND_F0") if " " not in word]
    assert computed == [f"0F{grain}" for grain in range(SENDS_BEHIND)]
    begun = [word for word in actor.before("end 0SEND_F0") if word.startswith("begin 0SEND")]
    assert begun == [f"begin 0SEND_F{grain}" for grain in range(SENDS_BEHIND)]


def test_a_late_message_holds_up_only_what_needs_it() -> None:
    actor = Actor()
    run(actor, a_list("1f1b", 1, 3, 4))
    assert actor.computed[:3] == ["1F0", "1F1", "1B0"]
    assert actor.told.index("end 1RECV_B0") == actor.told.index("1B0") - 1
    assert "1F1" in actor.before("end 1RECV_B0")


def test_reduces_begin_when_the_last_backward_has_ended_and_its_gradients_are_gone() -> None:
    first, last = Actor(), Actor()
    run(first, a_list("1f1b", 0, 2, 3))
    reduces = ["begin 0REDUCE0", "begin 0REDUCE1", "end 0REDUCE0", "end 0REDUCE1"]
    assert [word for word in first.told if "SEND" not in word][-6:] == ["0B2", *reduces, "0COMMIT"]
    run(last, a_list("1f1b", 1, 2, 3))
    assert last.told[-6:-3] == ["end 1SEND_B2", "begin 1REDUCE0", "begin 1REDUCE1"]
    assert last.told[-1] == "1COMMIT"


def test_an_error_in_computing_ends_the_step_there() -> None:
    actor = Actor(errors={"0F2": ZeroDivisionError("a loss of none")})
    with pytest.raises(ZeroDivisionError, match="a loss of none"):
        run(actor, a_list("gpipe", 0, 2, 6))
    assert actor.computed == ["0F0", "0F1", "0F2"]
    assert actor.told[-1] == "0F2"


def test_an_error_of_a_message_is_raised_where_it_is_needed() -> None:
    actor = Actor(errors={"0RECV_B1": PeerLost("r0s1 is gone")})
    with pytest.raises(PeerLost, match="r0s1 is gone"):
        run(actor, a_list("gpipe", 0, 2, 3))
    assert actor.computed == ["0F0", "0F1", "0F2", "0B0"]


def test_the_same_executor_runs_a_step_again() -> None:
    """What a failed step left under way does not disturb the next one."""
    actions = a_list("1f1b", 0, 2, 3)
    actor = Actor(errors={"0B1": RuntimeError("once")})
    executor = Executor("r0s0", actor, Abort())
    with pytest.raises(RuntimeError, match="once"):
        executor.run(actions, needs_of(actions))
    undisturbed = Actor()
    run(undisturbed, actions)
    actor.errors.clear()
    actor.told.clear()
    executor.run(actions, needs_of(actions))
    assert actor.told == undisturbed.told


def test_an_abort_stops_it_between_two_actions() -> None:
    abort, set_at_s = Abort(), list[float]()

    def set_it() -> None:
        set_at_s.append(time.perf_counter())
        abort.set("the roster changes")

    def from_another_thread() -> None:
        thread = threading.Thread(target=set_it)
        thread.start()
        thread.join()

    actor = Actor(during={"0F2": from_another_thread})
    with pytest.raises(CommAborted, match="the roster changes"):
        run(actor, a_list("gpipe", 0, 2, 6), abort)
    assert time.perf_counter() - set_at_s[0] < STOP_S
    assert actor.computed == ["0F0", "0F1", "0F2"]


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_an_abort_stops_it_while_it_waits_for_a_message(kind: str, tmp_path: Path) -> None:
    """Over a real group, whose other rank never sends."""
    waits = threading.Event()
    raised_at_s: list[float] = []

    class Waiting(Pending):
        def wait(self) -> None:
            waits.set()
            super().wait()

    with Opener(kind, tmp_path)(2) as ranks:
        group, abort = ranks.groups[0], ranks.aborts[0]

        class Receiver(Actor):
            def begin(self, action: Action) -> Pending:
                assert action.number is not None
                return Waiting([group.recv([torch.zeros(3)], 1, action.number)])

        def play() -> None:
            with pytest.raises(CommAborted, match="the roster changes"):
                run(Receiver(), a_list("gpipe", 1, 2, 2), abort)
            raised_at_s.append(time.perf_counter())

        thread = threading.Thread(target=play)
        thread.start()
        assert waits.wait(10)
        set_at_s = time.perf_counter()
        abort.set("the roster changes")
        thread.join(10)
    assert raised_at_s[0] - set_at_s < STOP_S


def test_the_timeline_has_every_action_once() -> None:
    actions = a_list("1f1b", 1, 3, 5)
    timeline = run(Actor(), actions)
    assert sorted(interval.action for interval in timeline.intervals) == sorted(map(str, actions))
    assert all(i.lane == parse_action(i.action).lane.value for i in timeline.intervals)
    computing = [i for i in timeline.intervals if i.lane == "compute"]
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(computing))


def test_a_message_is_timed_by_its_bytes_and_not_by_who_waits_for_it() -> None:
    """The second goes the same way as the first, and has it to itself only when that has ended."""
    first, second = Completion(), Completion()
    sent = Pending([TransferWork(first, [], "send")])
    behind = Pending([TransferWork(second, [], "send")], after=sent)
    first.end()
    second.end()
    waited_from_s = time.perf_counter()
    sent.wait()
    behind.wait()
    assert first.ended_s is not None
    assert (sent.start_s, sent.end_s) == (first.made_s, first.ended_s)
    assert (behind.start_s, behind.end_s) == (first.ended_s, second.ended_s)
    assert behind.end_s <= waited_from_s


class TestLostReplica:
    """A reduce that fails because another pipeline has lost a member does not keep this one from finishing."""

    actions = a_list("1f1b", 0, 2, 2)

    def failing(self, *names: str) -> tuple[Executor, Actor]:
        actor = Actor(errors={name: PeerLost("a replica is lost") for name in names})
        executor = Executor("r0s0", actor, Abort())
        with pytest.raises(PeerLost):
            executor.run(self.actions, needs_of(self.actions))
        return executor, actor

    def test_messages_are_waited_for_all_the_same(self) -> None:
        reduce = next(str(action) for action in self.actions if action.kind is Kind.REDUCE)
        executor, actor = self.failing(reduce)
        assert executor.has_computed
        messages = [f"end {action}" for action in self.actions if action.kind in MESSAGES]
        assert set(messages) <= set(actor.told)

    def test_a_message_that_fails_means_that_something_is_missing(self) -> None:
        received = next(str(action) for action in self.actions if action.kind is Kind.RECEIVE_BACKWARD)
        executor, _ = self.failing(received)
        assert not executor.has_computed
