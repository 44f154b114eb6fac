"""The backend under torchrun: met through a bucket or through torchrun itself."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.servers import S3Server, moto_s3
from zooid.store import open_store

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
SCRIPT = """
import torch
import torch.distributed as dist
import zooid.comm

dist.init_process_group("zooid")
values = torch.full((50_000,), 1.0 + dist.get_rank())
dist.all_reduce(values)
assert dist.get_backend() == "zooid"
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {values[-1]:g}, {zooid.comm.statistics()}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def torchrun(program: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """What two processes print."""
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    return ended.stdout


def count_of(name: str, output: str) -> list[int]:
    """A number of each rank's statistics."""
    return [int(number) for number in re.findall(rf"\b{name}=(\d+)", output)]


def test_the_example_learns_through_a_bucket_and_leaves_nothing(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{moto.bucket_url('example')}/run"
    output = torchrun(EXAMPLE, url, environment=moto.environment)
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert len(losses) == 5
    assert losses[-1] < 0.3 < losses[0]
    assert sorted(re.findall(r"^rank \d", output, re.MULTILINE)) == ["rank 0", "rank 1"], "as torchrun numbers them"
    assert min(count_of("num_puts", output)) > 50
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    assert open_store(url).is_empty()


def test_without_a_url_bytes_go_over_tcp(script: Path) -> None:
    output = torchrun(script)
    assert sorted(re.findall(r"rank . of 2: sum 3", output)) == ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"]
    assert count_of("num_puts", output) == [0, 0]
    assert min(count_of("sent_bytes", output)) >= 200_000
