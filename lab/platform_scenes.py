"""Platforms on which the same suite runs: this machine, and machines of the laboratory."""

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from msgspec import structs

from lab.machines.machine import Machine, Process, machines, missing_requirement
from lab.machines.ray import is_rays, missing_ray, ray_cluster
from lab.machines.slurm import PROGRAMS as SLURM_PROGRAMS
from lab.machines.slurm import SlurmSettings, slurm_cluster
from lab.machines.ssh import PROGRAMS as SSH_PROGRAMS
from lab.machines.ssh import ssh_servers
from lab.members import Members
from lab.servers import S3Server, moto_s3
from zooid.catalog.machines_file import OwnPlace, offer_of_place
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.errors import ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.resources.size import Size
from zooid.entry import machine_folder
from zooid.platforms import Launch, Platform
from zooid.platforms.local import LocalPlatform
from zooid.platforms.ray import RayCluster, RayPlatform
from zooid.platforms.slurm import Cluster, SlurmPartition, SlurmPlatform
from zooid.platforms.ssh import SshMachine, SshPlatform, SshPool

MIB = 2**20


class MachinesLack(ZooidError):
    """Machines cannot be made here, or lack a program."""


@dataclass
class Scene:
    """A platform, and what a test needs to know about where its members run."""

    name: str
    make: Callable[[], Platform]
    """Makes another object of the same platform, as another process would have it."""
    offers: Sequence[Offer]
    python: str
    """The interpreter where members run."""
    machines: tuple[Machine, ...] = ()
    """The machines on which members run; empty if that is this one."""
    url: Callable[[str], str] | None = None
    """Returns the folder of a run in a store that all machines reach; None for folders of this machine."""
    size: Size = field(default_factory=lambda: Size(1.0, 256 * MIB))
    """A size that members can be held to."""
    is_lost_after_s: float = 30.0
    """Time after which the platform knows that a machine is lost."""
    attendant: str = "exec(compile(sys.stdin.buffer.read()"
    """A part of the command of the program that attends a member on a machine."""
    is_daemon: Callable[[Process], bool] = lambda process: False
    """Whether a process belongs to the platform itself."""
    tight: Offer | None = None
    """The smallest offer of a provider, which decides about a member's memory; None if zooid sets limits itself."""
    notify: Callable[[str, str], None] | None = None
    """Gives the member of this run and title a notice, as its provider does; None to signal its process."""
    gives_notice: bool = True
    """Whether members are told before they are ended for a reason that nobody could know in advance."""
    lose: Callable[[str, str], None] | None = None
    """Lets the container of this run and title vanish at once; None to power off the last machine."""
    is_lost_in_words: str = "lost"
    """Part of what is said about a member that has vanished."""
    left_behind: Callable[[str], list[str]] | None = None
    """Returns everything that members of a run have left with their provider."""
    patience_s: float = 30.0
    """How long a member may take to do something, its start included."""
    is_real: bool = False
    """Whether members run on a real account, where nothing can be broken on purpose."""
    billed_usd: Callable[[str], float] | None = None
    """Returns what the provider charges for the members of a run, by its own clock and price list."""

    @property
    def is_here(self) -> bool:
        """Whether members run on this machine."""
        return not self.offers[0].is_elsewhere

    @cached_property
    def platform(self) -> Platform:
        """One object of the platform, for all who do not need another."""
        return self.make()

    def members(self, folder: Path, run: str = "") -> Members:
        run = run or secrets.token_hex(4)
        url = "" if self.url is None else self.url(run)
        return Members(self.platform, folder, run, url, self.offers, patience_s=self.patience_s)

    def leftovers(self, run: str) -> list[str]:
        """Everything that members of a run have left where they ran."""
        found = [] if self.left_behind is None else self.left_behind(run)
        for machine in self.machines:
            if machine.is_on:
                processes = [process for process in machine.processes() if not self.is_daemon(process)]
                found += [f"{machine.name}: {process.command}" for process in processes]
                files = [file for file in machine.files() if "/.aws" not in file]
                found += [f"{machine.name}: {path}" for path in (*files, *machine.cgroups())]
        if self.is_here:
            folder = Path(machine_folder.run_folder(run))
            found += [str(folder)] if folder.exists() else []
        return found


def running(program: str, scene: Scene, launch: Launch) -> Launch:
    """A launch whose member runs this program instead of its own, which would import torch first."""
    ticket = structs.replace(launch.ticket, prefix=(scene.python, "-c", program))
    return replace(launch, ticket=ticket)


@contextmanager
def local_scene() -> Iterator[Scene]:
    """Members as new processes of this machine."""
    yield Scene("local", lambda: LocalPlatform(forks=False), [resolve_offer("local")], sys.executable)


@contextmanager
def ssh_scene() -> Iterator[Scene]:
    """Members on three machines that ssh reaches."""
    with laboratory(3, SSH_PROGRAMS) as (made, server), ssh_servers(made) as config:
        by_offer = {
            f"ssh.{machine.name}": SshPool((SshMachine(machine.name, machine.python, str(config)),)) for machine in made
        }
        sizes = {"vcpus": 1.0, "memory": "4 GB", "members": 1, "site": "laboratory"}
        offers = [offer_of_place(OwnPlace(name, {}, sizes)) for name in by_offer]
        with ExitStack() as stack:

            def make() -> Platform:
                platform = SshPlatform(by_offer.__getitem__)
                stack.callback(platform.release)
                return platform

            yield Scene("ssh", make, offers, made[0].python, made, server_url(server))


@contextmanager
def slurm_scene() -> Iterator[Scene]:
    """Members as jobs of a cluster. Each node has an offer of its own, so that tests know where members are."""
    settings = SlurmSettings(num_cpus=16, memory_mib=64 * 1024, node_timeout_s=3)
    with laboratory(4, SLURM_PROGRAMS) as (made, server), slurm_cluster(made, settings) as cluster:
        by_offer = {
            f"slurm.{node.name}": SlurmPartition(
                partition="long",
                cluster=Cluster(),
                vcpus=1.0,
                memory_bytes=1024 * MIB,
                python=node.python,
                options=f"--nodelist={node.name}",
            )
            for node in cluster.nodes
        }
        sizes = {"vcpus": 1.0, "memory": 1024 * MIB, "site": "laboratory"}
        offers = [offer_of_place(OwnPlace(name, {}, sizes)) for name in by_offer]
        with variables(cluster.environment):
            yield Scene(
                "slurm",
                lambda: SlurmPlatform(by_offer.__getitem__),
                offers,
                made[0].python,
                cluster.nodes,
                server_url(server),
                attendant="run_job(",
            )


@contextmanager
def ray_scene() -> Iterator[Scene]:
    """Members as actors, reached from outside. Each node has an offer, so that tests know where members are."""
    if missing_ray() is not None:
        raise MachinesLack(f"machines need {missing_ray()}")
    with laboratory(4, ()) as (made, server), ray_cluster(made, num_cpus=40, memory_bytes=64 * 1024 * MIB) as cluster:
        by_offer = {
            f"ray.{node.name}": RayCluster(
                cluster.address, vcpus=1.0, memory_bytes=1024 * MIB, resources=f"node:{node.address}=0.001"
            )
            for node in cluster.nodes
        }
        sizes = {"vcpus": 1.0, "memory": 1024 * MIB, "site": "laboratory"}
        offers = [offer_of_place(OwnPlace(name, {}, sizes)) for name in by_offer]
        with ExitStack() as stack:

            def make() -> Platform:
                platform = RayPlatform(by_offer.__getitem__)
                stack.callback(platform.release)
                return platform

            yield Scene("ray", make, offers, made[0].python, cluster.nodes, server_url(server), is_daemon=is_rays)


@contextmanager
def laboratory(num_machines: int, programs: Sequence[str]) -> Iterator[tuple[tuple[Machine, ...], S3Server]]:
    """Machines, and a store that they reach with credentials of their own; raises MachinesLack without them."""
    lacking = missing_requirement(*programs)
    if lacking is not None:
        raise MachinesLack(f"machines need {lacking}")
    with machines(num_machines) as made, moto_s3(made[0].coordinator_address) as server:
        for machine in made:
            write_credentials(machine, server)
        with variables(server.environment):
            yield made, server


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def write_credentials(machine: Machine, server: S3Server) -> None:
    """Let a machine use the store with a profile of its own."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    lines = [f"{name.lower()} = {server.environment[name]}" for name in names]
    machine.write("/root/.aws/credentials", "\n".join(("[default]", *lines, "")), 0o600)


def server_url(server: S3Server) -> Callable[[str], str]:
    bucket = server.bucket_url("runs")
    return lambda run: f"{bucket}/{run}"


SCENES = {"local": local_scene, "ssh": ssh_scene, "slurm": slurm_scene, "ray": ray_scene}
