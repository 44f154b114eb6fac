"""What Slurm prints about jobs and nodes becomes what users read; and what is submitted says what members need."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from zooid.catalog.machines_file import OwnPlace, offer_of_place, own_places
from zooid.core.errors import InputError
from zooid.core.resources.size import Size
from zooid.core.runs.member_records import Exit
from zooid.core.runs.ticket import Ticket
from zooid.platforms import Launch
from zooid.platforms.slurm import Cluster, SlurmPartition
from zooid.platforms.slurm.batch_script import batch_script, fits_array, sbatch_command
from zooid.platforms.slurm.job_rows import _COLUMNS as JOB_COLUMNS
from zooid.platforms.slurm.job_rows import JobRow, parse_rows
from zooid.platforms.slurm.node_rows import _COLUMNS as NODE_COLUMNS
from zooid.platforms.slurm.node_rows import _member_sizes, parse_nodes

MIB = 2**20
PARTITION = SlurmPartition("short", Cluster(), vcpus=1.5, memory_bytes=1000 * MIB)


def job_line(**cells: str) -> str:
    usual = {
        "ArrayJobID": "12",
        "ArrayTaskID": "N/A",
        "State": "RUNNING",
        "Reason": "None",
        "exit_code": "0",
        "MinMemory": "512M",
        "TimeLimit": "2:00",
        "NodeList": "node7",
        "Comment": "000000.m0",
    }
    return line_of(JOB_COLUMNS, {**usual, **cells})


def line_of(widths: Mapping[str, int], cells: Mapping[str, str]) -> str:
    return "".join(cells[name].ljust(width) for name, width in widths.items())


def row(**cells: str) -> JobRow:
    [found] = parse_rows(job_line(**cells)).values()
    return found


def launch(member: str, size: Size | None = None, lifetime_s: float | None = None) -> Launch:
    ticket = Ticket(
        run="run",
        member=member,
        roster=0,
        program="worker",
        spec_url="s3://bucket/run/specs/000000/m.json",
        spec_digest="",
        num_threads=1,
        size=size,
        lifetime_s=lifetime_s,
        gpu="own",
    )
    return Launch(ticket, "slurm.short", platform="slurm", package="digest")


class TestJobs:
    @pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"])
    def test_those_that_exist(self, state: str) -> None:
        assert row(State=state).is_living
        assert not row(State=state).is_hopeless

    @pytest.mark.parametrize(
        ("cells", "words"),
        [
            ({"State": "TIMEOUT"}, "was ended by Slurm: the time limit of its job, 2:00, was over"),
            ({"State": "NODE_FAIL"}, "is lost with its node node7, which has failed"),
            ({"State": "PREEMPTED"}, "was ended by Slurm, which needed its node for another job"),
            ({"State": "CANCELLED"}, "was cancelled in Slurm"),
            ({"State": "FAILED", "exit_code": "9"}, "was killed by signal 9 (SIGKILL)"),
            (
                {"State": "FAILED", "Reason": "NonZeroExitCode", "exit_code": str(126 << 8)},
                "could not be started: its job 12 is FAILED (NonZeroExitCode), status 126",
            ),
            (
                {"State": "OUT_OF_MEMORY", "exit_code": "253"},
                "was ended by the kernel: it used more than its 536.9 MB of memory",
            ),
            ({"State": "OUT_OF_MEMORY", "MinMemory": "0"}, "was ended by Slurm: it used more than its memory"),
            (
                {"State": "FAILED", "exit_code": "768", "Comment": "000000.m0: Traceback:\\n  there\\nKeyError: 3"},
                "could not be started: KeyError: 3",
            ),
        ],
    )
    def test_those_that_have_ended(self, cells: dict[str, str], words: str) -> None:
        ended = row(**cells)
        assert not ended.is_living
        assert str(ended.end) == words

    def test_those_that_have_ended_well_say_nothing(self) -> None:
        assert row(State="COMPLETED").end is None
        assert not row(State="COMPLETED").is_living

    def test_all_lines_of_the_last_words_are_kept(self) -> None:
        ended = row(State="FAILED", Comment="000000.m0: first\\nsecond").end
        assert ended == Exit(None, reason="could not be started: second", output="first\nsecond")

    @pytest.mark.parametrize(
        "reason", ["PartitionConfig", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit", "BadConstraints", "InvalidQOS"]
    )
    def test_those_that_wait_for_ever(self, reason: str) -> None:
        waiting = row(State="PENDING", Reason=reason)
        assert waiting.is_hopeless
        assert reason in str(waiting.hopelessness)

    @pytest.mark.parametrize("reason", ["Resources", "Priority", "ReqNodeNotAvail", "AssocGrpCpuLimit", "BeginTime"])
    def test_those_that_wait_for_others(self, reason: str) -> None:
        assert not row(State="PENDING", Reason=reason).is_hopeless

    def test_titles_follow_from_the_number_in_the_array(self) -> None:
        lines = [
            job_line(ArrayTaskID="0", Comment="000002.m0,m1,m2"),
            job_line(ArrayTaskID="2", Comment="000002.m0,m1,m2"),
            job_line(ArrayTaskID="1", Comment="000002.m1: it failed", State="FAILED"),
        ]
        rows = parse_rows("\n".join(lines))
        assert {title: found.job for title, found in rows.items()} == {
            "000002.m0": "12_0",
            "000002.m1": "12_1",
            "000002.m2": "12_2",
        }

    def test_the_job_that_exists_counts_and_then_the_newest(self) -> None:
        lines = [job_line(ArrayJobID=job, State=state) for job, state in (("9", "FAILED"), ("10", "FAILED"))]
        assert parse_rows("\n".join(lines))["000000.m0"].job == "10"
        lines.append(job_line(ArrayJobID="8"))
        assert parse_rows("\n".join(lines))["000000.m0"].job == "8"

    @pytest.mark.parametrize(
        "line",
        ["", "squeue: warning: something", job_line(Comment=""), job_line(Comment="a note"), job_line(exit_code="")],
    )
    def test_other_lines_are_left_out(self, line: str) -> None:
        assert parse_rows(line) == {}


class TestNodes:
    def lines(self, *nodes: dict[str, str]) -> str:
        usual = {
            "NodeHost": "node1",
            "StateLong": "idle",
            "CPUsState": "0/32/0/32",
            "Memory": "64000",
            "AllocMem": "0",
            "Time": "1-00:00:00",
            "Gres": "(null)",
        }
        return "\n".join(line_of(NODE_COLUMNS, {**usual, **node}) for node in nodes)

    def test_a_member_gets_the_smallest_node(self) -> None:
        nodes = parse_nodes(self.lines({}, {"CPUsState": "16/0/0/16", "Memory": "32000"}))
        assert _member_sizes(nodes, {}) == {
            "vcpus": 16.0,
            "memory": 32000 * MIB,
            "members": 2 + 1,
            "lifetime": "86400 s",
        }

    def test_a_member_gets_one_gpu_and_its_part_of_the_node(self) -> None:
        nodes = parse_nodes(self.lines({"Gres": "gpu:a100:4(S:0-1)", "Time": "infinite"}))
        sizes = _member_sizes(nodes, {})
        assert sizes == {"vcpus": 8.0, "memory": 16000 * MIB, "gpu": "a100", "num_gpus": 1, "members": 4}
        offer = offer_of_place(OwnPlace("slurm.gpus", {}, {"gpu_memory": "40 GB"}), sizes)
        assert (offer.num_gpus, offer.vcpus, offer.gpu_memory_bytes) == (1, 8.0, 40 * 10**9)

    def test_given_sizes_say_how_many_members_fit(self) -> None:
        nodes = parse_nodes(self.lines({}, {"Gres": "gpu:4"}))
        assert _member_sizes(nodes, {"vcpus": 4, "memory": "20000 MiB"}) == {"members": 6, "lifetime": "86400 s"}

    @pytest.mark.parametrize(
        ("node", "num_members"),
        [
            ({}, 8),
            ({"CPUsState": "20/12/0/32", "StateLong": "mixed"}, 3),
            ({"AllocMem": "60000", "StateLong": "mixed"}, 1),
            ({"StateLong": "down*"}, 0),
            ({"StateLong": "drained"}, 0),
        ],
    )
    def test_what_is_free(self, node: dict[str, str], num_members: int) -> None:
        [found] = parse_nodes(self.lines(node))
        assert found.num_members(4, 4000) == num_members


class TestSubmissions:
    def test_options_say_what_a_member_needs(self) -> None:
        command = sbatch_command([launch("m0"), launch("m1")], PARTITION)
        assert {"--cpus-per-task=2", "--mem=1000M", "--array=0-1", "--comment=000000.m0,m1"} <= set(command)
        assert {"--job-name=zooid-run", "--no-requeue", "--export=ALL", "--signal=B:TERM@60"} <= set(command)
        assert not any(word.startswith(("--time", "--gres")) for word in command)

    def test_a_lifetime_becomes_a_time_limit_and_a_notice(self) -> None:
        command = sbatch_command([launch("m0", lifetime_s=61.0)], PARTITION)
        assert {"--time=2", "--signal=B:TERM@30"} <= set(command)
        assert not any(word.startswith("--array") for word in command)

    def test_a_size_of_its_own_leaves_room_for_the_program_that_attends_the_member(self) -> None:
        command = sbatch_command([launch("m0", Size(3.0, 64 * MIB))], PARTITION)
        assert {"--cpus-per-task=3", "--mem=320M"} <= set(command)

    def test_a_gpu_and_options_of_the_user(self) -> None:
        partition = SlurmPartition("p", Cluster(), 1.0, MIB, has_gpu=True, options="--account='my group' --mem=7G")
        command = sbatch_command([launch("m0")], partition)
        assert "--gres=gpu:1" in command
        assert command[-2:] == ["--account=my group", "--mem=7G"]
        with pytest.raises(InputError, match="close all quotes"):
            SlurmPartition("p", Cluster(), 1.0, MIB, options="--account='my")
        [order] = [json.loads(line) for line in batch_script([launch("m0")], partition).splitlines()[-1:]]
        assert order["ticket"]["gpu"] == "assigned"

    @pytest.mark.parametrize(
        "option",
        ["--comment=x", "--job-name x", "-J x", "-Jx", "--array=0-3", "--arr=1", "-a1", "-o f", "--output=f", "-Mc"],
    )
    def test_options_that_would_lose_jobs_are_refused_by_name(self, option: str) -> None:
        name = option.partition("=")[0].partition(" ")[0]
        with pytest.raises(
            InputError, match=f"the options of sbatch have {name}, with which zooid would lose its jobs"
        ):
            SlurmPartition("p", Cluster(), 1.0, MIB, options=f"--account=abc {option}")

    @pytest.mark.parametrize("options", ["--account=array -A a", "--constraint=comment --mem 7G", "-m block -c 2"])
    def test_other_options_are_passed_on(self, options: str) -> None:
        partition = SlurmPartition("p", Cluster(), 1.0, MIB, options=options)
        assert sbatch_command([launch("m0")], partition)[-len(options.split()) :] == options.split()

    def test_an_array_ends_before_its_comment_is_full(self) -> None:
        assert fits_array([launch(f"r{number}s0") for number in range(100)])
        assert not fits_array([launch(f"r{number}s0") for number in range(200)])
        assert not fits_array([launch("m") for _ in range(1001)])

    def test_every_job_finds_its_order_and_no_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
        script = batch_script([launch("m0"), launch("m1")], PARTITION)
        assert script.startswith("#!/bin/sh -l\n")
        orders = [json.loads(line) for line in script.splitlines()[-2:]]
        assert [order["title"] for order in orders] == ["000000.m0", "000000.m1"]
        assert orders[0]["environment"]["ZOOID_NOTICE_SECONDS"] == "60"
        assert orders[0]["ticket"]["gpu"] == "none", "those of the node belong to others"
        assert "a secret" not in script
        assert len(script) < 100_000, "Slurm takes scripts of up to 4 MB"


def test_sizes_and_prices_of_a_partition_are_those_of_one_member(tmp_path: Path) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(
        "[slurm.short]\nlogin = 'here'\nvcpus = 4\nmemory = '8 GB'\nmembers = 6\nusd_per_hour = 0.5\nlifetime = '2 h'\n"
    )
    place = own_places(file)["slurm.short"]
    assert place.options == {"login": "here"}
    offer = offer_of_place(place)
    assert (offer.vcpus, offer.memory_bytes, offer.max_members) == (4.0, 8 * 10**9, 6)
    assert (offer.usd_per_hour, offer.lifetime_s, offer.is_elsewhere) == (0.5, 7200.0, True)
    unlimited = offer_of_place(OwnPlace("slurm.short", {}, {"vcpus": 4, "memory": "8 GB"}))
    assert unlimited.max_members is None
