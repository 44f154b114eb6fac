"""A run that a person stops, from any machine and with or without a coordinator: nothing is lost, and it goes on."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import zooid
from lab.waiting import wait_until
from tests.integration.interpreters import run_zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from tests.integration.test_adoption import (
    HOLD,
    NUM_STEPS,
    PAUSED_STEP,
    SILENCE_S,
    Coordinator,
    Scene,
    ended,
    pause,
    paused,
)
from tests.processes import is_gone
from zooid.coordinator import StoppedRun
from zooid.coordinator.runs import lease, observer, supervision
from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.plans.plan import TransportName
from zooid.core.records import decode_record
from zooid.core.runs import keys, liveness
from zooid.core.runs.events import StoppedEarly
from zooid.core.runs.stop_request import STOPPED_BY_REQUEST, StopRequest
from zooid.store import read_history
from zooid.store.checkpoint_index import last_step

pytestmark = pytest.mark.timeout(120)

STOPPED_STEP = PAUSED_STEP + 2
"""The request is found while the first member reports the paused step, and travels with the vote of the next."""
WISHES = f"""
def hold_and_wish(event):
    hold(event)
    return zooid.Wish.KEEP_BEST if event.step == {STOPPED_STEP - 1} else None

"""
"""A wish that the vote of the next step would carry, if there were one."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    fields = {"epochs": str(NUM_STEPS // 4), "on_event": "hold_and_wish"}
    job_file = write_job(tmp_path_factory.mktemp("job") / "job.py", extra=HOLD + WISHES, fields=fields)
    return job_file, train_composed_layers(job_file)


@pytest.fixture
def scene(job: tuple[Path, Trained], tmp_path: Path) -> Iterator[Scene]:
    with ended(Scene((tmp_path / "run").as_uri(), *job)) as made:
        yield made


class Stopping:
    """A thread that stops a run as `zooid stop` does, and keeps what comes of it."""

    def __init__(self, url: str) -> None:
        self.stopped: StoppedRun | None = None
        self.is_asked = threading.Event()
        self._thread = threading.Thread(target=self._stop, args=(url,), daemon=True)
        self._thread.start()

    def _stop(self, url: str) -> None:
        self.stopped = zooid.stop(url, on_look=lambda observed: self.is_asked.set())

    def join(self) -> StoppedRun:
        self._thread.join(60)
        assert self.stopped is not None, "it has stopped"
        return self.stopped


def train_and_pause(scene: Scene, transport: TransportName = "tcp") -> Coordinator:
    """Train in two members until the first waits in the paused step."""
    if transport == "store":
        plan = plan_by_hand(scene.job_file, num_replicas=1, transport=transport)
    else:
        plan = plan_by_hand(scene.job_file, num_replicas=2, cuts=(), transport=transport)
    coordinator = scene.start(plan)
    wait_until(coordinator.has_told(PAUSED_STEP))
    return coordinator


def has_found_request(scene: Scene, member: str = "r0s0") -> Callable[[], bool]:
    """Whether the member says in its log that it has found the request."""

    def has_found() -> bool:
        with suppress(ObjectNotFound):
            return b"asks to stop" in bytes(scene.store.get(keys.log(member, 0)))
        return False

    return has_found


def check_stopped(scene: Scene, stopped: StoppedRun, pids: dict[str, int]) -> None:
    """The run has ended with a checkpoint after the step in flight, and can be resumed."""
    assert (stopped.step, stopped.num_steps) == (STOPPED_STEP, NUM_STEPS)
    assert stopped.reason == STOPPED_BY_REQUEST
    assert stopped.can_resume
    assert stopped.checkpoint == f"{scene.url}/{keys.checkpoint(STOPPED_STEP)}"
    assert last_step(scene.store) == STOPPED_STEP
    wait_until(lambda: all(map(is_gone, pids.values())))
    [event] = [event for event in read_history(scene.store) if isinstance(event, StoppedEarly)]
    assert (event.step, event.by_request) == (STOPPED_STEP, True)
    assert scene.store.list(keys.REQUESTS) == []


def check_resumed(scene: Scene, forking: RecordingPlatform) -> None:
    """The stopped run goes on to its last step, and ends as an undisturbed run does."""
    result = zooid.resume(scene.url, platform=forking)
    assert result.stopped == ""
    assert len(result.losses) == NUM_STEPS - STOPPED_STEP
    assert result.best_checkpoint == f"{scene.url}/{keys.checkpoint(STOPPED_STEP)}", "a wish is not lost, either"
    scene.check()


def test_a_stopped_run_goes_on_as_if_nothing_had_been(scene: Scene, forking: RecordingPlatform) -> None:
    with paused(scene):
        coordinator = train_and_pause(scene, "tcp")
        pids = scene.pids()
        assert len(pids) == 2
        both = [Stopping(scene.url), Stopping(scene.url)]
        assert all(stopping.is_asked.wait(10) for stopping in both)
        request = decode_record(bytes(scene.store.get(keys.stop_request(0))), StopRequest, "the request")
        assert request.asked_from
        wait_until(has_found_request(scene))
    first, second = (stopping.join() for stopping in both)
    assert first == second, "two may ask"
    coordinator.join()
    assert coordinator.error is None, "it ends as after any run"
    check_stopped(scene, first, pids)
    again = rf"is stopped already, after 8 of 24 steps; to continue: zooid resume {scene.url}"
    with pytest.raises(InputError, match=again):
        zooid.stop(scene.url)
    check_resumed(scene, forking)
    with pytest.raises(InputError, match=r"is complete after 24 of 24 steps, so there is nothing to stop"):
        zooid.stop(scene.url)


@pytest.mark.parametrize(("transport", "is_killed"), [("gloo", False), ("store", True)], ids=["coordinated", "killed"])
def test_it_works_from_another_machine(
    scene: Scene,
    forking: RecordingPlatform,
    transport: TransportName,
    is_killed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever stops the run sees no process of it, only what they write; no coordinator is needed."""
    monkeypatch.setattr(liveness, "_machine", lambda: "another machine")
    if is_killed:
        for module in (lease, observer):
            monkeypatch.setattr(module, "SILENCE_S", SILENCE_S)
    with paused(scene):
        coordinator = train_and_pause(scene, transport)
        found = has_found_request(scene)
        pids = scene.pids()
        if is_killed:
            coordinator.kill()
        stopping = Stopping(scene.url)
        wait_until(found)
    check_stopped(scene, stopping.join(), pids)
    monkeypatch.undo()
    monkeypatch.setattr(supervision, "GRACE_S", 0.1)  # all members are gone
    check_resumed(scene, forking)


def test_the_next_first_member_finds_the_request(scene: Scene) -> None:
    """The first one is lost after it has found the request, and before it could tell the others."""
    with paused(scene):
        train_and_pause(scene)
        pids = scene.pids()
        stopping = Stopping(scene.url)
        wait_until(has_found_request(scene))
        os.kill(pids["r0s0"], signal.SIGKILL)
        pause(scene, PAUSED_STEP + 3)  # the survivor would be done before it looks
        wait_until(has_found_request(scene, "r1s0"))
    stopped = stopping.join()
    assert stopped.step == PAUSED_STEP + 5
    assert stopped.can_resume


def test_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    ended = run_zooid("stop", tmp_path.as_uri(), cwd=tmp_path)
    assert ended.returncode == 2
    assert "holds no run; give the folder that `zooid train` got with --store" in ended.stderr
