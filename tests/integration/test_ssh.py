"""Runs on machines that share nothing but a network, over ssh."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import zooid
from lab.machines.machine import Machine
from lab.machines.ssh import PROGRAMS, ssh_servers
from lab.servers import S3Server
from tests.contract.platform_scenes import laboratory
from tests.integration.jobs import write_job
from tests.integration.reference import train_composed_layers
from tests.integration.training_command import training_command
from tests.processes import wait_until
from zooid.core.plans.plan import Limits
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, RosterChanged, StepCommitted
from zooid.store import open_store

pytestmark = pytest.mark.timeout(240)

TOLERANCE = 1e-9
CANARIES = {f"CANARY_{number}": f"canary-secret-{number:02d}-9f3a" for number in range(20)}
AGENT = "os.read(0"
"""Part of the command of an agent, which ends with the coordinator."""


@dataclass
class Cluster:
    machines: tuple[Machine, ...]
    server: S3Server
    bucket: str

    def check_nothing_is_left(self) -> None:
        deadline_s = time.monotonic() + 10.0
        while self.leftovers() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert self.leftovers() == []

    def leftovers(self) -> list[str]:
        found = []
        for machine in self.machines:
            if machine.is_on:
                found += [process.command for process in machine.processes() if AGENT not in process.command]
                found += [file for file in machine.files() if "/.aws" not in file]
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with laboratory(3, PROGRAMS) as (made, server), ssh_servers(made) as config:
        tables = [
            f'[ssh.{machine.name}]\npython = "{machine.python}"\nconfig = "{config}"\nvcpus = 1\nmemory = "4 GB"\n'
            'site = "laboratory"\n'
            for machine in made
        ]
        file = tmp_path_factory.mktemp("ssh") / "machines.toml"
        file.write_text("".join(tables))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ZOOID_MACHINES", str(file))
            yield Cluster(made, server, server.bucket_url("training"))


SLOW = """
import time
def slow(output, target):
    time.sleep(0.1)
    return F.cross_entropy(output, target)
"""
"""A loss that takes so long that a machine can die between two steps."""


def job_in(folder: Path, epochs: int, *, is_slow: bool = False) -> Path:
    folder.mkdir()
    slow = {"loss": "slow"} if is_slow else {}
    return write_job(folder / "job.py", extra=SLOW if is_slow else "", fields={"epochs": str(epochs), **slow})


def test_it_trains_like_one_machine_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the job is not on the machines, and no secret leaves this one."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    job_file = job_in(tmp_path / "job", epochs=1)
    (job_file.parent / ".env").write_text("".join(f"{name}={value}\n" for name, value in CANARIES.items()))
    url = f"{cluster.bucket}/equal"
    seen_commands: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            for machine in cluster.machines:
                seen_commands.update(process.command for process in machine.all_processes())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        limits = Limits(num_replicas=3, num_stages=1, transport="tcp")
        result = zooid.train(job_file, store=url, on="ssh", limits=limits, profile=False)
    finally:
        ended.set()
        looking.join()
    assert result.losses == pytest.approx(train_composed_layers(job_file).losses, rel=TOLERANCE)
    cluster.check_nothing_is_left()
    store = open_store(url)
    secrets = [value.encode() for value in CANARIES.values()]
    for key in store.list(""):
        data = bytes(store.get(key))
        assert not any(secret in data for secret in secrets), key
    assert not any(value in command for command in seen_commands for value in CANARIES.values())
    assert any(key.startswith(f"{keys.CODE}/") for key in store.list(""))


def on_two_machines(cluster: Cluster) -> list[str]:
    return [word for machine in cluster.machines[:2] for word in ("--on", f"ssh.{machine.name}")]


def has(url: str, beginning: str) -> Callable[[], bool]:
    """Whether the run's folder has an object whose key begins so."""
    store = open_store(url)
    folder = beginning.rpartition("/")[0]
    return lambda: any(key.startswith(beginning) for key in store.list(folder))


PHASES = {
    "profile": (f"{keys.STARTS}/000000/profiler", ("--layout", "2x1")),
    "prepare": (f"{keys.STARTS}/000000/preparer", ("--layout", "2x1", "--no-profile")),
    "start": (f"{keys.HANDLES}/000000/r0s0", ("--layout", "2x1", "--no-profile")),
    "train": (f"{keys.EVENTS}/000000/r0s0", ("--layout", "2x1", "--no-profile")),
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_leaves_nothing_in_any_phase(cluster: Cluster, tmp_path: Path, phase: str) -> None:
    url = f"{cluster.bucket}/interrupted-{phase}"
    key, options = PHASES[phase]
    with training_command(tmp_path, url, *on_two_machines(cluster), *options) as process:
        wait_until(has(url, key), timeout_s=60.0)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode != 0, said
    cluster.check_nothing_is_left()


def test_members_of_a_killed_coordinator_are_ended_from_elsewhere(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cleans knows nothing but the run's folder: the handles there say where members are."""
    url = f"{cluster.bucket}/killed"
    options = (*on_two_machines(cluster), "--layout", "2x1", "--no-profile")
    with training_command(tmp_path, url, *options) as process:
        wait_until(has(url, f"{keys.EVENTS}/000000/r0s0"), timeout_s=60.0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert cluster.leftovers() != [], "members go on without their coordinator"
    monkeypatch.delenv("ZOOID_MACHINES")
    zooid.clean(url, force=True)
    cluster.check_nothing_is_left()


class Interrupted(Exception):
    """Raised in mid-run, as a user may."""


def test_a_run_is_resumed_without_its_job_file(cluster: Cluster, tmp_path: Path) -> None:
    job_file = job_in(tmp_path / "job", epochs=5, is_slow=True)
    expected = train_composed_layers(job_file).losses
    url = f"{cluster.bucket}/resumed"

    def interrupt(event: Event) -> None:
        if isinstance(event, StepCommitted) and event.step == 4:
            raise Interrupted

    on = [f"ssh.{machine.name}" for machine in cluster.machines[:2]]
    limits = Limits(num_replicas=2, num_stages=1, transport="tcp")
    rule = CheckpointRule(every_steps=2)
    with pytest.raises(Interrupted):
        zooid.train(job_file, store=url, on=on, limits=limits, profile=False, checkpoints=rule, on_event=interrupt)
    cluster.check_nothing_is_left()
    shutil.rmtree(job_file.parent)
    result = zooid.resume(url)
    assert result.losses == pytest.approx(expected[-len(result.losses) :], rel=TOLERANCE)
    assert 0 < len(result.losses) < len(expected)
    cluster.check_nothing_is_left()


def test_a_machine_that_dies_in_mid_run_is_survived(cluster: Cluster, tmp_path: Path) -> None:
    """The last test here: a machine does not come back."""
    job_file = job_in(tmp_path / "job", epochs=5, is_slow=True)
    expected = train_composed_layers(job_file).losses
    url = f"{cluster.bucket}/survives"
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepCommitted) and event.step == 3 and cluster.machines[-1].is_on:
            cluster.machines[-1].power_off()

    limits = Limits(num_replicas=3, num_stages=1, transport="tcp")
    result = zooid.train(job_file, store=url, on="ssh", limits=limits, profile=False, on_event=take)
    assert result.losses == pytest.approx(expected, rel=TOLERANCE)
    assert [event.members for event in events if isinstance(event, RosterChanged)] == [("r0s0", "r1s0")]
    cluster.check_nothing_is_left()
