"""Members join, leave and hand over while a run trains: no step is lost, and the result is that of a calm run."""

import itertools
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from msgspec import structs

import zooid
from tests.integration.recording import RecordingPlatform, still_running
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.run_progress import RunResult
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import Event, MemberExited, RosterChanged, StepCommitted
from zooid.store import open_store, read_history
from zooid.store.rosters import last_roster
from zooid.worker.checkpoints.contents import open_checkpoint, read_optimizer_tensors

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
GRAIN_S = 0.004
NUM_STEPS = 160
JOB = """
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)


def build_model():
    torch.manual_seed(0)
    shared = nn.Linear(32, 32)
    middle = [shared, nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), shared, nn.Tanh()]
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Tanh(), *middle, nn.Linear(32, 3))


def build_data():
    chance = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(640, 20, generator=chance), torch.randint(0, 3, (640,), generator=chance))


def loss(output, target):
    time.sleep(GRAIN_S)
    return F.cross_entropy(output, target)


job = zooid.Job(
    model=build_model,
    loss=loss,
    data=build_data,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5),
    batch_size=32,
    grain_size=4,
    epochs=8,
    clip_norm=1.0,
    evaluation=lambda: torch.utils.data.Subset(build_data(), range(32)),
)
"""


@dataclass
class Run:
    """A run that is asked for other layouts after the given steps, and whose members may be killed."""

    folder: Path
    layout: tuple[int, int]
    asks: Sequence[tuple[int, tuple[int, int]]] = ()
    transport: TransportName = "tcp"
    victims: Sequence[tuple[str, int]] = ()
    """Members to kill: a name, and the change of the roster under which it dies."""
    kills: Sequence[tuple[int, str]] = ()
    """Members that are killed after the given steps."""
    notices: Sequence[tuple[int, str]] = ()
    """Members that get a notice after the given steps."""
    platform: RecordingPlatform = field(default_factory=RecordingPlatform)
    seen: list[Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return (self.folder / "run").as_uri()

    def train(self, job: str = JOB) -> RunResult:
        left, victims, notices = list(self.asks), list(self.victims), list(self.notices)
        kills = list(self.kills)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "job.py").write_text(job.replace("GRAIN_S", str(GRAIN_S if left or notices or kills else 0.0)))

        def watch(event: Event) -> None:
            self.seen.append(event)
            if isinstance(event, StepCommitted) and left and event.step >= left[0][0]:
                zooid.scale(self.url, *left.pop(0)[1])
            if isinstance(event, StepCommitted) and kills and event.step >= kills[0][0]:
                os.kill(self.platform.pids[kills.pop(0)[1]], signal.SIGKILL)
            if isinstance(event, StepCommitted) and notices and event.step >= notices[0][0]:
                os.kill(self.platform.pids[notices.pop(0)[1]], signal.SIGUSR1)
            if isinstance(event, RosterChanged) and victims and event.change >= victims[0][1]:
                os.kill(self.platform.pids[victims.pop(0)[0]], signal.SIGKILL)

        result = zooid.train(
            self.folder / "job.py",
            store=self.url,
            limits=Limits(num_replicas=self.layout[0], num_stages=self.layout[1], transport=self.transport),
            profile=False,
            on_event=watch,
            platform=self.platform,
        )
        assert not left
        assert not victims
        return result

    def changes(self) -> list[RosterChanged]:
        return [event for event in self.seen if isinstance(event, RosterChanged)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[float, ...], dict[str, torch.Tensor]]:
    run = Run(tmp_path_factory.mktemp("calm"), (1, 1))
    result = run.train()
    assert len(result.losses) == NUM_STEPS
    return result.losses, {**zooid.load_checkpoint(run.url), **momentum(run.url)}


def momentum(url: str) -> dict[str, torch.Tensor]:
    store, manifest = open_checkpoint(url)
    names = [name for shard in manifest.optimizer for name in shard.names]
    return dict(read_optimizer_tensors(store, manifest, names))


def check_equal(run: Run, result: RunResult, calm: tuple[tuple[float, ...], dict[str, torch.Tensor]]) -> None:
    """Every step was trained and told once, and the run ended as the calm one."""
    losses, tensors = calm
    assert result.losses == pytest.approx(losses, abs=TOLERANCE)
    own = {**zooid.load_checkpoint(run.url), **momentum(run.url)}
    assert own.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.allclose(own[name].double(), tensor.double(), rtol=0, atol=TOLERANCE), name
    steps = [event.step for event in read_history(open_store(run.url)) if isinstance(event, StepCommitted)]
    assert steps == list(range(NUM_STEPS))
    assert not still_running(list(run.platform.pids.values()))


@pytest.mark.parametrize("transport", ["tcp", "store"])
def test_members_join_and_leave(
    tmp_path: Path, transport: TransportName, calm: tuple[tuple[float, ...], dict[str, torch.Tensor]]
) -> None:
    run = Run(tmp_path / "run", (1, 1), [(5, (3, 1)), (25, (2, 1)), (35, (1, 1))], transport)
    result = run.train()
    check_equal(run, result, calm)
    rulings = {change.ruling for change in run.changes()}
    assert rulings == {"planned"}
    sizes = [len(change.members) for change in run.changes()]  # a loaded machine may change shares, too
    assert [size for size, _ in itertools.groupby(sizes)] == [3, 2, 1]
    assert not [event for event in run.seen if isinstance(event, MemberExited)]


@pytest.mark.parametrize("transport", ["tcp", pytest.param("store", marks=pytest.mark.thorough)])
def test_other_stages(
    tmp_path: Path, transport: TransportName, calm: tuple[tuple[float, ...], dict[str, torch.Tensor]]
) -> None:
    """Two replicas of two stages become one of three, and that becomes one replica of one stage."""
    run = Run(tmp_path / "run", (2, 2), [(5, (1, 3)), (20, (1, 1))], transport)
    check_equal(run, run.train(), calm)
    roster = last_roster(open_store(run.url), 0)
    assert roster is not None
    assert (roster.num_replicas, roster.num_stages) == (1, 1)


def limited(on: str) -> Offer:
    """As a function that lives for a few seconds, besides the time that a loaded machine needs to prepare."""
    return structs.replace(resolve_offer(on), lifetime_s=LIFETIME_S)


LIFETIME_S = 60.0


def test_successors_take_over_before_a_time_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calm: tuple[tuple[float, ...], dict[str, torch.Tensor]],
) -> None:
    """A pipeline without replicas: nobody else has the state of a stage."""
    monkeypatch.setattr("zooid.coordinator.plans.offer_names.resolve_offer", limited)
    monkeypatch.setattr("zooid.schedule.successor_lead._FIRST_LEAD_FRACTION", 0.95)
    monkeypatch.setattr("zooid.schedule.successor_lead.MAX_LEAD_FRACTION", 0.95)
    run = Run(tmp_path / "run", (1, 2), [], "tcp", victims=[])
    result = run.train(JOB.replace("GRAIN_S", "0.01"))
    check_equal(run, result, calm)
    assert run.changes()[-1].members == ("r0s0-1", "r0s1-1")


@pytest.mark.parametrize(
    ("victim", "transport"),
    [
        ("r0s0", "store"),
        ("r2s0-1", "tcp"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("r0s0", "tcp"), ("r1s0", "tcp"), ("r1s0", "store"), ("r2s0-1", "store"))
        ),
    ],
)
def test_a_member_is_killed_while_another_joins(
    tmp_path: Path,
    victim: str,
    transport: TransportName,
    calm: tuple[tuple[float, ...], dict[str, torch.Tensor]],
) -> None:
    run = Run(tmp_path / "run", (2, 1), [(5, (3, 1))], transport, victims=[(victim, 1)])
    result = run.train()
    check_equal(run, result, calm)
    assert any(change.ruling != "planned" for change in run.changes())


@pytest.mark.parametrize("layout", [(2, 1), (2, 2)])
def test_a_lost_member_is_replaced(
    tmp_path: Path, layout: tuple[int, int], calm: tuple[tuple[float, ...], dict[str, torch.Tensor]]
) -> None:
    """Of a pipeline, the survivors take seats again beside the new member."""
    run = Run(tmp_path / "run", layout, kills=[(5, "r1s0")])
    check_equal(run, run.train(), calm)
    last = run.changes()[-1]
    assert last.ruling == "planned"
    assert len(last.members) == layout[0] * layout[1]
    assert "r1s0-1" in last.members


@pytest.mark.parametrize(("layout", "left_s"), [((1, 2), None), ((2, 1), 0.001)])
def test_a_member_that_has_notice_is_replaced_or_leaves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: tuple[int, int],
    left_s: float | None,
    calm: tuple[tuple[float, ...], dict[str, torch.Tensor]],
) -> None:
    if left_s is not None:
        monkeypatch.setenv("ZOOID_NOTICE_SECONDS", str(left_s))
    run = Run(tmp_path / "run", layout, notices=[(5, "r0s0")])
    check_equal(run, run.train(), calm)
    assert {change.ruling for change in run.changes()} == {"planned"}
    assert run.changes()[-1].members == (("r0s0-1", "r0s1") if left_s is None else ("r1s0",))


WISH = """
from pathlib import Path

FOLDER = Path(__file__).parent


def wish(event):
    hosted, wished = FOLDER / "run" / "ROSTER", FOLDER / "wished"
    if hosted.exists() and not wished.exists():
        wished.write_text(str(event.step))
        return zooid.Wish.STOP


"""
"""The first member wishes to stop in the only step that it hosts a guest, after its last vote."""


def test_a_first_member_that_leaves_is_granted_its_last_wish(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", (1, 2), notices=[(5, "r0s0")])
    wish = WISH.replace("ROSTER", keys.roster(0, 1))
    result = run.train(
        JOB.replace("job = ", f"{wish}job = ").replace("clip_norm=1.0,", "clip_norm=1.0, on_event=wish,")
    )
    last_step = int((tmp_path / "run" / "wished").read_text())
    assert "wished" in result.stopped
    assert len(result.losses) == last_step + 1
    assert not run.changes()[1:], "nobody has left"


def test_requests_that_cannot_be_met_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run"):
        zooid.scale(tmp_path.as_uri(), 2, 1)
    run = Run(tmp_path / "run", (1, 1))
    run.train(JOB.replace("epochs=8", "epochs=1"))
    with pytest.raises(InputError, match="a step has 8 grains"):
        zooid.scale(run.url, 9, 1)
    with pytest.raises(InputError, match="has ended"):
        zooid.scale(run.url, 2, 1)
