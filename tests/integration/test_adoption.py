"""Coordinators that die while their members train: the members go on, and another coordinator adopts them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

import zooid
from lab.members import pids_in
from lab.waiting import wait_until
from tests.integration.interpreters import fork_zygote
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.ranks import FORKING
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from tests.processes import is_gone
from zooid.coordinator.runs import adoption, lease, resumed_run, supervision
from zooid.core.errors import InputError, ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys, liveness
from zooid.core.runs.events import Event, MemberExited, MembersAdopted, RosterChanged, StepCommitted
from zooid.store import ObjectStore, open_store, read_history

pytestmark = pytest.mark.timeout(120)

TOLERANCE = 1e-9
NUM_STEPS = 24
PAUSED_STEP = 6
SILENCE_S = 1.0
"""After this time a coordinator that is not heard of is dead, in these tests."""
HOLD = """
import time
from pathlib import Path


def hold(event):
    while holds(event.step):
        print("waiting")
        time.sleep(0.1)


def holds(step):
    try:
        return int(Path(__file__).with_name("pause").read_text()) == step
    except FileNotFoundError:
        return False

"""
"""The first member waits after the step that a file names until the file is gone, and says so."""


@dataclass
class Coordinator:
    """A process that trains or resumes a run, and tells what it sees."""

    process: Any
    end: Connection
    seen: list[Event] = field(default_factory=list)
    error: tuple[str, str] | None = None
    launched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while True:
            try:
                kind, value = self.end.recv()
            except (EOFError, OSError):
                return
            if kind == "event":
                self.seen.append(value)
            else:
                setattr(self, kind, value)
            if kind == "launched":
                return

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def join(self) -> None:
        """Wait until it has ended by itself, and has told everything."""
        self.process.join(60)
        assert self.process.exitcode is not None, "it ends"
        self._listener.join()

    def has_told(self, step: int) -> Callable[[], bool]:
        return lambda: step in self.steps()

    def has_adopted(self) -> bool:
        return any(isinstance(event, MembersAdopted) for event in self.seen)

    def steps(self) -> list[int]:
        return [event.step for event in self.seen if isinstance(event, StepCommitted)]


def coordinate(
    url: str, job_file: Path | None, plan: Plan | None, parent: Connection, barrier: Barrier | None, is_elsewhere: bool
) -> None:
    """What runs in the process of a coordinator."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_zygote()
    platform = RecordingPlatform()
    for module in (lease, adoption):
        vars(module)["SILENCE_S"] = SILENCE_S
    if is_elsewhere:
        vars(liveness)["_machine"] = lambda: "another machine"
    if barrier is not None:
        find = vars(resumed_run)["find_orphans"]

        def find_at_once(*given: Any) -> Any:
            found = find(*given)
            barrier.wait()
            return found

        vars(resumed_run)["find_orphans"] = find_at_once
    try:
        if job_file is None:
            zooid.resume(url, on_event=lambda event: parent.send(("event", event)), platform=platform)
        else:
            tell: Callable[[Event], None] = lambda event: parent.send(("event", event))  # noqa: E731
            zooid.train(job_file, store=url, plan=plan, on_event=tell, platform=platform)
    except (ZooidError, KeyboardInterrupt) as error:
        parent.send(("error", (type(error).__name__, str(error))))
    parent.send(("launched", platform.launched))
    parent.close()


@dataclass
class Scene:
    """One run, and everybody who coordinates it."""

    url: str
    job_file: Path
    reference: Trained
    coordinators: list[Coordinator] = field(default_factory=list)

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url)

    def start(
        self, plan: Plan | None = None, barrier: Barrier | None = None, *, is_elsewhere: bool = False
    ) -> Coordinator:
        """A coordinator that trains by the plan; without one, it resumes."""
        own_end, its_end = FORKING.Pipe(duplex=False)
        job_file = None if plan is None else self.job_file
        process = FORKING.Process(target=coordinate, args=(self.url, job_file, plan, its_end, barrier, is_elsewhere))
        process.start()
        its_end.close()
        self.coordinators.append(Coordinator(process, own_end))
        return self.coordinators[-1]

    def pids(self) -> dict[str, int]:
        """Processes of members, as the store says."""
        return pids_in(self.store)

    def objects(self) -> list[str]:
        """All that lies in the run's folder, but for what members and coordinators tell."""
        return [key for key in self.store.list("") if not key.startswith(f"{keys.EVENTS}/")]

    def has_members(self, pids: dict[str, int]) -> bool:
        """Whether all of these processes run; False where none does. Anything else is a failure."""
        num_gone = sum(is_gone(pid) for pid in pids.values())
        assert num_gone in (0, len(pids))
        return num_gone == 0

    def check(self) -> None:
        """The run is the one that it would have been, and has left nothing behind."""
        assert self.reference.weight_difference(self.url) <= TOLERANCE
        told = [event.step for event in read_history(self.store) if isinstance(event, StepCommitted)]
        assert told == list(range(NUM_STEPS)), "each step once, and in order"
        for folder in (keys.COMM, keys.LEASES, keys.HANDLES, keys.ANSWERS):
            assert self.store.list(folder) == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    fields = {"epochs": str(NUM_STEPS // 4), "on_event": "hold"}
    job_file = write_job(tmp_path_factory.mktemp("job") / "job.py", extra=HOLD, fields=fields)
    return job_file, train_composed_layers(job_file)


@contextmanager
def ended(made: Scene) -> Iterator[Scene]:
    """A scene whose processes are killed in the end, whatever has happened."""
    pids: dict[str, int] = {}
    try:
        yield made
        pids = made.pids()
    finally:
        for coordinator in made.coordinators:
            coordinator.process.kill()
        for pid in pids.values():
            if not is_gone(pid):
                os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def scene(job: tuple[Path, Trained], tmp_path: Path) -> Iterator[Scene]:
    with ended(Scene((tmp_path / "run").as_uri(), *job)) as made:
        yield made


@contextmanager
def paused(scene: Scene, at_step: int = PAUSED_STEP) -> Iterator[None]:
    """Inside, members go no further than to the paused step."""
    pause(scene, at_step)
    try:
        yield
    finally:
        pause_file(scene).unlink(missing_ok=True)


def pause(scene: Scene, at_step: int) -> None:
    """Let members go no further than to this step; who is paused elsewhere goes on."""
    new = pause_file(scene).with_name("pause.new")
    new.write_text(str(at_step))
    new.rename(pause_file(scene))


def pause_file(scene: Scene) -> Path:
    return scene.job_file.with_name("pause")


def test_members_go_on_to_the_end_without_any_coordinator(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without a member that is lost after it."""
    with paused(scene):
        first = scene.start(plan_by_hand(scene.job_file, num_replicas=2, cuts=(), transport="tcp"))
        wait_until(first.has_told(PAUSED_STEP))
        first.kill()
        pids = scene.pids()
        os.kill(pids["r1s0"], signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, pids.values())))
    wait_until(lambda: scene.pids() == {})  # until then, their ends are being recorded
    assert any(isinstance(event, RosterChanged) for event in read_history(scene.store))
    monkeypatch.setattr(supervision, "GRACE_S", 0.1)
    with pytest.raises(InputError, match="is complete: its checkpoint has all 24 steps"):
        zooid.resume(scene.url)
    scene.check()


def test_another_coordinator_adopts_them(scene: Scene) -> None:
    with paused(scene):
        first = scene.start(plan_by_hand(scene.job_file, num_replicas=2))
        wait_until(first.has_told(PAUSED_STEP))
        first.kill()
        pids = scene.pids()
        assert len(pids) == 4
        second = scene.start()
        wait_until(second.has_adopted)
        assert scene.pids() == pids
        assert scene.has_members(pids)
    second.join()
    assert second.error is None
    assert second.launched == [], "nobody starts anew"
    [adopted] = [event for event in second.seen if isinstance(event, MembersAdopted)]
    assert (adopted.members, adopted.step) == (("r0s0", "r0s1", "r1s0", "r1s1"), PAUSED_STEP + 1)
    steps = second.steps()
    assert steps == list(range(steps[0], NUM_STEPS)), "each once"
    assert steps[0] <= PAUSED_STEP + 1, "none is left out"
    assert not scene.has_members(pids)
    scene.check()


def test_members_may_be_lost_before_and_after_the_adoption(scene: Scene) -> None:
    with paused(scene, at_step=2):
        first = scene.start(plan_by_hand(scene.job_file, num_replicas=3, cuts=(), transport="tcp"))
        wait_until(first.has_told(2))
        pids = scene.pids()
        os.kill(pids["r1s0"], signal.SIGKILL)
        pause(scene, PAUSED_STEP)
        wait_until(lambda: any(isinstance(event, RosterChanged) for event in first.seen))
        wait_until(first.has_told(PAUSED_STEP))
        first.kill()
        second = scene.start()
        wait_until(second.has_adopted)
        os.kill(pids["r2s0"], signal.SIGKILL)
    second.join()
    assert second.error is None
    [lost] = [event for event in second.seen if isinstance(event, MemberExited) and event.member == "r2s0"]
    assert lost.exit_text == "was killed by signal 9 (SIGKILL)", "though another coordinator has started it"
    scene.check()


def test_requests_are_carried_out_after_an_adoption(scene: Scene) -> None:
    """Also one that the dead coordinator has left undone. One that it has carried out is not done again."""
    with paused(scene, at_step=2):
        first = scene.start(plan_by_hand(scene.job_file, num_replicas=2, cuts=(), transport="tcp"))
        wait_until(first.has_told(2))
        zooid.scale(scene.url, 1, 1)
        wait_until(lambda: bool(scene.store.list(keys.changes_under(0, 0))))
        walk(scene, first, 3, 10)
        wait_until(lambda: not scene.store.list(keys.requests_under(0)))
        first.kill()
        zooid.scale(scene.url, 2, 1)
        second = scene.start()
        wait_until(lambda: bool(scene.store.list(keys.changes_under(0, 1))))
        walk(scene, second, 11, 20)
    second.join()
    assert second.error is None
    assert second.launched == ["r1s0-1"]
    changes = [event.members for event in read_history(scene.store) if isinstance(event, RosterChanged)]
    assert changes == [("r0s0",), ("r0s0", "r1s0-1"), ("r0s0", "r1s0-1")]
    scene.check()


def walk(scene: Scene, coordinator: Coordinator, first_step: int, last_step: int) -> None:
    """Let members go on slowly, step by step."""
    for step in range(first_step, last_step + 1):
        pause(scene, step)
        wait_until(coordinator.has_told(step))


def test_a_coordinator_that_was_stopped_and_replaced_changes_nothing(scene: Scene) -> None:
    with paused(scene):
        first = scene.start(plan_by_hand(scene.job_file))
        wait_until(first.has_told(PAUSED_STEP))
        pids = scene.pids()
        first.signal(signal.SIGSTOP)
        second = scene.start()
        wait_until(second.has_adopted)
        before = scene.objects()
        first.signal(signal.SIGCONT)
        first.join()
        assert first.error is not None
        assert first.error[0] == "Superseded"
        assert scene.has_members(pids)
        assert scene.objects() == before
    second.join()
    assert second.error is None
    assert second.launched == []
    scene.check()


def test_of_two_who_adopt_at_once_one_wins_and_can_end_them(scene: Scene) -> None:
    with paused(scene):
        first = scene.start(plan_by_hand(scene.job_file))
        wait_until(first.has_told(PAUSED_STEP))
        pids = scene.pids()
        first.kill()
        barrier = FORKING.Barrier(2)
        both = [scene.start(barrier=barrier), scene.start(barrier=barrier)]
        wait_until(lambda: any(each.has_adopted() for each in both))
        [winner] = [each for each in both if each.has_adopted()]
        [loser] = [each for each in both if each is not winner]
        loser.join()
        assert loser.error is not None
        assert "another coordinator has just taken over the run" in loser.error[1]
        assert scene.has_members(pids)
        winner.signal(signal.SIGINT)
        winner.join()
        assert winner.error == ("KeyboardInterrupt", "")
        assert not scene.has_members(pids)
        assert scene.store.list(keys.LEASES) == scene.store.list(keys.HANDLES) == scene.store.list(keys.COMM) == []


def test_members_of_another_machine_are_heard_and_ended_through_the_store(scene: Scene) -> None:
    with paused(scene):
        first = scene.start(plan_by_hand(scene.job_file, cuts=()))
        wait_until(first.has_told(PAUSED_STEP))
        pids = scene.pids()
        first.kill()
        second = scene.start(is_elsewhere=True)
        wait_until(second.has_adopted)
        assert second.launched == []
        second.signal(signal.SIGINT)
        second.join()
    assert second.error == ("KeyboardInterrupt", "")
    assert not scene.has_members(pids)
    assert scene.store.list(keys.LEASES) == scene.store.list(keys.HANDLES) == scene.store.list(keys.COMM) == []
