"""What `make release` builds can be installed and trains; the source archive builds the same wheel."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.integration.jobs import write_job
from zooid.core.version import VERSION

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


def build(source: Path, target: Path, *kinds: str) -> None:
    arguments = [argument for kind in kinds for argument in ("-t", kind)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target), *arguments],
        cwd=source,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "wheel", "sdist")
    return folder


def test_the_source_archive_builds_the_same_wheel(archives: Path, tmp_path: Path) -> None:
    with tarfile.open(archives / f"zooid-{VERSION}.tar.gz") as source:
        source.extractall(tmp_path, filter="data")
    build(tmp_path / f"zooid-{VERSION}", tmp_path / "again", "wheel")
    wheels = [next(folder.glob("*.whl")) for folder in (archives, tmp_path / "again")]
    first, second = ({entry.filename: entry.CRC for entry in zipfile.ZipFile(wheel).infolist()} for wheel in wheels)
    assert first == second
    assert "zooid/cli/main.py" in first


def test_an_installed_wheel_trains(archives: Path, tmp_path: Path) -> None:
    """It is installed beside this environment's dependencies, and found before the checkout."""
    site = tmp_path / "site"
    wheel = next(archives.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = "import zooid; print(zooid.__file__, zooid.__version__)"
    told = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == [str(site / "zooid" / "__init__.py"), VERSION]
    job_file = write_job(tmp_path / "job.py")
    train = [str(site / "bin" / "zooid"), "train", str(job_file), "--layout", "1x1", "--no-profile"]
    ended = subprocess.run(
        [sys.executable, *train, "--store", (tmp_path / "run").as_uri()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "checkpoint: " in ended.stdout
