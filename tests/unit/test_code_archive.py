"""Archives of code: the same files give the same digest, git's view holds, and no secret is ever inside."""

import hashlib
import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from compileall import compile_file
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.coordinator.job_files import code_archive, code_files, git_listing
from zooid.coordinator.job_files.code_archive import Archive, archive_of_folder, archive_of_zooid
from zooid.core.errors import InputError
from zooid.core.records import InvalidValue, encode_record
from zooid.core.runs import keys
from zooid.core.runs.code import CodeArchive
from zooid.core.runs.spec import RunClaim

pytestmark = pytest.mark.timeout(60)

PACKAGE = Path(code_archive.__file__).parents[2]
CANARY = b"canary-7f3a: this must never travel"
SECRETS = [
    ".env", ".env.production", "deploy/.ENV", "prod.env", ".envrc", "server.pem", "tls/server.key", "id_rsa",
    "id_rsa.pub", "backup/id_ed25519_old", "id_ecdsa", ".netrc", ".pypirc", "credentials", "credentials.json",
    "Credentials.yaml", "bundle.p12", "bundle.pfx", "putty.ppk", "store.jks", ".git-credentials", "kaggle.json",
    "service-account-prod.json", ".bash_history", "pip.conf", "secrets.toml", ".npmrc", "infra/main.tfvars",
    "my-credentials.json",
]  # fmt: skip
SECRET_FOLDERS = [".aws", ".ssh", ".gnupg", ".kube", ".config/gcloud", "home/.azure", "x/.config/gh"]
JUNK = [
    "__pycache__/job.cpython-311.pyc", "pkg/__pycache__/a.pyc", ".mypy_cache/a.json", ".pytest_cache/a",
    ".ruff_cache/a", ".cache/huggingface/token", "notes/.ipynb_checkpoints/a.ipynb", "web/node_modules/left/pad.js",
    "old.pyc",
]  # fmt: skip


def write(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, timeout=30)


def opened(archive: Archive) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(archive.data), mode="r:gz", errors="surrogateescape")


def names(archive: Archive) -> list[str]:
    return opened(archive).getnames()


def content(archive: Archive, name: str) -> bytes:
    file = opened(archive).extractfile(name)
    assert file is not None
    return file.read()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "job"
    root.mkdir()
    git(root, "init")
    return root


class TestRecord:
    def test_it_names_an_object_of_the_run(self) -> None:
        record = CodeArchive(digest="0a" * 32, num_bytes=7, num_files=0)
        assert keys.code(record.digest) == f"code/{'0a' * 32}.tar.gz"

    @pytest.mark.parametrize("digest", ["", "0a" * 31, "0A" * 32, "../" * 21 + "a", "0a" * 32 + "\n"])
    def test_anything_but_a_digest_is_rejected(self, digest: str) -> None:
        with pytest.raises(InvalidValue, match="64 lowercase hexadecimal digits"):
            CodeArchive(digest=digest, num_bytes=7, num_files=1)

    def test_sizes_are_checked(self) -> None:
        with pytest.raises(InvalidValue, match="num_bytes"):
            CodeArchive(digest="0a" * 32, num_bytes=0, num_files=1)
        with pytest.raises(InvalidValue, match="num_files"):
            CodeArchive(digest="0a" * 32, num_bytes=1, num_files=-1)


class TestSameDigest:
    def test_the_digest_is_that_of_the_bytes(self, tmp_path: Path) -> None:
        archive = archive_of_folder(write(tmp_path, {"job.py": "job = 1\n", "pkg/a.py": ""}))
        assert archive.record.digest == hashlib.sha256(archive.data).hexdigest()
        assert (archive.record.num_bytes, archive.record.num_files) == (len(archive.data), 2)

    def test_times_owners_permissions_and_places_do_not_count(self, tmp_path: Path) -> None:
        first = write(tmp_path / "first", {"b.py": "2", "a/c.py": "3", "run.sh": "4"})
        second = write(tmp_path / "second" / "deeper", {"run.sh": "4", "a/c.py": "3", "b.py": "2"})
        (first / "run.sh").chmod(0o755)
        (second / "run.sh").chmod(0o700)
        (second / "b.py").chmod(0o600)
        os.utime(second / "b.py", (1e9, 1e9))
        (second / "empty").mkdir()
        archive = archive_of_folder(first)
        assert archive == archive_of_folder(second)
        members = opened(archive).getmembers()
        assert [(member.name, member.mode) for member in members] == [
            ("a/c.py", 0o644), ("b.py", 0o644), ("run.sh", 0o755)
        ]  # fmt: skip
        assert {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in members} == {
            (0, 0, 0, "", "")
        }

    @given(
        files=st.dictionaries(
            st.text("abcäß \n\udc80'*", min_size=1, max_size=130).map(lambda stem: f"f{stem}"[:120]),
            st.binary(max_size=600),
            max_size=6,
        ),
        order=st.randoms(),
    )
    @settings(max_examples=40, deadline=None)
    def test_whatever_the_files_are(self, files: dict[str, bytes], order: object, tmp_path_factory: object) -> None:
        assert isinstance(tmp_path_factory, pytest.TempPathFactory)
        roots = [tmp_path_factory.mktemp("folder") for _ in range(2)]
        shuffled = list(files.items())
        order.shuffle(shuffled)  # type: ignore[attr-defined]
        first = archive_of_folder(write(roots[0], files))
        assert first.data == archive_of_folder(write(roots[1], dict(shuffled))).data
        assert {name: content(first, name) for name in names(first)} == files
        assert names(first) == sorted(files)

    def test_other_content_has_another_digest(self, tmp_path: Path) -> None:
        before = archive_of_folder(write(tmp_path, {"job.py": "job = 1\n"}))
        assert archive_of_folder(write(tmp_path, {"job.py": "job = 2\n"})).record.digest != before.record.digest


class TestGit:
    def test_ignored_and_deleted_files_stay_behind_and_new_ones_travel(self, repository: Path) -> None:
        write(repository, {".gitignore": "data/\n*.bin\n", "job.py": "1", "gone.py": "2", "data/a": "3", "w.bin": "4"})
        git(repository, "add", "-A")
        git(repository, "commit", "-m", "a")
        (repository / "gone.py").unlink()
        write(repository, {"new.py": "5"})
        assert names(archive_of_folder(repository)) == [".gitignore", "job.py", "new.py"]

    def test_a_folder_inside_a_repository_is_the_root(self, repository: Path) -> None:
        write(repository, {".gitignore": "*.bin\n", "other/b.py": "", "jobs/job.py": "1", "jobs/deep/w.bin": "2"})
        assert names(archive_of_folder(repository / "jobs")) == ["job.py"]

    def test_a_folder_that_git_ignores_travels_whole(self, repository: Path) -> None:
        write(repository, {".gitignore": "scratch/\n", "scratch/job.py": "1", "scratch/.env": CANARY})
        archive = archive_of_folder(repository / "scratch")
        assert (names(archive), archive.secrets) == (["job.py"], (".env",))

    def test_a_required_file_travels_although_git_ignores_it(self, repository: Path) -> None:
        write(repository, {".gitignore": "my_*\n", "job.py": "1", "my_job.py": "2", "my_notes": "3"})
        assert names(archive_of_folder(repository, required=["my_job.py", "job.py"])) == [
            ".gitignore", "job.py", "my_job.py"
        ]  # fmt: skip

    def test_a_required_file_must_exist_and_must_not_look_like_a_secret(self, repository: Path) -> None:
        write(repository, {"credentials_job.py": "1"})
        with pytest.raises(InputError, match="secrets never travel; rename it"):
            archive_of_folder(repository, required=["credentials_job.py"])
        with pytest.raises(InputError, match="does not exist"):
            archive_of_folder(repository, required=["job.py"])

    def test_repositories_inside_have_a_view_of_their_own(self, repository: Path, tmp_path: Path) -> None:
        for inner in ("tracked", "new"):
            write(repository / inner, {".gitignore": "*.bin\n", "a.py": "1", "w.bin": "2"})
            git(repository / inner, "init")
            git(repository / inner, "add", "-A")
            git(repository / inner, "commit", "-m", "a")
        git(repository, "add", "tracked")
        (repository / "never_cloned").mkdir()
        expected = ["new/.gitignore", "new/a.py", "tracked/.gitignore", "tracked/a.py"]
        assert names(archive_of_folder(repository)) == expected
        (repository / ".git").rename(tmp_path / "git")
        assert names(archive_of_folder(repository)) == expected

    def test_a_tracked_folder_that_became_a_link_is_not_followed(self, repository: Path, tmp_path: Path) -> None:
        write(repository, {"job.py": "1", "data/a": "2"})
        git(repository, "add", "-A")
        write(tmp_path / "private", {"a": CANARY})
        (repository / "data" / "a").unlink()
        (repository / "data").rmdir()
        (repository / "data").symlink_to(tmp_path / "private")
        archive = archive_of_folder(repository)
        assert (names(archive), archive.outside_links) == (["job.py"], ("data",))

    def test_variables_of_another_repository_do_not_mislead_git(
        self, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(repository, {".gitignore": "*.bin\n", "job.py": "1", "w.bin": "2"})
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        assert names(archive_of_folder(repository)) == [".gitignore", "job.py"]

    def test_without_the_program_ignored_files_would_travel_so_nothing_does(
        self, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        write(repository, {".gitignore": "private\n", "job.py": "1", "private": CANARY})
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(InputError, match="git cannot be run"):
            archive_of_folder(repository)

    def test_a_git_that_fails_is_quoted(self, repository: Path) -> None:
        write(repository, {"job.py": "1", ".git/index": b"damaged"})
        with pytest.raises(InputError, match=r"git says: .*index file"):
            archive_of_folder(repository)

    def test_a_git_that_takes_too_long_means_too_many_files(self, repository: Path) -> None:
        write(repository, {f"{number}.py": "" for number in range(6)})
        with mock.patch.object(git_listing, "_TIME_LIMIT_S", 1e-6):
            with pytest.raises(InputError, match=r"has not listed .* within"):
                archive_of_folder(repository)
            with (
                mock.patch.object(code_files, "_MAX_LOOKS", 3),
                pytest.raises(InputError, match=r"more than .* name what"),
            ):
                archive_of_folder(repository)

    def test_an_empty_git_folder_is_no_repository(self, tmp_path: Path) -> None:
        write(tmp_path, {".git/note": "", ".gitignore": "job.py", "job.py": "1"})
        assert names(archive_of_folder(tmp_path)) == [".gitignore", "job.py"]


class TestLeftOut:
    @pytest.fixture
    def canaries(self, repository: Path) -> Path:
        write(repository, dict.fromkeys(SECRETS, CANARY))
        write(repository, {f"{folder}/config": CANARY for folder in SECRET_FOLDERS})
        write(repository, dict.fromkeys(JUNK, CANARY))
        write(repository, {"venv/pyvenv.cfg": CANARY, "venv/lib/a.py": CANARY, "conda/conda-meta/history": CANARY})
        claim = encode_record(RunClaim(run="a"))
        write(repository, {"runs/a/run.json": claim, "runs/a/events/0": CANARY, "runs/note.md": "kept"})
        return write(repository, {"job.py": "kept", "keys.py": "kept", "settings/run.json": "{}", ".envs/a": "kept"})

    EXPECTED = (".envs/a", "job.py", "keys.py", "runs/note.md", "settings/run.json")

    @pytest.mark.parametrize("view", ["tracked", "new", "no repository"])
    def test_no_secret_travels_even_if_git_tracks_it(self, canaries: Path, tmp_path: Path, view: str) -> None:
        if view == "tracked":
            git(canaries, "add", "-A", "--force")
            git(canaries, "commit", "-m", "a")
        elif view == "no repository":
            (canaries / ".git").rename(tmp_path / "git")
        archive = archive_of_folder(canaries)
        assert names(archive) == sorted(self.EXPECTED)
        assert not any(CANARY in content(archive, name) for name in names(archive))
        assert set(archive.secrets) == {*SECRETS, *(f"{folder}/" for folder in SECRET_FOLDERS)}

    def test_secrets_that_git_ignores_are_not_worth_a_warning(self, repository: Path) -> None:
        write(repository, {".gitignore": ".env\n", ".env": CANARY, "job.py": "1"})
        assert archive_of_folder(repository).secrets == ()

    def test_the_git_file_of_a_worktree_stays_behind(self, tmp_path: Path, repository: Path) -> None:
        write(repository, {"job.py": "1"})
        git(repository, "add", "-A")
        git(repository, "commit", "-m", "a")
        git(repository, "worktree", "add", str(tmp_path / "tree"))
        assert names(archive_of_folder(tmp_path / "tree")) == ["job.py"]

    def test_sockets_and_pipes_stay_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, {"job.py": "1"})
        monkeypatch.chdir(tmp_path)  # the name of a socket must be short
        os.mkfifo("pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            assert names(archive_of_folder(tmp_path)) == ["job.py"]


class TestLinks:
    def test_inside_they_stay_links_with_relative_targets(self, tmp_path: Path) -> None:
        root = write(tmp_path / "job", {"pkg/a.py": "1", "b.py": "2"})
        targets = {
            "near": "b.py",
            "folder": "pkg",
            "pkg/up": "../b.py",
            "pkg/root": "..",
            "pkg/self": ".",
            "missing": "nowhere.py",
            "chain": "folder/a.py",
            "absolute": str(root / "pkg" / "a.py"),
            "pkg/absolute": str(root / "b.py"),
            "detour": "../job/b.py",
            "winding": "pkg/../b.py",
            "pkg/slash": "../pkg/",
        }
        for name, target in targets.items():
            (root / name).symlink_to(target)
        archive = archive_of_folder(root)
        links = {member.name: member.linkname for member in opened(archive).getmembers() if member.issym()}
        rewritten = {
            "absolute": "pkg/a.py", "pkg/absolute": "../b.py", "detour": "b.py", "winding": "b.py", "pkg/slash": "."
        }  # fmt: skip
        assert links == {**targets, **rewritten}
        assert archive.outside_links == ()

    def test_those_that_lead_out_are_left_out_and_named(self, tmp_path: Path) -> None:
        root = write(tmp_path / "job", {"job.py": "1", "a/b.py": "2"})
        write(tmp_path, {"outside.py": CANARY, "job-other/x": CANARY})
        (root / "absolute").symlink_to("/etc/passwd")
        (root / "relative").symlink_to("../outside.py")
        (root / "sibling").symlink_to("../job-other")
        (root / "a" / "up").symlink_to("..")
        (root / "indirect").symlink_to("a/up/../outside.py")
        archive = archive_of_folder(root)
        assert archive.outside_links == ("absolute", "indirect", "relative", "sibling")
        assert names(archive) == ["a/b.py", "a/up", "job.py"]

    def test_a_link_to_a_secret_carries_nothing_of_it(self, tmp_path: Path) -> None:
        write(tmp_path, {".env": CANARY})
        (tmp_path / "settings").symlink_to(".env")
        archive = archive_of_folder(tmp_path)
        assert [(member.name, member.size) for member in opened(archive).getmembers()] == [("settings", 0)]

    def test_a_folder_behind_a_link_is_the_folder_itself(self, tmp_path: Path) -> None:
        root = write(tmp_path / "job", {"a.py": "1"})
        (root / "b").symlink_to(tmp_path / "alias" / "a.py")
        (tmp_path / "alias").symlink_to(root)
        assert archive_of_folder(tmp_path / "alias") == archive_of_folder(root)
        assert names(archive_of_folder(root)) == ["a.py", "b"]


class TestSize:
    def test_a_large_folder_is_refused_with_its_largest_files(self, tmp_path: Path) -> None:
        write(tmp_path, {"job.py": "1", **{f"data/{size}.bin": b"0" * size for size in (900, 800, 700, 600, 500, 400)}})
        with pytest.raises(InputError) as refusal:
            archive_of_folder(tmp_path, max_bytes=3000)
        message = str(refusal.value)
        assert f"{tmp_path} has 3.901 kB in 7 files, but a run takes along at most 3 kB in 20000 files" in message
        assert "data/900.bin (900 B), data/800.bin (800 B), data/700.bin (700 B), data/600.bin (600 B)" in message
        assert "data/500.bin (500 B)." in message
        assert "data/400.bin" not in message
        assert "run git init there, and name what the job does not need in a .gitignore" in message
        assert "keep data in a store" in message
        assert "more than" not in message

    def test_in_a_repository_a_gitignore_is_enough(self, repository: Path) -> None:
        write(repository, {"job.py": "1", "w.bin": b"0" * 5000})
        with pytest.raises(InputError, match="git init") as refusal:
            archive_of_folder(write(repository / "../plain", {"w.bin": b"0" * 5000}), max_bytes=4000)
        with pytest.raises(InputError, match="To make it smaller, name what") as refusal:
            archive_of_folder(repository, max_bytes=4000)
        assert "git init" not in str(refusal.value)
        write(repository, {".gitignore": "*.bin"})
        assert names(archive_of_folder(repository, max_bytes=4000)) == [".gitignore", "job.py"]

    def test_generated_files_count(self, tmp_path: Path) -> None:
        archive_of_folder(tmp_path, {"a.py": b"0" * 100}, max_bytes=100)
        with pytest.raises(InputError, match="at most 100 B"):
            archive_of_folder(write(tmp_path, {"b.py": "1"}), {"a.py": b"0" * 100}, max_bytes=100)

    def test_the_search_of_a_gigantic_folder_ends_early(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code_files, "MAX_CODE_FILES", 50)
        monkeypatch.setattr(code_files, "_MAX_LOOKS", 500)
        write(tmp_path, {f"{folder}/{number}.bin": b"0" * 100 for folder in range(10) for number in range(20)})
        looks = mock.Mock(side_effect=os.lstat)
        monkeypatch.setattr(os, "lstat", looks)
        with pytest.raises(InputError, match=r"has more than 5.1 kB in more than 50 files, but"):
            archive_of_folder(tmp_path)
        assert looks.call_count < 150  # of 210 files and folders

    def test_so_does_the_search_of_folders_without_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code_files, "_MAX_LOOKS", 50)
        for number in range(100):
            (tmp_path / str(number)).mkdir()
        with pytest.raises(InputError, match="more than 0 B"):
            archive_of_folder(tmp_path)

    def test_a_file_that_is_only_long_is_not_read(self, tmp_path: Path) -> None:
        with open(tmp_path / "sparse.bin", "wb") as file:
            file.truncate(2**40)
        with pytest.raises(InputError, match=r"1.1 TB in 1 file,.*sparse.bin \(1.1 TB\)"):
            archive_of_folder(tmp_path)


class TestGeneratedFiles:
    def test_a_job_without_a_file_gets_one(self, tmp_path: Path) -> None:
        archive = archive_of_folder(tmp_path, {"job.py": b"job = 1\n", "pkg/b.py": b"2"})
        assert (names(archive), content(archive, "job.py")) == (["job.py", "pkg/b.py"], b"job = 1\n")
        assert archive == archive_of_folder(write(tmp_path, {"job.py": "job = 1\n", "pkg/b.py": "2"}))

    def test_they_replace_what_is_in_their_way(self, tmp_path: Path) -> None:
        write(tmp_path, {"job.py": "old", "pkg/a.py": "kept", "file": "in the way"})
        (tmp_path / "link").symlink_to("pkg")
        archive = archive_of_folder(tmp_path, {"job.py": b"new", "link/b.py": b"2", "file/c.py": b"3"})
        assert names(archive) == ["file/c.py", "job.py", "link/b.py", "pkg/a.py"]
        assert content(archive, "job.py") == b"new"

    @pytest.mark.parametrize("name", ["/job.py", "../job.py", "a/../../job.py", "a//b.py", "./a.py", ""])
    def test_their_names_stay_inside(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(AssertionError):
            archive_of_folder(tmp_path, {name: b"1"})


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        archive_of_folder(write(tmp_path, {"job.py": "1"}) / "job.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"job.py": "1"})
    (tmp_path / "job.py").chmod(0)
    with pytest.raises(InputError, match=r"job\.py cannot be read \(Permission denied\)"):
        archive_of_folder(tmp_path)


class TestZooid:
    def test_it_is_the_whole_package(self) -> None:
        archive = archive_of_zooid()
        expected = {
            str(path.relative_to(PACKAGE.parent))
            for path in PACKAGE.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {name for name in names(archive) if "__pycache__" not in name} == expected
        assert {"zooid/__init__.py", "zooid/py.typed", "zooid/catalog/data/offers.csv"} <= expected
        assert (archive.secrets, archive.outside_links) == ((), ())

    def test_it_is_made_once(self) -> None:
        assert archive_of_zooid() is archive_of_zooid()

    def test_it_can_be_imported_from_where_it_is_unpacked(self, tmp_path: Path) -> None:
        with opened(archive_of_zooid()) as tar:
            tar.extractall(tmp_path, filter="data")
        program = "import zooid, pathlib; print(pathlib.Path(zooid.__file__).parents[1], end='')"
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, timeout=30, check=True, cwd="/", env={"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.stdout == str(tmp_path)

    def test_it_is_small_and_quick(self) -> None:
        archive_of_zooid.cache_clear()
        started_s = time.process_time()
        archive = archive_of_zooid()
        assert time.process_time() - started_s < 1.0
        assert archive.record.num_bytes < 3_000_000

    def test_what_members_import_is_compiled(self, tmp_path: Path) -> None:
        """Python uses the compiled files, although the sources have another time where they are unpacked."""
        compile_file(PACKAGE / "worker" / "__main__.py", quiet=2)
        archive_of_zooid.cache_clear()
        with opened(archive_of_zooid()) as tar:
            tar.extractall(tmp_path, filter="data")
        program = "import zooid.worker.__main__ as module; print(module.__cached__, end='')"
        done = subprocess.run(
            [sys.executable, "-v", "-c", program],
            capture_output=True, text=True, timeout=30, check=True, cwd="/", env={"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.stdout.startswith(str(tmp_path))
        assert f"{done.stdout} matches {tmp_path}/zooid/worker/__main__.py" in done.stderr
