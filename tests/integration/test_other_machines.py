"""The same run on this machine, over ssh, on Slurm, on Ray, and on two of them at once."""

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import zooid
from lab.waiting import wait_until
from tests.integration.jobs import COARSE, write_job
from tests.integration.other_machines import OtherMachines, other_machines
from tests.integration.reference import Trained, train_composed_layers
from tests.integration.training_command import training_command
from tests.integration.travelling_jobs import TOLERANCE, travelling_jobs
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits, Plan, TransportName
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, RosterChanged, StepCommitted
from zooid.core.runs.member_records import MemberHandle
from zooid.store import ObjectStore, open_store

pytestmark = pytest.mark.timeout(300)

CANARIES = {f"CANARY_{number}": f"canary-secret-{number:02d}-9f3a" for number in range(20)}
SLOW = """
import time
def slow(output, target):
    time.sleep(0.1)
    return F.cross_entropy(output, target)
"""
PLACES = {
    "local": ("local",),
    "ssh": ("ssh",),
    "slurm": ("slurm",),
    "ray": ("ray",),
    "ssh and ray": ("ssh.machine4", "ray.cluster"),
}
"""What `--on` says. The short names mean three machines, two nodes and three nodes."""
ELSEWHERE = ("ssh", "slurm", "ray")
TWO_REPLICAS = Limits(num_replicas=2, num_stages=1, transport="tcp")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherMachines]:
    with other_machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Trained]]:
    return travelling_jobs(tmp_path_factory.mktemp)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("job", ["digits", "gpt2"])
def test_losses_are_those_of_one_process(
    others: OtherMachines, jobs: dict[str, tuple[Path, Trained]], job: str, place: str
) -> None:
    """Digits are trained by replicas, and the small GPT-2 by the stages of a pipeline."""
    job_file, expected = jobs[job]
    num_members = 3 if place in ("ssh", "ray") else 2
    layout = (num_members, 1) if job == "digits" else (1, num_members)
    limits = Limits(num_replicas=layout[0], num_stages=layout[1], transport="tcp")
    url = f"{others.bucket}/{job}-{place.replace(' ', '-')}"
    platforms: set[str] = set()

    def note(event: Event) -> None:
        if isinstance(event, StepCommitted) and event.step == 0:
            platforms.update(handle.platform for handle in handles_in(open_store(url)) if handle.member[0] == "r")

    result = zooid.train(job_file, store=url, on=PLACES[place], limits=limits, profile=False, on_event=note)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    assert platforms == set(place.split(" and "))
    others.check_nothing_is_left()


def handles_in(store: ObjectStore) -> list[MemberHandle]:
    return [decode_record(bytes(store.get(key)), MemberHandle, key) for key in store.list(keys.HANDLES)]


def command_of_page(place: str) -> str:
    """The command in the documents that trains on a platform."""
    page = (Path(__file__).parents[2] / "docs" / "platforms.md").read_text()
    return next(line for line in page.splitlines() if line.startswith(f"zooid train job.py --on {place}"))


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_command_of_the_page_trains_and_no_secret_leaves_this_machine(
    others: OtherMachines, tmp_path: Path, place: str
) -> None:
    """Neither in an object, be it a log or an archive, nor in a command line on a machine."""
    job_file = job_in(tmp_path, extra="import os\nprint(dict(os.environ))\n", fields={"epochs": "1"})
    (job_file.parent / ".env").write_text("".join(f"{name}={value}\n" for name, value in CANARIES.items()))
    _, *words = shlex.split(command_of_page(place).replace("s3://bucket", others.bucket))
    environment = {**os.environ, **CANARIES, "ZOOID_PROFILE_EFFORT": "0.02"}
    with seen_commands(others) as commands:
        command = [sys.executable, "-m", "zooid.cli.main", *words]
        answer = subprocess.run(
            command, cwd=job_file.parent, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    others.check_nothing_is_left()
    store = open_store(words[-1])
    found = {key: bytes(store.get(key)) for key in store.list("")}
    secrets = [value.encode() for value in CANARIES.values()]
    assert not [key for key, data in found.items() if any(secret in data for secret in secrets)]
    assert any(key.startswith(f"{keys.CODE}/") for key in found)
    assert any(key.startswith(f"{keys.LOGS}/") and b"'PATH'" in data for key, data in found.items())
    assert any("zooid" in command for command in commands)
    assert not any(value in command for command in commands for value in CANARIES.values())


@contextmanager
def seen_commands(others: OtherMachines) -> Iterator[set[str]]:
    """All command lines on the machines while the block runs."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            for machine in others.machines:
                seen.update(process.command for process in machine.all_processes())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def job_in(folder: Path, *, extra: str = "", fields: dict[str, str]) -> Path:
    (folder / "job").mkdir()
    return write_job(folder / "job" / "job.py", extra=extra, fields={**COARSE, **fields})


def slow_job(folder: Path) -> tuple[Path, Trained]:
    """A job that takes so long that a machine can die between two steps, and what it comes to, found without delay."""
    fast = write_job(folder / "fast.py", fields={**COARSE, "epochs": "4"})
    return job_in(folder, extra=SLOW, fields={"epochs": "4", "loss": "slow"}), train_composed_layers(fast)


def has(url: str, beginning: str) -> Callable[[], bool]:
    """Whether the run's folder has an object whose key begins so."""
    store = open_store(url)
    folder = beginning.rpartition("/")[0]
    return lambda: any(key.startswith(beginning) for key in store.list(folder))


PHASES = {
    "profile": (f"{keys.STARTS}/000000/profiler", ("--layout", "1x1")),
    "probe": ("probing-", ("--layout", "2x1")),
    "prepare": (f"{keys.STARTS}/000000/preparer", ("--layout", "2x1", "--no-profile")),
    "start": (f"{keys.HANDLES}/000000/r0s0", ("--layout", "2x1", "--no-profile")),
    "train": (f"{keys.EVENTS}/000000/r0s0", ("--layout", "2x1", "--no-profile")),
}


OFTEN = {
    ("ssh", "profile"),
    ("ssh", "start"),
    ("slurm", "probe"),
    ("slurm", "train"),
    ("ray", "prepare"),
    ("ray", "start"),
}
"""Places and phases that are tried always, and the others with `--thorough`."""


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        pytest.param(*case, marks=[] if case in OFTEN else pytest.mark.thorough)
        for case in itertools.product(ELSEWHERE, PHASES)
    ],
)
def test_ctrl_c_leaves_nothing_in_any_phase(
    others: OtherMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, phase: str
) -> None:
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.02")
    url = f"{others.bucket}/interrupted-{place}-{phase}"
    key, options = PHASES[phase]
    with training_command(tmp_path, url, "--on", place, *options) as process:
        wait_until(has(url, key), timeout_s=60.0)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode != 0, said
    others.check_nothing_is_left()


@pytest.mark.parametrize("place", ELSEWHERE)
def test_members_of_a_killed_coordinator_are_ended_from_elsewhere(
    others: OtherMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Whoever cleans knows nothing but the run's folder: the handles there say where members are.

    They are trusted only if the user says so.
    """
    url = f"{others.bucket}/killed-{place}"
    with training_command(tmp_path, url, "--on", place, "--layout", "2x1", "--no-profile") as process:
        wait_until(has(url, f"{keys.EVENTS}/000000/r0s0"), timeout_s=60.0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert others.leftovers() != [], "members go on without their coordinator"
    monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "none.toml"))
    if place != "slurm":  # its commands are those of this machine
        before = {kind: open_store(url).list(kind) for kind in (keys.HANDLES, keys.SPECS, keys.LEASES, keys.CLAIMS)}
        with pytest.raises(InputError, match=r"members that were left in .* give --trust-handles"):
            zooid.clean(url, force=True)
        assert {kind: open_store(url).list(kind) for kind in before} == before, "nothing was removed or written"
        assert others.leftovers() != []
    zooid.clean(url, force=True, trust_handles=True)
    others.check_nothing_is_left()


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_detached_run_goes_on_until_it_is_stopped(others: OtherMachines, tmp_path: Path, place: str) -> None:
    url = f"{others.bucket}/detached-{place}"
    options = ("--on", place, "--layout", "2x1", "--no-profile", "--detach")
    with training_command(tmp_path, url, *options) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert others.leftovers() != [], "members go on when the command has ended"
    zooid.stop(url)
    others.check_nothing_is_left()


@pytest.mark.parametrize(
    ("on", "layout", "transport"),
    [(["ssh"], (1, 3), "tcp"), (["ssh", "ray"], (4, 1), None), (["ssh.machine2", "slurm"], (1, 2), "store")],
)
def test_a_plan_is_searched_over_several_machines(
    others: OtherMachines,
    jobs: dict[str, tuple[Path, Trained]],
    monkeypatch: pytest.MonkeyPatch,
    on: list[str],
    layout: tuple[int, int],
    transport: TransportName | None,
) -> None:
    """Machines that are alike are one offer, whose job and links are measured; others are measured each."""
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.02")
    job_file, expected = jobs["digits"]
    url = f"{others.bucket}/planned-{'-'.join(on)}"
    places: set[str] = set()

    def note(event: Event) -> None:
        if isinstance(event, StepCommitted) and event.step == 0:
            members = [handle for handle in handles_in(open_store(url)) if handle.member[0] == "r"]
            places.update(str(sorted(handle.place.items())) for handle in members if handle.platform == "ssh")

    limits = Limits(num_replicas=layout[0], num_stages=layout[1], max_members=4, transport=transport)
    result = zooid.train(job_file, store=url, on=on, limits=limits, on_event=note)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    plan = decode_record(bytes(open_store(url).get(keys.PLAN)), Plan, keys.PLAN)
    assert plan.predicted is not None
    assert [offer.max_members for offer in plan.offers if offer.name.startswith("ssh.machine2+")] in ([], [3])
    assert len(places) == sum(offer.platform == "ssh" for offer in plan.member_offers), "one member on each machine"
    others.check_nothing_is_left()


class Interrupted(Exception):
    """Raised in mid-run, as a user may."""


def test_a_run_is_resumed_without_its_job_file(others: OtherMachines, tmp_path: Path) -> None:
    job_file, trained = slow_job(tmp_path)
    expected = trained.losses
    url = f"{others.bucket}/resumed"

    def interrupt(event: Event) -> None:
        if isinstance(event, StepCommitted) and event.step == 4:
            raise Interrupted

    rule = CheckpointRule(every_steps=2)
    with pytest.raises(Interrupted):
        zooid.train(
            job_file, store=url, on="ssh", limits=TWO_REPLICAS, profile=False, checkpoints=rule, on_event=interrupt
        )
    others.check_nothing_is_left()
    shutil.rmtree(job_file.parent)
    result = zooid.resume(url)
    assert result.losses == pytest.approx(expected[-len(result.losses) :], rel=TOLERANCE)
    assert 0 < len(result.losses) < len(expected)
    others.check_nothing_is_left()


@pytest.mark.parametrize(("place", "number"), [("ssh", 4), ("slurm", 2), ("ray", 3)])
def test_a_machine_that_dies_in_mid_run_is_survived(
    others: OtherMachines, tmp_path: Path, place: str, number: int
) -> None:
    """The last test here: a machine does not come back. Who comes later has still enough of them."""
    job_file, expected = slow_job(tmp_path)
    url = f"{others.bucket}/survives-{place}"
    machine = others.machines[number]
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepCommitted) and event.step == 3 and machine.is_on:
            machine.power_off()

    num_replicas = 3 if place == "ssh" else 2
    limits = Limits(num_replicas=num_replicas, num_stages=1, transport="tcp")
    result = zooid.train(job_file, store=url, on=place, limits=limits, profile=False, on_event=take)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    [changed] = [event for event in events if isinstance(event, RosterChanged)]
    assert len(changed.members) == num_replicas - 1
    others.check_nothing_is_left()
