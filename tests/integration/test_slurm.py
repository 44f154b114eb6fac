"""Members as jobs of a real Slurm cluster: how they are submitted, found and ended, and what users read."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from lab.machines.machine import Machine
from lab.machines.slurm import PROGRAMS, SlurmCluster, SlurmSettings, slurm_cluster
from lab.machines.ssh import PROGRAMS as SSH_PROGRAMS
from lab.machines.ssh import ssh_servers
from lab.members import Members
from lab.platform_scenes import MIB, laboratory, server_url
from lab.servers import S3Server
from lab.waiting import wait_until
from tests.integration.test_other_machines import has
from tests.integration.training_command import training_command
from tests.scenes import or_skip
from zooid.catalog.machines_file import OwnPlace, offer_of_place
from zooid.coordinator.plans.own_offers import own_offer, slurm_partition
from zooid.core.errors import InputError
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.ticket import title_of
from zooid.platforms import Launch
from zooid.platforms.slurm import Cluster, SlurmPartition, SlurmPlatform
from zooid.platforms.slurm.cluster_commands import ClusterCommands
from zooid.store import open_store

pytestmark = pytest.mark.timeout(180)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
GROWING = "held = [bytearray(2**20) for _ in range(1000)]"


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[SlurmCluster, S3Server, Path]]:
    """A cluster of two nodes, a store, and a configuration with which ssh reaches the controller."""
    settings = SlurmSettings(node_timeout_s=3)
    with (
        or_skip(laboratory(3, (*PROGRAMS, *SSH_PROGRAMS))) as (made, server),
        slurm_cluster(made, settings) as cluster,
        ssh_servers(made[:1]) as config,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster, server, config


@pytest.fixture
def cluster(scene: tuple[SlurmCluster, S3Server, Path]) -> SlurmCluster:
    return scene[0]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """All commands that are given to Slurm."""
    commands: list[Sequence[str]] = []
    give = ClusterCommands.give

    def noted(self: ClusterCommands, command: Sequence[str], text: str = "") -> str:
        commands.append(command)
        return give(self, command, text)

    monkeypatch.setattr(ClusterCommands, "give", noted)
    return commands


def partition(scene: SlurmCluster, /, **fields: object) -> SlurmPartition:
    first = SlurmPartition(
        partition="long", cluster=Cluster(), vcpus=1.0, memory_bytes=512 * MIB, python=scene.nodes[0].python
    )
    return replace(first, **fields)  # type: ignore[arg-type]


def members_on(chosen: SlurmPartition, scene: tuple[SlurmCluster, S3Server, Path], folder: Path) -> Members:
    offer = offer_of_place(OwnPlace("slurm.chosen", {}, {"vcpus": 1.0, "memory": chosen.memory_bytes}))
    run = folder.name.replace("_", "-")
    return Members(SlurmPlatform(lambda name: chosen), folder, run, server_url(scene[1])(f"{run}-run"), [offer])


def started(members: Members, *programs: str, python: str = "/opt/zooid-python/bin/python") -> list[Launch]:
    """Start members that run these programs instead of their own."""
    launches: list[Launch] = []
    for program in programs:
        launch = members.launch(f"m{len(members.launched) + len(launches)}", "")
        launches.append(replace(launch, ticket=structs.replace(launch.ticket, prefix=(python, "-c", program))))
    members.create(launches)
    return launches


def living_jobs() -> list[str]:
    answer = subprocess.run(["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


def is_clean(cluster: SlurmCluster) -> bool:
    """Whether no job, no process and no file is left."""
    nodes = [node for node in cluster.nodes if node.is_on]
    files = [file for node in nodes for file in node.files() if "/.aws" not in file]
    return not living_jobs() and not files and not any(node.processes() for node in nodes)


def machines_file(cluster: SlurmCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Write the user's file of machines, with one partition."""
    file = folder / "machines.toml"
    first = ("[slurm.tested]", 'partition = "long"', f'python = "{cluster.nodes[0].python}"')
    file.write_text("\n".join((*first, *lines, "")))
    monkeypatch.setenv("ZOOID_MACHINES", str(file))


def remove_dead_folders(node: Machine) -> None:
    """Remove what killed processes could not; a later job on the node would."""
    node.run(["sh", "-c", "rm -rf /tmp/zooid-*"])


LARGE = ("vcpus = 1", 'memory = "2600 MiB"')
"""Two members of this size do not fit on one node."""


OPTIONS = ("--on", "slurm.tested", "--layout", "2x1", "--no-profile")


def test_members_of_a_killed_coordinator_are_ended_from_elsewhere(
    scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cleans knows nothing but the run's folder and how to log in: the handles there say where."""
    cluster, server, config = scene
    machines_file(
        cluster, tmp_path, monkeypatch, *LARGE, f'login = "{cluster.controller.name}"', f'config = "{config}"'
    )
    url = server_url(server)("killed")
    with training_command(tmp_path, url, *OPTIONS) as process:
        wait_until(has(url, f"{keys.EVENTS}/000000/r0s0"), timeout_s=60.0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(living_jobs()) == 2, "members go on without their coordinator"
    monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "none.toml"))
    zooid.clean(url, force=True, trust_handles=True)
    wait_until(lambda: is_clean(cluster) and not cluster.controller.processes())


def test_a_crew_is_one_submission_and_is_listed_and_ended_over_ssh(
    scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, given: list[Sequence[str]]
) -> None:
    cluster, _, config = scene
    login = Cluster(cluster.controller.name, str(config))
    members = members_on(partition(cluster, cluster=login), scene, tmp_path)
    launches = started(members, SLEEP, SLEEP, SLEEP)
    for launch in launches:
        assert members.first_line(launch.member) == "here"
    handle = decode_record(bytes(members.store.get(keys.handle("m0", 0))), MemberHandle, "m0")
    assert handle.place == {"login": cluster.controller.name, "config": str(config), "cluster": "zooid"}
    members.delete("m0")
    assert [members.is_running(f"m{number}") for number in range(3)] == [False, True, True]
    members.end()
    assert [members.status_of(launch.member) for launch in launches] == [-signal.SIGTERM] * 3
    assert [command[0] for command in given].count("sbatch") == 1
    assert len([process for process in cluster.controller.all_processes() if process.command == "sh -l"]) == 1
    members.platform.release()
    wait_until(lambda: is_clean(cluster) and not cluster.controller.processes())


def test_looking_often_asks_slurm_once_a_second(
    scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, given: list[Sequence[str]]
) -> None:
    members = members_on(partition(scene[0]), scene, tmp_path)
    [launch] = started(members, SLEEP)
    members.first_line(launch.member)
    given.clear()
    for _ in range(100):
        assert members.is_running(launch.member)
    assert len(given) <= 1
    members.end()


def test_a_member_is_not_found_on_another_cluster(
    scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_on(partition(scene[0]), scene, tmp_path)
    members.launch("m0", "")
    handle = decode_record(bytes(members.store.get(keys.handle("m0", 0))), MemberHandle, "m0")
    assert members.platform.watch(handle, title_of("m0", 0))
    elsewhere = structs.replace(handle, place={**handle.place, "cluster": "another"})
    assert not members.platform.watch(elsewhere, title_of("m0", 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not members.platform.watch(handle, title_of("m0", 0))


def test_a_job_that_hangs_is_ended_by_force(scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path) -> None:
    members = members_on(partition(scene[0]), scene, tmp_path)
    [launch] = started(members, SLEEP)
    members.first_line(launch.member)
    processes = [process for node in scene[0].nodes for process in node.processes()]
    [attendant] = [process for process in processes if "run_job(" in process.command]
    os.kill(attendant.outer_pid, signal.SIGSTOP)
    members.end()
    assert not any(node.processes() for node in scene[0].nodes)
    assert not members.is_running(launch.member)
    for node in scene[0].nodes:
        remove_dead_folders(node)


class TestWords:
    """What users read when something goes wrong."""

    def test_out_of_memory(self, scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path) -> None:
        if not scene[0].has_memory_limits:
            pytest.skip("memory limits of jobs need cgroups of version 1")
        members = members_on(partition(scene[0], memory_bytes=300 * MIB), scene, tmp_path)
        [launch] = started(members, GROWING)
        ended = members.end_of(launch.member)
        assert ended.exceeded_bytes == 300 * MIB
        title = launch.ticket.title
        wait_until(lambda: members.platform.members(members.run).get(title) is not None)
        told = members.platform.members(members.run)[title]
        assert str(told) == "was ended by the kernel: it used more than its 314.6 MB of memory"

    @pytest.mark.parametrize("options", [[], ["--full", "--signal=KILL"]])
    def test_a_job_that_somebody_cancels(
        self, scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, options: list[str]
    ) -> None:
        members = members_on(partition(scene[0]), scene, tmp_path)
        [launch] = started(members, SLEEP)
        members.first_line(launch.member)
        subprocess.run(["scancel", "--me", *options], check=True)
        assert str(members.end_of(launch.member)) == "was cancelled in Slurm"
        assert members.log(launch.member) == "here\n"
        for node in scene[0].nodes:
            remove_dead_folders(node)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"partition": "nowhere"}, "could not be started: .*Invalid partition name specified"),
            ({"memory_bytes": 99 * 2**30}, "could not be started: .*Requested node configuration is not available"),
            (
                {"options": "--time=60", "partition": "short"},
                "could not be started: Slurm keeps its job .* pending",
            ),
            ({"options": "--nonsense"}, "could not be started: .*unrecognized option '--nonsense'"),
            ({"python": "/nowhere/python"}, "could not be started: there is no program /nowhere/python on machine"),
        ],
    )
    def test_a_job_that_cannot_start(
        self, scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path, fields: dict[str, object], words: str
    ) -> None:
        members = members_on(partition(scene[0], **fields), scene, tmp_path)
        for launch in started(members, SLEEP, SLEEP):
            assert re.search(words, members.end_of(launch.member).reason)
        members.end()
        wait_until(lambda: is_clean(scene[0]))

    def test_a_store_that_no_node_reaches(self, scene: tuple[SlurmCluster, S3Server, Path], tmp_path: Path) -> None:
        members = members_on(partition(scene[0]), scene, tmp_path)
        members.store = open_store((tmp_path / "store").as_uri())
        for launch in started(members, SLEEP, SLEEP):
            reason = members.end_of(launch.member).reason
            assert reason.startswith("could not be started: ValueError: file://")
            assert reason.endswith(
                "give a store that all machines reach, such as s3://bucket/run, or a folder that they share"
            )
        wait_until(lambda: is_clean(scene[0]))


def test_slurm_is_asked_for_what_the_file_does_not_say(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = own_offer("slurm.short")
    assert (offer.vcpus, offer.memory_bytes, offer.lifetime_s, offer.max_members) == (4.0, 4096 * MIB, 120.0, 2)
    machines_file(cluster, tmp_path, monkeypatch, *LARGE, "usd_per_hour = 2.0")
    offer = own_offer("slurm.tested")
    assert (offer.vcpus, offer.memory_bytes, offer.usd_per_hour) == (1.0, 2600 * MIB, 2.0)
    assert (offer.lifetime_s, offer.max_members) == (None, 2)
    with pytest.raises(InputError, match=r"no nodes in a partition 'nowhere'; it has long, short: give `partition`"):
        own_offer("slurm.nowhere")
    platform = SlurmPlatform(slurm_partition)
    assert [platform.has_room(number, "slurm.tested") for number in (2, 3)] == [True, False]
