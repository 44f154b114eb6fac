"""The laboratory's Slurm cluster runs jobs on its nodes, holds its limits, and notices a dead node."""

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from lab.machines.slurm import PROGRAMS, SlurmCluster, SlurmSettings, slurm_cluster
from lab.waiting import wait_until
from tests.integration.laboratory import machines_or_skip

pytestmark = pytest.mark.timeout(60)

UNTIL_TERMINATED = "trap 'echo told; exit 5' TERM; touch /tmp/begun; sleep 60 & wait"
TOO_MUCH = "exec /opt/zooid-python/bin/python -c 'bytearray(300_000_000)'"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with machines_or_skip(3, *PROGRAMS) as made, slurm_cluster(made) as started:
        yield started


def slurm(cluster: SlurmCluster, *command: str, script: str = "") -> str:
    """Give a command on the coordinator's side."""
    environment = {**os.environ, **cluster.environment}
    answer = subprocess.run(command, env=environment, input=script, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def submit(cluster: SlurmCluster, script: str, *options: str) -> str:
    lines = f"#!/bin/sh\n{script}\n"
    return slurm(cluster, "sbatch", "--parsable", "--chdir=/root", *options, script=lines).strip()


def state(cluster: SlurmCluster, job: str) -> tuple[str, str]:
    """State and exit code of a job."""
    said = slurm(cluster, "scontrol", "--oneliner", "show", "job", job)
    found = dict(re.findall(r"(\w+)=(\S*)", said))
    return found["JobState"], found["ExitCode"]


def has_ended(cluster: SlurmCluster, job: str) -> bool:
    return state(cluster, job)[0] not in ("PENDING", "RUNNING", "COMPLETING")


@pytest.mark.parametrize("number", [0, 1])
def test_a_job_runs_on_each_node_and_its_exit_status_is_known(cluster: SlurmCluster, number: int) -> None:
    node = cluster.nodes[number]
    job = submit(cluster, f"hostname; exit {number}", f"--nodelist={node.name}")
    wait_until(lambda: has_ended(cluster, job))
    assert state(cluster, job) == ("FAILED" if number else "COMPLETED", f"{number}:0")
    assert node.read(f"/root/slurm-{job}.out") == f"{node.name}\n"
    assert node.processes() == []


def test_a_cancelled_job_gets_sigterm(cluster: SlurmCluster) -> None:
    node = cluster.nodes[0]
    job = submit(cluster, UNTIL_TERMINATED, f"--nodelist={node.name}")
    wait_until(lambda: "/tmp/begun" in node.files())
    slurm(cluster, "scancel", job)
    wait_until(lambda: state(cluster, job) == ("CANCELLED", "5:0"))
    wait_until(lambda: node.processes() == [])
    assert node.read(f"/root/slurm-{job}.out").endswith("told\n")


def test_a_job_changes_its_own_comment(cluster: SlurmCluster) -> None:
    job = submit(cluster, "scontrol update JobId=$SLURM_JOB_ID Comment=said-on-$(hostname)", "--partition=short")
    wait_until(lambda: state(cluster, job) == ("COMPLETED", "0:0"))
    said = slurm(cluster, "scontrol", "show", "job", job)
    assert any(f"Comment=said-on-{node.name}" in said for node in cluster.nodes)


def test_a_job_keeps_to_its_memory(cluster: SlurmCluster) -> None:
    if not cluster.has_memory_limits:
        pytest.skip("memory limits of jobs need cgroups of version 1")
    job = submit(cluster, TOO_MUCH, "--mem=200M")
    wait_until(lambda: state(cluster, job) == ("OUT_OF_MEMORY", "0:125"))


def test_commands_work_on_the_controller_too(cluster: SlurmCluster) -> None:
    job = cluster.controller.run(["sbatch", "--parsable", "--wrap=true"]).stdout.strip()
    wait_until(lambda: state(cluster, job) == ("COMPLETED", "0:0"))


def test_a_node_without_power_fails_its_jobs() -> None:
    with (
        machines_or_skip(2, *PROGRAMS) as made,
        slurm_cluster(made, SlurmSettings(node_timeout_s=3)) as cluster,
    ):
        (node,) = cluster.nodes
        job = submit(cluster, UNTIL_TERMINATED, "--no-requeue")
        wait_until(lambda: "/tmp/begun" in node.files())
        node.power_off()
        wait_until(lambda: state(cluster, job) == ("NODE_FAIL", "0:0"), timeout_s=50)
        assert slurm(cluster, "sinfo", "--noheader", "--partition=long", "--format=%T").strip() == "down*"
