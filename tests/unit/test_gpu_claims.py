"""Every member of a machine gets a GPU of its own as long as there are enough, and never computes without one."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zooid.core.errors import InputError
from zooid.core.runs.ticket import GpuUse
from zooid.entry import gpu_claims
from zooid.entry.gpu_claims import gpu_settings

CLAIM = """
import sys
from zooid.core.errors import InputError
from zooid.entry import gpu_claims
gpu_claims._NAMES = sys.argv[3]
try:
    print(gpu_claims.gpu_settings(sys.argv[1], wait_s=float(sys.argv[2])).get("CUDA_VISIBLE_DEVICES"), flush=True)
except InputError as error:
    print(error, flush=True)
sys.stdin.read()
"""
HOST = os.uname().nodename
Claim = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771'; echo 'NVIDIA H200, 143771'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def claim() -> Iterator[Claim]:
    """Start processes that claim a GPU and keep it, among names that no other test has."""
    processes, names = [], secrets.token_hex(8)

    def claiming(use: str, wait_s: float = 0.0) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", CLAIM, use, str(wait_s), names]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield claiming
    for process in processes:
        process.kill()
        process.communicate()


def told(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_each_member_gets_another_one_and_fails_when_all_are_taken(claim: Claim) -> None:
    assert [told(claim("own")) for _ in range(2)] == ["0", "1"]
    assert told(claim("own", 0.3)) == (
        f"other members have used all 2 GPUs of {HOST} for 0.3 s; start at most one member for each GPU there "
        "(`members` in the file of machines), or wait until other runs on that machine have ended"
    )


def test_a_member_waits_for_one_that_ends(claim: Claim) -> None:
    first, _ = [claim("own") for _ in range(2)]
    freed = told(first)
    waiting = claim("own", 30.0)
    time.sleep(0.5)
    first.kill()
    first.wait()
    assert told(waiting) in ("0", "1"), f"the kernel has freed GPU {freed}"


def test_members_of_this_machine_share_only_when_all_are_taken(claim: Claim) -> None:
    assert [told(claim("shared")) for _ in range(5)] == ["0", "1", "0", "1", "0"]
    assert told(claim("own", 0.1)).startswith("other members have used all 2 GPUs")


@pytest.mark.parametrize(
    ("listed", "devices"),
    [("4,6", ["4", "6"]), (" 1 ", ["1"]), ("GPU-8932f937,MIG-5c", ["GPU-8932f937", "MIG-5c"]), ("3,-1,2", ["3"])],
)
def test_claims_are_among_listed_devices(
    claim: Claim, listed: str, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert [told(claim("own")) for _ in devices] == devices
    assert "other members have used" in told(claim("own"))


def test_the_one_gpu_that_a_scheduler_has_assigned_needs_no_claim(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [told(claim("assigned")) for _ in range(2)] == ["0", "0"], "jobs count their own GPUs from 0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert [told(claim("assigned")) for _ in range(2)] == ["0", "1"]


@pytest.mark.parametrize("use", ["own", "assigned"])
@pytest.mark.parametrize("listed", ["", "-1", "NoDevFiles"])
def test_hidden_gpus_are_an_error_and_not_a_reason_to_compute_on_the_cpu(
    use: GpuUse, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    with pytest.raises(InputError, match=f"{HOST} has no GPU .*CUDA_VISIBLE_DEVICES is '{listed}' there.*`num_gpus`"):
        gpu_settings(use)
    assert gpu_settings("shared") == {}, "on this machine, that is how one says that members compute on the CPU"


def test_a_driver_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'the driver is gone'; exit 9\n")
    with pytest.raises(InputError, match=r"no GPU for this member \(the driver is gone\)"):
        gpu_settings("own")
    assert gpu_settings("shared") == {}


def test_members_that_do_not_train_claim_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_claims, "_claim", None)
    assert gpu_settings("none") == {"CUDA_VISIBLE_DEVICES": ""}
    assert gpu_settings("seen") == {}
