"""A stand-in for the command of SkyPilot and the clouds behind it: each machine is a sandbox of this computer.

It is not SkyPilot, which cannot rent anything without an account. It accepts the same command lines and tasks, goes
through the same states, and prints the same JSON, as far as zooid uses them. It keeps its own clock and its own bill.
"""

import json
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server
from lab.endpoints.rented_container import RentedContainer
from lab.endpoints.sky_answers import cluster_answer, cost_answer, job_answer, request_answer
from lab.endpoints.sky_client import client_program
from lab.endpoints.sky_command_lines import WrongCommandLine, parsed
from lab.endpoints.sky_tasks_checked import CheckedTask, MachineType, WrongTask, checked_task
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import SandboxHost
from zooid.core.units import SECONDS_PER_HOUR

_DISK_BYTES = 2 * 2**30
_USER = 1000
"""SkyPilot's tasks do not run as root."""
_SETUP_FAILED = 113
"""The exit status with which the program of a sandbox tells that the set-up of its task has failed."""
_GRACE_S = 1.0
_CLAIM = "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources in all zones in {} for {}"


@dataclass
class Request:
    """A request that launches a cluster."""

    id: str
    cluster: str
    status: str = "PENDING"
    error: str = ""


@dataclass
class Cluster:
    """A cluster of one machine, from the request for the machine to its end."""

    name: str
    task: CheckedTask
    request: Request
    idle_minutes: int
    rented_s: float
    """When the machine was asked for, as Unix time."""
    status: str = "INIT"
    container: RentedContainer | None = None
    ended_s: float | None = None
    """When the machine ended, as Unix time."""
    is_listed: bool = True
    end_is_asked: threading.Event = field(default_factory=threading.Event)

    @property
    def job_status(self) -> str:
        if self.container is None or self.container.started_at_s is None:
            return "INIT"
        if not self.container.has_ended:
            return "RUNNING"
        failed = "FAILED_SETUP" if self.container.code == _SETUP_FAILED else "FAILED"
        return "SUCCEEDED" if self.container.code == 0 else failed

    @property
    def usd(self) -> float:
        """Price of the machine for the seconds begun, once it has ended."""
        if self.ended_s is None:
            return 0.0
        return math.ceil(self.ended_s - self.rented_s) * self.task.machine.usd_per_hour / SECONDS_PER_HOUR


@dataclass
class SkyService:
    """SkyPilot's server, and the clouds."""

    host: SandboxHost
    machines: Mapping[tuple[str, str], MachineType]
    environment: Mapping[str, str]
    """The variables of every machine, as those of a role that may use the store."""
    provision_s: float = 0.3
    minute_s: float = 12.0
    """Length of a minute of idleness."""
    sold_out: set[str] = field(default_factory=set)
    """Names of machines that nobody gets at the moment."""

    def __post_init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.clusters: list[Cluster] = []
        self.command_lines: list[list[str]] = []
        """All that was asked."""
        self._lock = threading.RLock()

    @contextmanager
    def serve(self, program: Path) -> Iterator[None]:
        """Answer commands, and write the program that gives them. All machines end with the block."""

        def answer(request: JsonRequest) -> JsonAnswer:
            status, output, errors = self.answer(request.body["arguments"], request.body["files"])
            return JsonAnswer({"status": status, "output": output, "errors": errors})

        with json_server(answer) as url:
            program.write_text(client_program(url))
            program.chmod(0o755)
            try:
                yield
            finally:
                self._tear_down(self.clusters)

    def answer(self, arguments: Sequence[str], files: Mapping[str, str]) -> tuple[int, str, str]:
        """Return the exit status of a command, its output and its errors; `files` are those that it names."""
        self.command_lines.append(list(arguments))
        try:
            command, options = parsed(arguments)
            return 0, getattr(self, f"_{command.replace(' ', '_').replace('-', '_')}")(options, files), ""
        except WrongCommandLine as error:
            return 2, "", f"Error: {error}\n"
        except _Refused as error:
            return 1, str(error), ""
        except WrongTask as error:
            return 1, "", f"ValueError: {error}\n"

    # Commands

    def _launch(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        [file] = options["entrypoint"]
        task = checked_task(files[file], self.machines)
        if options["dryrun"]:
            return "Considered resources (1 node)\nDryrun finished.\n"
        if not (options["is_async"] and options["detach_run"] and options["yes"] and options["down"]):
            raise WrongCommandLine("this stand-in knows launches that wait for nothing, and tear down at the end")
        request = Request(str(uuid.uuid4()), options["cluster"])
        with self._lock:
            self.requests[request.id] = request
        minutes = options["idle_minutes_to_autostop"]
        threading.Thread(target=self._carry_out, args=(request, task, minutes), daemon=True).start()
        return f"Submitted sky.launch request: {request.id}\n├── Check logs with: sky api logs {request.id[:8]}\n"

    def _status(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        with self._lock:
            if options["refresh"]:
                for cluster in self.clusters:
                    cluster.is_listed &= cluster.ended_s is None
            shown = [each for each in self.clusters if each.is_listed and each.name in options["clusters"]]
            return _json([cluster_answer(each) for each in shown])

    def _queue(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        jobs, told = {}, ""
        for name in options["clusters"]:
            cluster = self._there(name)
            if cluster is None or cluster.status != "UP":
                told += f"Failed to get the job queue for cluster {name!r}.\n  ClusterNotUpError: it is not up\n"
            else:
                jobs[name] = [job_answer(cluster)]
        return told + _json(jobs)

    def _down(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        if not options["yes"]:
            raise WrongCommandLine("nobody is there to confirm it")
        with self._lock:
            found = [each for each in self.clusters if each.is_listed and each.name in options["clusters"]]
        if not found:
            return "Cluster(s) not found (tip: see `sky status`).\n"
        if options["is_async"]:
            threading.Thread(target=self._tear_down, args=(found,), daemon=True).start()
            return "Terminating requests are sent.\n"
        self._tear_down(found)
        return "".join(f"Terminating cluster {each.name}...done.\n" for each in found)

    def _cost_report(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        with self._lock:
            return _json([cost_answer(each) for each in self.clusters])

    def _logs(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        cluster = self._there(options["cluster"])
        if cluster is None:
            raise _Refused(f"ClusterDoesNotExist: {options['cluster']}")
        return f"(setup) the set-up of {cluster.task.name} ended\nJob 1 {cluster.job_status}\n"

    def _api_status(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        with self._lock:
            shown = [
                each
                for each in self.requests.values()
                if (not options["ids"] or each.id in options["ids"]) and options["cluster"] in (None, each.cluster)
            ]
            return _json([request_answer(each) for each in shown])

    def _api_logs(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        request = self.requests[options["request_id"]]
        if request.error:
            raise _Refused(f"⚙︎ Launching on a cloud.\n{request.error}\n")
        return "⚙︎ Launching on a cloud.\n"

    def _api_cancel(self, options: dict[str, Any], files: Mapping[str, str]) -> str:
        cancelled = 0
        with self._lock:
            for each in options["ids"]:
                if self.requests[each].status in ("PENDING", "RUNNING"):
                    self.requests[each].status = "CANCELLED"
                    cancelled += 1
        return f"Cancelled {cancelled} requests.\n"

    # Machines

    def _carry_out(self, request: Request, task: CheckedTask, idle_minutes: int) -> None:
        """Launch a cluster, in a thread of its own."""
        with self._lock:
            if request.status != "PENDING" or self._there(request.cluster) is not None:
                return
            request.status = "RUNNING"
            cluster = Cluster(request.cluster, task, request, idle_minutes, time.time())
            self.clusters.append(cluster)
        cluster.end_is_asked.wait(self.provision_s)
        with self._lock:
            if request.status != "RUNNING":
                return
            if task.machine.name in self.sold_out:
                request.error = _CLAIM.format(task.machine.infra, task.machine.name)
                request.status, cluster.is_listed, cluster.ended_s = "FAILED", False, cluster.rented_s
                return
            cluster.container = self._container_of(task)
            cluster.status, request.status = "UP", "SUCCEEDED"
        self._await_idleness(cluster)

    def _container_of(self, task: CheckedTask) -> RentedContainer:
        script = f"(\n{task.setup}\n) || exit {_SETUP_FAILED}\n{task.run}"
        confines = Confines(
            memory_bytes=task.machine.memory_bytes,
            vcpus=task.machine.vcpus,
            tmp_bytes=_DISK_BYTES,
            shared_memory_bytes=task.machine.memory_bytes // 2,
            is_read_only=False,
            has_init=True,
            user_id=_USER,
            environment={**self.environment, "HOME": "/tmp", **task.environment},
            working_folder="/tmp",
        )
        return RentedContainer(self.host, ["/usr/bin/bash", "-c", script], confines, pull_s=0.0)

    def _await_idleness(self, cluster: Cluster) -> None:
        """Tear a machine down by itself when its task has ended some time ago."""
        assert cluster.container is not None
        cluster.container.wait()
        if not cluster.end_is_asked.wait(cluster.idle_minutes * self.minute_s):
            self._tear_down([cluster])

    def _tear_down(self, clusters: Sequence[Cluster]) -> None:
        for cluster in clusters:
            with self._lock:
                is_first = not cluster.end_is_asked.is_set()
                cluster.end_is_asked.set()
                if cluster.request.status in ("PENDING", "RUNNING"):
                    cluster.request.status = "CANCELLED"
            if is_first and cluster.container is not None:
                cluster.container.stop(_GRACE_S)
        for cluster in clusters:
            if cluster.container is not None:
                cluster.container.wait()
            with self._lock:
                cluster.ended_s = cluster.ended_s or time.time()
                cluster.is_listed = False

    def _there(self, name: str) -> Cluster | None:
        with self._lock:
            return next((each for each in self.clusters if each.is_listed and each.name == name), None)

    # What tests do, and look at

    def lose(self, name: str) -> None:
        """Let a machine vanish at once. SkyPilot learns that when it asks the cloud."""
        cluster = self._there(name)
        assert cluster is not None
        assert cluster.container is not None
        cluster.container.kill()
        cluster.container.wait()
        with self._lock:
            cluster.ended_s = time.time()
            cluster.end_is_asked.set()

    def living(self, prefix: str) -> list[str]:
        """Name the machines that have not ended, of those whose names begin so."""
        with self._lock:
            return [each.name for each in self.clusters if each.name.startswith(prefix) and each.ended_s is None]

    def billed_usd(self, prefix: str) -> float:
        """Return what machines cost that have ended."""
        with self._lock:
            return math.fsum(each.usd for each in self.clusters if each.name.startswith(prefix))


class _Refused(Exception):
    """What a command prints that fails."""


def _json(answer: Any) -> str:
    return json.dumps(answer, indent=2) + "\n"
