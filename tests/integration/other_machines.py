"""Machines on which runs stand: some that ssh reaches, the nodes of a Slurm cluster, and those of a Ray cluster."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.machines.machine import Machine
from lab.machines.ray import RayMachines, is_rays, missing_ray, ray_cluster
from lab.machines.slurm import PROGRAMS as SLURM_PROGRAMS
from lab.machines.slurm import SlurmCluster, SlurmSettings, slurm_cluster
from lab.machines.ssh import PROGRAMS as SSH_PROGRAMS
from lab.machines.ssh import ssh_servers
from lab.platform_scenes import laboratory
from lab.servers import S3Server
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.platforms.line_link import LineLink
from zooid.platforms.ray.ray_cluster import open_driver

GIB = 2**30
AGENT = "os.read(0"
"""Part of the command of an agent, which ends with the coordinator."""


@dataclass
class OtherMachines:
    """Five machines. The first has the controller of Slurm and the head of Ray, and the others have members."""

    machines: tuple[Machine, ...]
    server: S3Server
    bucket: str
    slurm: SlurmCluster
    """Its nodes are the second and the third machine."""
    ray: RayMachines
    """Its nodes are the second, the third and the fourth machine."""
    ray_link: LineLink

    @property
    def with_ssh(self) -> tuple[Machine, ...]:
        """The last three machines."""
        return self.machines[2:]

    def check_nothing_is_left(self) -> None:
        """Wait until no process, file, cgroup, job or actor is left on any machine, as far as it still has power."""
        try:
            wait_until(lambda: not self.leftovers(), timeout_s=15.0)
        except AssertionError:
            raise AssertionError(f"left behind: {self.leftovers()}") from None

    def leftovers(self) -> list[str]:
        found = []
        for machine in self.machines:
            if machine.is_on:
                processes = [process for process in machine.processes() if not is_rays(process)]
                found += [process.command for process in processes if AGENT not in process.command]
                found += [path for path in (*machine.files(), *machine.cgroups()) if "/.aws" not in path]
        jobs = subprocess.run(["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=True)
        found += jobs.stdout.splitlines()
        num_cpus = sum(node.get("CPU", 0.0) for node in self.ray_link.ask("nodes"))
        num_free = self.ray_link.ask("free").get("CPU", 0.0)
        return [*found, *([f"{num_cpus - num_free:g} CPUs of Ray"] if num_free < num_cpus else [])]


@contextmanager
def other_machines(folder: Path) -> Iterator[OtherMachines]:
    """Start all of it, with a file of machines in this folder, which names every place."""
    if missing_ray() is not None:
        pytest.skip(f"machines need {missing_ray()}")
    with (
        or_skip(laboratory(5, (*SSH_PROGRAMS, *SLURM_PROGRAMS))) as (made, server),
        slurm_cluster(made[:3], SlurmSettings(node_timeout_s=3)) as slurm,
        ray_cluster(made[:4], num_cpus=1, memory_bytes=4 * GIB) as ray,
        ssh_servers(made[2:]) as config,
        pytest.MonkeyPatch.context() as patch,
    ):
        python = f'python = "{made[0].python}"\nsite = "laboratory"\nvcpus = 1\n'
        tables = [
            *(f'[ssh.{machine.name}]\nconfig = "{config}"\nmemory = "4 GB"\n{python}' for machine in made[2:]),
            f'[slurm.short]\npartition = "long"\nmemory = "2600 MiB"\n{python}',  # two do not fit on one node
            f'[ray.cluster]\naddress = "{ray.address}"\nmemory = "2600 MiB"\nmembers = 3\n{python}',
        ]
        file = folder / "machines.toml"
        file.write_text("\n".join(tables))
        for name, value in {**slurm.environment, "ZOOID_MACHINES": str(file)}.items():
            patch.setenv(name, value)
        link = open_driver(ray.address)
        try:
            yield OtherMachines(made, server, server.bucket_url("training"), slurm, ray, link)
        finally:
            link.close()
