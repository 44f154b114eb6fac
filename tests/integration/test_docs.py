"""Every command and every piece of Python in the documents is run, in the order in which a reader would."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.interpreters import run_python, run_zooid
from zooid.core.errors import InputError
from zooid.core.resources.size import Size
from zooid.entry.cgroups import confine
from zooid.schedule.all_reduce_choice import choose_all_reduce

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_RUN_ELSEWHERE = ("sudo zooid profile job.py --on limited:aws.lambda.1024 --on limited:aws.lambda.1769",)
"""Commands that other tests run on the same job, and look at more closely: `test_profiles.py`."""
_HELD_ELSEWHERE = (
    "sudo zooid profile wide.py --on limited:aws.lambda.512",
    "sudo zooid train job.py --on limited:aws.lambda.1769 --layout 1x1 --store file:///tmp/zooid-limited",
)
"""Commands that are run here without holding members to their size, which takes a minute: `test_large_models.py` does
the same with members that are held, and `test_profiles.py` gives such offers on the command line."""
_WITH_SKYPILOT = ("zooid catalog --import ~/.sky/catalogs/v8 --gpu H100 --sort gpu-price",)
"""Commands that read files of an installed SkyPilot."""
_FILE = re.compile(r"# (\w+\.py)\n")
"""What a piece of Python begins with that is to be written into a file rather than run."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(name: str) -> list[Block]:
    return [Block(match[1], match[2]) for match in _BLOCK.finditer((DOCS / name).read_text())]


def job_file() -> str:
    return next(block.text for block in blocks("jobs.md") if "job = zooid.Job(" in block.text)


def is_runnable(block: Block) -> bool:
    """Where members are held to a size, only if this process may do so. `output` is what the block before it prints."""
    if block.language not in ("python", "output") and not block.text.startswith(("zooid ", "sudo zooid ")):
        return False
    command = block.text.strip()
    return command not in (*_RUN_ELSEWHERE, *_WITH_SKYPILOT) and (not is_held(command) or may_confine())


def is_held(command: str) -> bool:
    return "limited:" in command and command not in _HELD_ELSEWHERE


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
        "jobs.md",
        "faithful.md",
        "from-pytorch.md",
        "hugging-face.md",
        "loop.md",
        "training.md",
        "planning.md",
        "predicting.md",
        "rehearsing.md",
        "commands.md",
        "data.md",
        "layers.md",
        "profiling.md",
        "stores.md",
        "security.md",
        "backend.md",
        "links.md",
        "timelines.md",
        "checkpoints.md",
        "watching.md",
        "elasticity.md",
        "changes.md",
        "scaling.md",
        "budget.md",
        "functions.md",
        "catalog.md",
    ],
)
@pytest.mark.timeout(300)
def test_a_document_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOID_PRICES", str(tmp_path / "imported"))
    (tmp_path / "job.py").write_text(job_file())
    runnable = [block for block in blocks(name) if is_runnable(block)]
    assert runnable, f"{name} shows nothing that can be run"
    printed = ""
    for block in runnable:
        if block.language == "output":
            assert block.text == printed
        else:
            printed = run(block, tmp_path)


def run(block: Block, folder: Path) -> str:
    """What it prints. The folders in /tmp that documents name are taken to the test's own."""
    text = block.text if is_held(block.text.strip()) else block.text.replace("limited:", "local:")
    text = text.replace("file:///tmp/", f"file://{folder}/")
    if file := _FILE.match(text):
        (folder / file[1]).write_text(text)
        return ""
    if block.language == "python":
        ends = [run_python(text, cwd=folder)]
    else:
        lines = [line.removeprefix("sudo ").split() for line in text.splitlines()]
        ends = [run_zooid(*words[1:], cwd=folder) for words in lines]
    for ended in ends:
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
    return "".join(ended.stdout for ended in ends)


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
    linked = set(re.findall(r"\]\((docs/[\w.-]+\.md)\)", readme))
    assert linked == {f"docs/{path.name}" for path in DOCS.glob("*.md")}
    for path in [DOCS.parent / "README.md", *DOCS.glob("*.md")]:
        for target, heading in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", path.read_text()):
            file = path.parent / target if target else path
            assert file.exists(), f"{path.name} links to {target}"
            assert not heading or heading in headings(file), f"{path.name} links to #{heading} of {file.name}"


def headings(file: Path) -> set[str]:
    """As GitHub names them in links."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
