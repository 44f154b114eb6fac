"""Members that cannot reach one another, each in a network namespace of its own, train through the store alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import zooid
from lab.namespaces import (
    Namespace,
    NamespaceFailed,
    Star,
    add_route,
    set_forwarding,
    star,
)
from lab.servers import moto_s3
from tests.integration.jobs import COARSE, plan_by_hand, write_job
from tests.integration.laboratory import star_or_skip
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import train_composed_layers
from zooid.core.runs.events import Event, StepCommitted
from zooid.platforms import Launch

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
WORKERS = ("r0s0", "r0s1", "r1s0", "r1s1")

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()
except OSError as error:
    sys.exit(f"unreachable: {error}")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Star]:
    with star_or_skip(len(WORKERS)) as made:
        yield made


def reaches(source: Namespace, target: Namespace, port: int) -> bool:
    """Whether a connection from one namespace to another comes about."""
    command = [*source.prefix, sys.executable, "-c", CONNECT, target.address, str(port)]
    answer = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 0 or answer.stderr.startswith("unreachable"), answer.stderr
    return answer.returncode == 0


@contextmanager
def listening(namespace: Namespace) -> Iterator[int]:
    """A server in a namespace that accepts connections; yields its port."""
    command = [*namespace.prefix, sys.executable, "-c", LISTEN, namespace.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_members_reach_the_store_and_nobody_else(lab: Star) -> None:
    one, other = lab.members[:2]
    with listening(lab.store) as store_port, listening(other) as port:
        assert all(reaches(member, lab.store, store_port) for member in lab.members)
        assert reaches(other, other, port), "the server itself is up"
        assert not reaches(one, other, port)
        assert not reaches(lab.store, one, port), "nobody listens there"


def test_the_store_passes_nothing_on(lab: Star) -> None:
    """Even members that send through it do not get past it; they would, if it did."""
    one, other = lab.members[2:]
    add_route(one, other, through=lab.store)
    add_route(other, one, through=lab.store)
    with listening(other) as port:
        assert not reaches(one, other, port)
        set_forwarding(lab.store, True)
        try:
            assert reaches(one, other, port)
        finally:
            set_forwarding(lab.store, False)
        assert not reaches(one, other, port)


def test_everything_is_removed_after_an_error(lab: Star) -> None:
    seen: list[Star] = []

    def fail_inside() -> None:
        with star(1) as doomed:
            seen.append(doomed)
            assert {doomed.store.name, doomed.members[0].name} <= namespaces()
            assert doomed.store.address in routes()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    doomed = seen[0]
    assert not {doomed.store.name, doomed.members[0].name} & namespaces()
    assert doomed.store.address not in routes()
    assert lab.store.address in routes()
    assert lab.store.name in namespaces()
    with pytest.raises(NamespaceFailed, match="a star has 1 to"), star(0):
        pass


def test_a_run_equals_the_single_process_run(lab: Star, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = dict(zip(WORKERS, lab.members, strict=True))
    platform = RecordingPlatform(lambda launch: home_of(launch).prefix)
    networks: dict[str, int] = {}

    def home_of(launch: Launch) -> Namespace:
        return homes.get(launch.member, lab.members[0])

    def look_around(event: Event) -> None:
        if isinstance(event, StepCommitted) and not networks:
            networks.update({name: os.stat(f"/proc/{platform.pids[name]}/ns/net").st_ino for name in WORKERS})

    job_file = write_job(tmp_path / "apart.py", fields=COARSE)
    with moto_s3(lab.store.address, lab.store.prefix) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"{server.bucket_url('apart')}/run"
        plan = plan_by_hand(job_file, num_replicas=2)
        result = zooid.train(job_file, store=url, plan=plan, on_event=look_around, platform=platform)
        reference = train_composed_layers(job_file)
        differences = reference.loss_difference(result.losses), reference.weight_difference(result.checkpoint)
    assert len({*networks.values(), os.stat("/proc/self/ns/net").st_ino}) == len(WORKERS) + 1
    print("largest differences of a loss {:.3g}, of a weight {:.3g}".format(*differences))
    assert max(differences) <= TOLERANCE


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def routes() -> set[str]:
    listed = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}
