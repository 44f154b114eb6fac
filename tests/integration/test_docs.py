"""Every command and every piece of Python in the documents is run, in the order in which a reader would."""

import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from zooid.core.errors import InputError
from zooid.platforms.local.limits import confine
from zooid.platforms.protocol import Size
from zooid.schedule.collectives import choose_all_reduce

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(name: str) -> list[Block]:
    return [Block(match[1], match[2]) for match in _BLOCK.finditer((DOCS / name).read_text())]


def job_file() -> str:
    return next(block.text for block in blocks("jobs.md") if "job = zooid.Job(" in block.text)


def is_runnable(block: Block) -> bool:
    """Where members are held to a size, only if this process may do so."""
    if block.language != "python" and not block.text.startswith(("zooid ", "sudo zooid ")):
        return False
    return "limited:" not in block.text or may_confine()


@functools.cache
def may_confine() -> bool:
    try:
        confine(Size(1.0, 64 * 2**20)).remove()
    except InputError:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    [
        "tutorial.md",
        "commands.md",
        "data.md",
        "layers.md",
        "profiling.md",
        "stores.md",
        "backend.md",
        "links.md",
        "timelines.md",
        "checkpoints.md",
    ],
)
@pytest.mark.timeout(300)
def test_a_document_does_what_it_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(job_file())
    runnable = [block for block in blocks(name) if is_runnable(block)]
    assert runnable, f"{name} shows nothing that can be run"
    for block in runnable:
        run(block, tmp_path)


def run(block: Block, folder: Path) -> None:
    """The folders in /tmp that documents name are taken to the test's own."""
    text = block.text.replace("file:///tmp/", f"file://{folder}/")
    if block.language == "python":
        commands = [[sys.executable, "-W", "error", "-c", text]]
    else:
        lines = (line.removeprefix("sudo ").split() for line in text.splitlines())
        commands = [[sys.executable, "-m", "zooid.cli.main", *words[1:]] for words in lines]
    for command in commands:
        ended = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"


def test_the_readme_has_the_job_that_the_documents_have() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    for field in re.findall(r"^    (\w+)=", job_file(), re.MULTILINE):
        assert f"{field}=" in readme


def test_the_backends_page_shows_the_example_that_is_run() -> None:
    shown = next(block.text for block in blocks("backend.md") if block.language == "py")
    assert shown == (DOCS.parent / "examples" / "ddp.py").read_text()


def test_the_backends_page_counts_requests_as_the_lists_do() -> None:
    """Puts + gets of one all-reduce of 32 MB, and their price where 15 % of gets come too early."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (DOCS / "backend.md").read_text(), re.MULTILINE)
    assert rows
    for num_ranks, cells in rows:
        for algorithm, cell in zip(("exchange", "three_phase", "auto", "streaming"), cells.split(" | "), strict=True):
            transfers = choose_all_reduce(8_000_000, 4, int(num_ranks), algorithm)
            num_gets = sum(len(transfer.readers) for transfer in transfers)
            usd = len(transfers) * 5e-6 + num_gets * 1.15 * 0.4e-6
            assert cell == f"{len(transfers)} + {num_gets}: ${usd:.5f}"


def test_every_document_is_linked_and_every_link_leads_somewhere() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    linked = set(re.findall(r"\]\((docs/[\w.-]+)\)", readme))
    assert linked == {f"docs/{path.name}" for path in DOCS.glob("*.md")}
    for path in [DOCS.parent / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([\w./-]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
