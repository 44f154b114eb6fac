"""Members whose coordinator was killed end by themselves, soon after somebody else has gone on with their run."""

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from tests.integration.interpreters import fork_zygote
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.ranks import FORKING
from tests.integration.recording import RecordingPlatform, still_running
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import Event, StepCommitted
from zooid.store import open_store
from zooid.store.claims import last_claim
from zooid.store.fences import GRACE_S

pytestmark = pytest.mark.timeout(120)

LATE_S = 2.0
"""What a busy machine may add to the time that members have."""
UNHURRIED = "lambda event: __import__('time').sleep(0.05)"
"""Told of a step, the first member pauses, so that other tests have the machine."""


def train(job_file: Path, url: str, plan: Plan, parent: Connection) -> None:
    """A coordinator, which tells the ids of its members with every step."""
    fork_zygote()
    platform = RecordingPlatform()

    def tell(event: Event) -> None:
        if isinstance(event, StepCommitted):
            parent.send({name: pid for name, pid in platform.pids.items() if name.startswith("r")})

    zooid.train(job_file, store=url, plan=plan, on_event=tell, platform=platform)


@pytest.mark.parametrize(("num_replicas", "transport"), [(1, "store"), (2, "tcp")], ids=["1x1", "2x1-tcp"])
def test_they_notice_a_newer_claim(num_replicas: int, transport: TransportName, tmp_path: Path) -> None:
    """In 1x1 nobody sends them anything, and over TCP nobody but each other."""
    job_file = write_job(tmp_path / "endless.py", fields={"epochs": "100_000", "on_event": UNHURRIED})
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=1, transport=transport)
    url = (tmp_path / "run").as_uri()
    own_end, its_end = FORKING.Pipe()
    coordinator = FORKING.Process(target=train, args=(job_file, url, plan, its_end))
    coordinator.start()
    pids: list[int] = []
    try:
        assert own_end.poll(60), "the first step comes"
        pids += own_end.recv().values()
        assert coordinator.pid is not None
        os.kill(coordinator.pid, signal.SIGKILL)
        coordinator.join()
        time.sleep(LATE_S)
        assert still_running(pids) == pids, "without a newer claim they train on"
        store = open_store(url)
        number, claim = last_claim(store)
        store.create(keys.claim(number + 1), encode_record(structs.replace(claim, nonce="newer")))
        deadline_s = time.monotonic() + GRACE_S + LATE_S
        while still_running(pids) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert still_running(pids) == []
    finally:
        coordinator.kill()
        for pid in still_running(pids):
            os.killpg(pid, signal.SIGKILL)
