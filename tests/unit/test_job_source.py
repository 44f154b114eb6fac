"""A job file that cannot work is refused without being run; whatever may work is left to the first member."""

import textwrap
from pathlib import Path

import pytest

from zooid.core.errors import JobError
from zooid.core.jobs.job_source import check_source

FIELDS = "loss=None, data=list, optimizer=list, batch_size=8, epochs=2"
VALID = f"import zooid\njob = zooid.Job(model=list, {FIELDS})\n"


def look(folder: Path, text: str, **neighbours: str) -> None:
    """Look over a job file with this text, and with these modules beside it."""
    for name, code in neighbours.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    file = folder / "job.py"
    file.write_text(textwrap.dedent(text))
    check_source(file, "job.py")


def refusal(folder: Path, text: str, **neighbours: str) -> str:
    with pytest.raises(JobError) as caught:
        look(folder, text, **neighbours)
    return str(caught.value)


class TestSyntax:
    def test_an_error_is_shown_with_its_line_and_a_caret(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, "import zooid\nif True:\n    epochs = 3 +* 4\n")
        assert said == "job.py, line 3: invalid syntax\n    epochs = 3 +* 4\n                ^"

    def test_what_only_the_compiler_sees_is_found_too(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, "return 1\n").startswith("job.py, line 1: 'return' outside function")

    def test_one_in_a_module_beside_it_is_named_by_its_file(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, "import network_of_job\n" + VALID, network_of_job="def build(:\n    pass\n")
        assert said.startswith(f"{tmp_path}/network_of_job.py, line 1: ")

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_bytes(b"x = '\xff\xfe'\n")
        with pytest.raises(JobError, match=r"job\.py.*utf-8"):
            check_source(tmp_path / "job.py", "job.py")


class TestImports:
    def test_a_missing_module_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, "import nowhere_to_be_found.part\n" + VALID)
        assert said.startswith("job.py, line 1, imports nowhere_to_be_found, which is not installed; Install it")
        assert "pip install nowhere_to_be_found" in said

    def test_a_misspelt_one_is_told_its_neighbour(self, tmp_path: Path) -> None:
        assert "did you mean msgspec?" in refusal(tmp_path, "from msgspc import structs\n" + VALID)

    def test_what_a_neighbour_lacks_is_found(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, "import network_of_job\n" + VALID, network_of_job="import nowhere_to_be_found\n")
        assert said.startswith(f"{tmp_path}/network_of_job.py, line 1, imports nowhere_to_be_found")

    def test_a_relative_one_is_told_to_leave_out_its_dots(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, "from .network import build\n" + VALID, network="build = list\n")
        assert said.startswith("job.py, line 1, imports from .network, but a job file is not part of a package")

    @pytest.mark.parametrize(
        "text",
        [
            "try:\n    import nowhere_to_be_found\nexcept ImportError:\n    pass\n",
            "if False:\n    import nowhere_to_be_found\n",
            "def later():\n    import nowhere_to_be_found\n",
            "import sys\nsys.path.append('elsewhere')\nimport nowhere_to_be_found\n",
            "import os\nos.system('pip install it')\nimport nowhere_to_be_found\n",
            "import changes_the_path\nimport nowhere_to_be_found\n",
            "import folder_without_init.part\n",
        ],
        ids=["try", "if", "function", "path", "pip", "neighbour", "namespace"],
    )
    def test_one_that_may_work_is_left_alone(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "folder_without_init").mkdir()
        look(tmp_path, text + VALID, changes_the_path="import sys\nsys.path.append('elsewhere')\n")


class TestFields:
    def test_a_valid_job_passes(self, tmp_path: Path) -> None:
        look(tmp_path, VALID)

    def test_one_that_is_missing_is_named(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, VALID.replace(", epochs=2", ""))
        assert said == "job.py, line 2: zooid.Job lacks the field epochs; every job has to give it"
        assert "lacks the field epochs" in refusal(
            tmp_path, VALID.replace("job =", "job: zooid.Job =").replace(", epochs=2", "")
        )
        assert "lacks the fields batch_size, epochs; " in refusal(
            tmp_path, VALID.replace(", batch_size=8, epochs=2", "")
        )

    def test_one_that_does_not_exist_is_told_its_neighbour(self, tmp_path: Path) -> None:
        said = refusal(tmp_path, VALID.replace("batch_size", "batchsize"))
        assert said == "job.py, line 2: zooid.Job has no field batchsize; did you mean batch_size?"

    def test_they_go_by_name(self, tmp_path: Path) -> None:
        assert "takes its fields by name" in refusal(tmp_path, "from zooid import Job\njob = Job(list, None)\n")

    @pytest.mark.parametrize(
        "text",
        [
            "import zooid\nmore = {}\njob = zooid.Job(model=list, **more)\n",
            "import zooid\ndef make():\n    return zooid.Job(model=list)\njob = make()\n",
            "import zooid\nif False:\n    job = zooid.Job()\n",
            "import zooid\nclass Job: ...\njob = Job()\n",
            "from zooid import Job\nfrom other_of_job import Job\njob = Job()\n",
        ],
        ids=["dict", "function", "if", "class", "rebound"],
    )
    def test_what_cannot_be_seen_is_left_alone(self, tmp_path: Path, text: str) -> None:
        look(tmp_path, text, other_of_job="Job = dict\n")


class TestJob:
    def test_a_file_without_one_is_refused(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, "x = 1\n").startswith("job.py defines no `job`; define `job = zooid.Job(model=")

    def test_one_under_another_name_is_named(self, tmp_path: Path) -> None:
        assert "job.py defines `task`, but no `job`; " in refusal(tmp_path, VALID.replace("job =", "task ="))

    @pytest.mark.parametrize(
        "text",
        [
            "from other_of_job import *\n",
            "from other_of_job import job\n",
            "from other_of_job import made as job\n",
            "globals()['job'] = 3\n",
            "with open('x') as job: pass\n",
            "def __getattr__(name): return 3\n",
            "if (job := 3): pass\n",
        ],
        ids=["star", "import", "as", "globals", "with", "getattr", "walrus"],
    )
    def test_one_that_may_come_from_elsewhere_is_left_alone(self, tmp_path: Path, text: str) -> None:
        look(tmp_path, text, other_of_job="made = job = 3\n")


NET = "from torch import nn\nclass Base(nn.Module): ...\nclass Net(Base): ...\n"


class TestBuiltModel:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("import torch.nn as nn\nnetwork = nn.Sequential()\n", "nn.Sequential"),
            ("import torch\nnetwork = torch.nn.Linear(3, 4).double()\n", "torch.nn.Linear"),
            (NET + "network = Net()\n", "Net"),
        ],
    )
    def test_is_refused_with_the_fix(self, tmp_path: Path, text: str, kind: str) -> None:
        said = refusal(tmp_path, text + VALID.replace("model=list", "model=network"))
        assert f"job.model is a {kind} that is already built; give a function" in said
        assert f"model=lambda: {kind}(…)" in said

    @pytest.mark.parametrize(
        "text",
        [
            NET + "network = Net\n",
            NET + "import functools\nnetwork = functools.partial(Net)\n",
            NET + "def network():\n    return Net()\n",
            NET + "network = Net()\nnetwork = lambda: Net()\n",
        ],
        ids=["class", "partial", "function", "rebound"],
    )
    def test_a_function_that_builds_it_passes(self, tmp_path: Path, text: str) -> None:
        look(tmp_path, text + VALID.replace("model=list", "model=network"))


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.txt").write_text(VALID)
    with pytest.raises(JobError, match=r"job\.txt is not a Python file"):
        check_source(tmp_path / "job.txt", "job.txt")
