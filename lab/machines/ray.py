"""A Ray cluster on the laboratory's machines: a head, and nodes that run members.

The head has no processors for members, so that it can outlive all nodes. Ray's own limits of patience are shortened:
by default it takes half a minute until a node counts as lost.
"""

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util

from lab.machines.machine import Machine, MachineFailed, Process

PORT = 10001
"""Where clients connect on the head."""
_GCS_PORT = 6379
_FOLDER = "/var/lib/ray"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.1
_NUM_TRIES = 3
"""On a busy computer, a head may answer too late for Ray's own patience."""
_OBJECT_STORE_BYTES = 80 * 2**20
_SETTINGS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
    "enable_worker_prestart": False,
}
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"}


@dataclass(frozen=True)
class RayMachines:
    """A cluster, for as long as the block of `ray_cluster` lasts."""

    head: Machine
    nodes: tuple[Machine, ...]

    @property
    def address(self) -> str:
        """The address for clients outside the cluster."""
        return f"ray://{self.head.address}:{PORT}"


def missing_ray() -> str | None:
    """Say what this process lacks to start Ray; None where it lacks nothing."""
    return None if util.find_spec("ray") is not None else "the package ray, which is among the `dev` extras of zooid"


def is_rays(process: Process) -> bool:
    """Whether a process belongs to Ray itself, and not to a member."""
    if process.program in ("raylet", "gcs_server"):
        return True
    command = process.command
    is_actor = command.startswith("ray::MemberActor")
    return (command.startswith("ray::") and not is_actor) or "/ray/" in command or "ray.util.client.server" in command


@contextmanager
def ray_cluster(machines: Sequence[Machine], num_cpus: int, memory_bytes: int) -> Iterator[RayMachines]:
    """Start a head on the first machine, and nodes of this size on the others."""
    head, *nodes = machines
    start_head(head, [f"--system-config={json.dumps(_SETTINGS)}"])
    sizes = (f"--num-cpus={num_cpus}", f"--memory={memory_bytes}")
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: _start(node, f"--address={head.address}:{_GCS_PORT}", *sizes), nodes))
    for machine in machines:
        machine.accept_files()
    yield RayMachines(head, tuple(nodes))


def start_head(head: Machine, options: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Start a head without processors for members, and return when clients can connect."""
    own = [
        "--include-dashboard=false",
        f"--temp-dir={_FOLDER}",
        f"--port={_GCS_PORT}",
        f"--ray-client-server-port={PORT}",
    ]
    _start(head, "--head", "--num-cpus=0", *own, *options, environment=environment)
    _wait_until_it_answers(head)


def _start(machine: Machine, *options: str, environment: Mapping[str, str] | None = None) -> None:
    common = ("--disable-usage-stats", f"--node-ip-address={machine.address}")
    store = f"--object-store-memory={_OBJECT_STORE_BYTES}"
    ray = [machine.python, "-m", "ray.scripts.scripts"]
    for number in range(_NUM_TRIES):
        answer = machine.run(
            [*ray, "start", *common, store, *options],
            timeout_s=_START_TIMEOUT_S,
            env={**_ENVIRONMENT, **(environment or {})},
            check=False,
        )
        if answer.returncode == 0:
            return
        if number == _NUM_TRIES - 1:
            raise MachineFailed(f"Ray did not start on {machine.name}: {answer.stderr.strip()}")
        machine.run([*ray, "stop", "--force"], check=False)


def _wait_until_it_answers(head: Machine) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with socket.create_connection((head.address, PORT), timeout=1.0):
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise MachineFailed(f"Ray does not answer on {head.name}") from None
        time.sleep(_POLL_S)
