"""A store that fails for a while, with errors, refused connections or silence, costs a run time and nothing else.

Outages and patience are scaled down by the same factor; `--thorough` tries ten seconds with the patience that users
have, every kind in every phase.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import pytest

import zooid
from lab.servers import S3Server, moto_s3
from lab.waiting import wait_until
from tests.integration.jobs import COARSE, plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from tests.outages import KINDS, FailingProxy, Kind
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import CheckpointSaved, Event, PhaseStarted, RunStarted, StepCommitted
from zooid.store import clear, open_store, read_history
from zooid.store.checkpoint_index import complete_steps

pytestmark = pytest.mark.timeout(600)

TOLERANCE = 1e-9
NUM_STEPS = 12
PATIENCE_S, OUTAGE_S = 120.0, 10.0
SCALE = 1 / 10


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server


@pytest.fixture
def outage_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    scale = 1.0 if request.config.getoption("--thorough") else SCALE
    monkeypatch.setenv("ZOOID_STORE_PATIENCE", str(PATIENCE_S * scale))
    return OUTAGE_S * scale


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingProxy]:
    with FailingProxy(server.endpoint) as proxy:
        for name, value in (server.environment | {"AWS_ENDPOINT_URL": proxy.endpoint}).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def folder(server: S3Server) -> str:
    return f"{server.bucket_url('outages')}/{uuid.uuid4().hex}"


PACE = """
import time


def pace(event):
    time.sleep(0.1)

"""


def is_phase(beginning: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, PhaseStarted) and event.phase.startswith(beginning)


def is_step(step: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, StepCommitted) and event.step >= step


MOMENTS: dict[str, Callable[[Event], bool]] = {
    "prepare": is_phase("prepare"),
    "meeting": lambda event: isinstance(event, RunStarted),
    "steps": is_step(1),
    "checkpoint": lambda event: isinstance(event, CheckpointSaved) and event.step >= 5,
    "last checkpoint": is_step(NUM_STEPS - 2),
}
MOMENTS_OF_RESUMING: dict[str, Callable[[Event], bool]] = {
    "check": is_phase("checking"),
    "meeting over tcp": lambda event: isinstance(event, RunStarted),
    "steps over tcp": is_step(6),
}


class Disturbance:
    """Begins the next outage when something happens that it waits for."""

    def __init__(self, proxy: FailingProxy, outage_s: float, kinds: Iterator[Kind]) -> None:
        self._proxy = proxy
        self._outage_s = outage_s
        self._kinds = kinds
        self._moments: dict[str, Callable[[Event], bool]] = {}
        self.outages: dict[str, Kind] = {}

    def __call__(self, event: Event) -> None:
        for name, is_it in self._moments.items():
            if name not in self.outages and is_it(event):
                wait_until(lambda: not self._proxy.is_failing)
                self._fail(name)

    @contextmanager
    def during(self, name: str, moments: dict[str, Callable[[Event], bool]]) -> Iterator[None]:
        """At the beginning of what is done inside, and at moments of it."""
        self._moments = moments
        self._fail(name)
        yield
        wait_until(lambda: not self._proxy.is_failing)
        assert not moments.keys() - self.outages.keys(), "moments that never came"

    def _fail(self, name: str) -> None:
        self.outages[name] = next(self._kinds)
        self._proxy.fail(self.outages[name], self._outage_s)


@pytest.mark.parametrize(
    "shift", [0, *(pytest.param(shift, marks=pytest.mark.thorough) for shift in range(1, len(KINDS)))]
)
def test_a_run_survives_outages_in_every_phase(
    proxy: FailingProxy,
    folder: str,
    forking: RecordingPlatform,
    tmp_path: Path,
    outage_s: float,
    shift: int,
) -> None:
    """Over objects first, and then, resumed, over TCP."""
    job_file = write_job(tmp_path / "job.py", extra=PACE, fields={**COARSE, "epochs": "3", "on_event": "pace"})
    reference = train_composed_layers(job_file)
    assert len(reference.losses) == NUM_STEPS
    plan = plan_by_hand(job_file, num_replicas=2, cuts=())
    disturbed = Disturbance(proxy, outage_s, islice(cycle(KINDS), shift, None))
    with disturbed.during("claim", MOMENTS):
        result = zooid.train(
            job_file,
            store=folder,
            plan=plan,
            checkpoints=CheckpointRule(every_steps=5, keep=3),
            on_event=disturbed,
            platform=forking,
        )
    assert reference.loss_difference(result.losses) <= TOLERANCE
    assert reference.weight_difference(folder) <= TOLERANCE

    store = open_store(folder)
    for later in (10, NUM_STEPS):
        clear(store, keys.checkpoint(later))
    step = complete_steps(store)[-1]
    assert step < 10
    other = plan_by_hand(job_file, num_replicas=1, transport="tcp")
    with disturbed.during("resume", MOMENTS_OF_RESUMING):
        resumed = zooid.resume(folder, plan=other, on_event=disturbed, platform=forking)
    rest = Trained(reference.losses[step:], reference.state)
    assert rest.loss_difference(resumed.losses) <= TOLERANCE
    assert reference.weight_difference(folder) <= TOLERANCE
    told = [event.step for event in read_history(store) if isinstance(event, StepCommitted)]
    assert sorted(told) == list(range(NUM_STEPS))
    with disturbed.during("clean", {}):
        zooid.clean(folder)
    assert len(disturbed.outages) == 11
    for kind in KINDS:
        assert proxy.victims[kind] >= list(disturbed.outages.values()).count(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_survives_an_outage_and_it_is_said(
    kind: Kind, proxy: FailingProxy, folder: str, outage_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(folder)
    store.put("there", b"there")
    calls: list[Callable[[], object]] = [
        lambda: store.put("small", b"small"),
        lambda: store.put("large", bytes(2**20)),
        lambda: store.create("new", b"new"),
        lambda: bytes(store.get("there")),
        lambda: store.list(""),
        lambda: store.list_folders(""),
        lambda: store.is_empty(),
        lambda: store.delete(["small"]),
    ]
    with caplog.at_level(logging.WARNING):
        proxy.fail(kind, outage_s)
        began_s = time.monotonic()
        for call in calls:
            call()
    assert proxy.victims[kind] >= 1
    assert time.monotonic() - began_s >= outage_s * 0.9
    assert f"the store at {folder} has not answered for" in caplog.text
    assert "answers again after" in caplog.text
