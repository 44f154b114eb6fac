"""What a machine says about itself."""

import json
import os
import sys
from pathlib import Path

import pytest

from zooid.entry import machine_facts
from zooid.entry.machine_facts import facts


def test_they_are_those_of_this_machine() -> None:
    found = facts()
    assert 1 <= found["cores"] <= len(os.sched_getaffinity(0))
    assert 0 < found["memory_bytes"] <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"].keys() == {"torch", "obstore", "msgspec"}
    assert found["packages"]["msgspec"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("script", "gpus", "error"),
    [
        (
            "echo 'NVIDIA H200, 143771'; echo 'NVIDIA GB10, [N/A]'",
            [{"name": "NVIDIA H200", "memory_bytes": 150754820096}, {"name": "NVIDIA GB10", "memory_bytes": None}],
            "",
        ),
        ("echo 'No devices were found'", [], ""),
        ("echo 'Failed to initialize NVML'; exit 9", [], "Failed to initialize NVML"),
        ("echo 'NVML: Driver mismatch'; echo 'Library: 535.1'; exit 9", [], "NVML: Driver mismatch Library: 535.1"),
        ("exit 3", [], "nvidia-smi ended with status 3"),
    ],
)  # fmt: skip
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, gpus: list[object], error: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = facts()
    assert (found["gpus"], found["gpu_error"]) == (gpus, error)


def test_a_driver_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine_facts, "_NVIDIA_LIMIT_S", 0.1)
    assert "timed out" in facts()["gpu_error"]


def test_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (facts()["gpus"], facts()["gpu_error"]) == ([], "")
