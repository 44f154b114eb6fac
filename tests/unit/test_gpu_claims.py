"""Every member of a machine gets a GPU of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zooid.entry.gpu_claims import gpu_settings

CLAIM = """
import sys
from zooid.entry.gpu_claims import gpu_settings
print(gpu_settings(uses_gpus=True).get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771'; echo 'NVIDIA H200, 143771'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def claiming() -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", CLAIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_each_process_gets_another_one_until_all_are_taken() -> None:
    processes = []
    try:
        for expected in ("0", "1", ""):
            processes.append(claiming())
            assert told(processes[-1]) == expected
        processes[0].kill()
        processes[0].wait()
        processes.append(claiming())
        assert told(processes[-1]) == "0", "the kernel has freed what the killed process had"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_scheduler_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpu_settings(uses_gpus=True) == {}


def test_a_member_that_computes_on_the_cpu_sees_none() -> None:
    assert gpu_settings(uses_gpus=False) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_machine_without_gpus_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert gpu_settings(uses_gpus=True) == {}
