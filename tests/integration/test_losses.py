"""Members that are killed while they train: the others go on, and the run is the one that it would have been."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch

import zooid
from tests.integration.hooked_jobs import EVALUATION, write_hooked_job
from tests.integration.recording import RecordingPlatform, still_running
from zooid.coordinator.runs.run_progress import RunResult
from zooid.core.errors import MemberFailed
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.runs import keys
from zooid.core.runs.events import Evaluated, Event, MemberExited, RosterChanged, StepCommitted
from zooid.platforms import Launch
from zooid.store import open_store, read_history

pytestmark = pytest.mark.timeout(120)

Kind = TypeVar("Kind", StepCommitted, Evaluated, MemberExited, RosterChanged)

TOLERANCE = 1e-9
EPOCHS = 12


@dataclass
class Run:
    """A run whose members are killed, by name, after the steps that are given."""

    folder: Path
    layout: tuple[int, int]
    kills: Sequence[tuple[int, str]] = ()
    transport: TransportName = "tcp"
    fault: signal.Signals = signal.SIGKILL
    is_insured: bool = False
    platform: RecordingPlatform = field(default_factory=RecordingPlatform)
    seen: list[Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def train(self, job_file: Path) -> RunResult:
        left = list(self.kills)

        def watch(event: Event) -> None:
            self.seen.append(event)
            if isinstance(event, StepCommitted) and left and event.step >= left[0][0]:
                os.kill(self.platform.pids[left.pop(0)[1]], self.fault)

        limits = Limits(
            num_replicas=self.layout[0],
            num_stages=self.layout[1],
            transport=self.transport,
            max_members=6,
            insured=self.is_insured,
        )
        result = zooid.train(
            job_file, store=self.url, limits=limits, profile=False, on_event=watch, platform=self.platform
        )
        assert not left, "every fault happened"
        return result

    def state(self) -> dict[str, torch.Tensor]:
        return zooid.load_checkpoint(self.url)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.seen if isinstance(event, kind)]


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    return write_hooked_job(folder / "job.py", fields={**EVALUATION, "epochs": str(EPOCHS)})


@pytest.fixture(scope="module")
def undisturbed(job_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Run]:
    run = Run(tmp_path_factory.mktemp("undisturbed"), (1, 1))
    return run.train(job_file), run


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
CASES = [
    ("tcp", STOP, (2, 1), [(3, "r1s0")]),
    ("tcp", KILL, (4, 1), [(2, "r0s0"), (9, "r1s0")]),
    ("tcp", KILL, (3, 2), [(2, "r1s0"), (8, "r0s1")]),
    ("store", KILL, (2, 2), [(4, "r0s0")]),
    ("tcp", KILL, (1, 2), [(3, "r0s0"), (9, "r0s1")]),
]
"""The last one is insured."""


@pytest.mark.parametrize(
    ("transport", "fault", "layout", "kills"), CASES, ids=lambda value: str(value).replace(" ", "")
)
def test_the_others_go_on_as_if_nothing_had_happened(
    transport: TransportName,
    fault: signal.Signals,
    layout: tuple[int, int],
    kills: list[tuple[int, str]],
    job_file: Path,
    undisturbed: tuple[RunResult, Run],
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, layout, kills, transport, fault, is_insured=layout[0] == 1)
    result = run.train(job_file)
    assert [event.member for event in run.of(MemberExited)] == [name for _, name in kills]
    assert sum(event.ruling != "planned" for event in run.of(RosterChanged)) == len(kills)
    expected, plain = undisturbed
    assert result.losses == pytest.approx(expected.losses, abs=TOLERANCE)
    found, wanted = run.state(), plain.state()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0.0, atol=TOLERANCE)
    history = read_history(open_store(run.url))
    for kind in ("step_committed", "evaluated"):
        expected_steps = steps_of(plain.seen, kind)
        assert steps_of(history, kind) == expected_steps, "each once, and in order"
        was_rolled_back = any(event.ruling == "rolled_back" for event in run.of(RosterChanged))
        assert not (was_rolled_back and run.is_insured)
        assert was_rolled_back or steps_of(run.seen, kind) == expected_steps
        assert set(steps_of(run.seen, kind)) == set(expected_steps)
    assert still_running(list(run.platform.pids.values())) == []
    assert open_store(run.url).list(keys.COMM) == []


def steps_of(events: list[Event], kind: str) -> list[int]:
    steps = [event for event in events if isinstance(event, StepCommitted | Evaluated)]
    return [event.step for event in steps if event.__struct_config__.tag == kind]


def test_a_pipeline_without_replicas_ends_with_the_name_of_who_was_killed(job_file: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, (1, 2), [(3, "r0s1")])
    with pytest.raises(MemberFailed) as caught:
        run.train(job_file)
    assert str(caught.value) == "member r0s1 was killed by signal 9 (SIGKILL)"
    assert still_running(list(run.platform.pids.values())) == []


class KillingPlatform(RecordingPlatform):
    """Kills the second member as soon as it is launched."""

    def create(self, launches: Sequence[Launch]) -> None:
        super().create(launches)
        if any(launch.member == "r1s0" for launch in launches):
            os.kill(self.pids["r1s0"], signal.SIGKILL)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", ["tcp", "store"])
def test_a_member_that_is_lost_before_it_connects_ends_the_run_at_once(
    job_file: Path, tmp_path: Path, transport: TransportName
) -> None:
    """The others would wait for it until their timeout, which is two minutes."""
    run = Run(tmp_path, (3, 1), transport=transport, platform=KillingPlatform())
    with pytest.raises(MemberFailed, match="r1s0 was killed by signal 9"):
        run.train(job_file)
    assert [event.member for event in run.of(MemberExited)] == ["r1s0"]
    assert still_running(list(run.platform.pids.values())) == []
