"""Unpacked code: fetched once per machine, complete or absent, and never from an archive that is not trusted."""

import gzip
import hashlib
import io
import multiprocessing
import os
import signal
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_hostile_shards import HOSTILE
from zooid.coordinator.job_files.code_archive import archive_of_folder, archive_of_zooid
from zooid.core.errors import InputError, ObjectNotFound, StoreError
from zooid.core.runs import keys
from zooid.entry import code_entries
from zooid.entry.unpacked_code import unpacked
from zooid.store import open_store

pytestmark = pytest.mark.timeout(60)

SPAWN = multiprocessing.get_context("spawn")


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(*members: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive of these members; files have as many zeros as their headers say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return gzip.compress(buffer.getvalue(), mtime=0)


def a_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


def a_link(name: str, target: str) -> tarfile.TarInfo:
    return a_member(name, tarfile.SYMTYPE, target)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Contents of all files and targets of all links."""
    found: dict[str, bytes | str] = {}
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(parent, name)
            if path.is_symlink():
                found[str(path.relative_to(folder))] = os.readlink(path)
            elif path.is_file():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def never(key: str) -> bytes:
    raise AssertionError(f"{key} was fetched again")


class TestRoundTrip:
    def test_a_store_is_enough(self, tmp_path: Path) -> None:
        root = tmp_path / "job"
        (root / "pkg").mkdir(parents=True)
        (root / "job.py").write_text("job = 1\n")
        (root / "pkg" / "run.sh").write_text("#!/bin/sh\n")
        (root / "pkg" / "run.sh").chmod(0o700)
        (root / "latest").symlink_to("pkg/run.sh")
        archive = archive_of_folder(root)
        store = open_store((tmp_path / "store").as_uri())
        store.put(keys.code(archive.record.digest), archive.data)
        code = unpacked(store.get, archive.record.digest, tmp_path / "machine")
        assert code == tmp_path / "machine" / archive.record.digest
        assert tree(code) == tree(root)
        assert os.access(code / "pkg" / "run.sh", os.X_OK)
        assert not os.access(code / "job.py", os.X_OK)
        assert unpacked(never, archive.record.digest, tmp_path / "machine") == code

    def test_zooid_itself(self, tmp_path: Path) -> None:
        archive = archive_of_zooid()
        code = unpacked(lambda key: archive.data, archive.record.digest, tmp_path)
        assert (code / "zooid" / "entry" / "unpacked_code.py").is_file()
        assert len(tree(code)) == archive.record.num_files

    @given(
        st.dictionaries(
            st.lists(st.text("aä \udcff", min_size=1, max_size=70), min_size=1, max_size=4).map("/".join),
            st.binary(max_size=300),
            max_size=5,
        )
    )
    @settings(max_examples=40, deadline=None)
    def test_whatever_the_files_are(self, tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
        if any(other.startswith(f"{name}/") for name in files for other in files):
            return
        folder = tmp_path_factory.mktemp("machine")
        (folder / "job").mkdir()
        archive = archive_of_folder(folder / "job", files)
        assert tree(unpacked(lambda key: archive.data, archive.record.digest, folder / "code")) == files


class TestDigest:
    def test_other_bytes_are_refused_and_nothing_of_them_is_written(self, tmp_path: Path) -> None:
        wanted, given_ = digest_of(b"wanted"), packed(a_member("job.py"))
        with pytest.raises(StoreError) as refusal:
            unpacked(lambda key: given_, wanted, tmp_path)
        assert wanted in str(refusal.value)
        assert digest_of(given_) in str(refusal.value)
        assert [path.name for path in tmp_path.iterdir()] == [f"{wanted}.lock"]

    def test_after_that_a_good_archive_is_welcome(self, tmp_path: Path) -> None:
        data = packed(a_member("job.py"))
        answers = [data[:-1], data]
        with pytest.raises(StoreError):
            unpacked(lambda key: answers.pop(0), digest_of(data), tmp_path)
        assert (unpacked(lambda key: answers.pop(0), digest_of(data), tmp_path) / "job.py").is_file()

    @pytest.mark.parametrize("digest", ["", "..", "../" + "a" * 61, "A" * 64, "a" * 63])
    def test_a_digest_that_could_name_another_folder_is_refused(self, tmp_path: Path, digest: str) -> None:
        with pytest.raises(InputError, match="64 lowercase hexadecimal digits"):
            unpacked(never, digest, tmp_path / "code")
        assert not (tmp_path / "code").exists()

    def test_errors_of_the_store_come_through(self, tmp_path: Path) -> None:
        with pytest.raises(ObjectNotFound):
            unpacked(open_store((tmp_path / "store").as_uri()).get, "a" * 64, tmp_path / "code")

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"file/code \(Not a directory\).*TMPDIR"):
            unpacked(never, "a" * 64, tmp_path / "file" / "code")


REFUSED: dict[str, tuple[str, tuple[tarfile.TarInfo, ...]]] = {
    "an absolute name": ("not a path inside", (a_member("/tmp/x"),)),
    "a name that goes up": ("not a path inside", (a_member("../x"),)),
    "a name that goes up later": ("not a path inside", (a_member("a/../../x"),)),
    "a name with a dot": ("not a path inside", (a_member("./x"),)),
    "a link to an absolute target": ("lead out", (a_link("x", "/etc/passwd"),)),
    "a link that goes up": ("lead out", (a_link("x", "../y"),)),
    "a link that goes up too far": ("lead out", (a_link("a/x", "../../y"),)),
    "a link that goes down and up": ("lead out", (a_link("a/x", "b/../../../y"),)),
    "a link that another link turns around": ("lead out", (a_link("p/q/d", "../.."), a_link("b", "p/q/d/.."))),
    "a link to nothing": ("lead out", (a_link("x", ""),)),
    "a file behind a link": ("not a folder", (a_link("x", "y"), a_member("x/z"))),
    "a link that comes after its file": ("not a folder", (a_member("x/y/z"), a_link("x/y", "w"))),
    "a file below a file": ("not a folder", (a_member("x"), a_member("x/z"))),
    "a hard link": ("neither a file", (a_member("x", tarfile.LNKTYPE, "y"),)),
    "a hard link to a file outside": ("neither a file", (a_member("x", tarfile.LNKTYPE, "/etc/passwd"),)),
    "a device": ("neither a file", (a_member("x", tarfile.CHRTYPE),)),
    "a block device": ("neither a file", (a_member("x", tarfile.BLKTYPE),)),
    "a pipe": ("neither a file", (a_member("x", tarfile.FIFOTYPE),)),
    "a folder": ("neither a file", (a_member("x", tarfile.DIRTYPE),)),
    "a name twice": ("twice", (a_member("x"), a_member("x"))),
    "a link and a file of the same name": ("twice", (a_link("x", "y"), a_member("x"))),
    "a long name": ("too long", (a_member("x" * 300),)),
    "a long path": ("too long", (a_member("/".join(["x" * 100] * 40)),)),
    "a deep path": ("too long", (a_member("/".join("x" * 300)),)),
    "too much content": ("more than 50 MB", (a_member("x", size=30_000_000), a_member("y", size=30_000_000))),
}


class TestHostile:
    def refused(self, tmp_path: Path, data: bytes, match: str) -> None:
        with pytest.raises(InputError, match=match):
            unpacked(lambda key: data, digest_of(data), tmp_path / "code")
        assert [path.name for path in (tmp_path / "code").iterdir()] == [f"{digest_of(data)}.lock"]
        assert [path.name for path in tmp_path.iterdir()] == ["code"]

    @pytest.mark.parametrize("what", REFUSED)
    @pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_entries_are_refused(self, tmp_path: Path, what: str, form: int) -> None:
        match, members = REFUSED[what]
        self.refused(tmp_path, packed(*members, form=form), match)

    @pytest.mark.parametrize("what", HOSTILE)
    def test_headers_are_refused(self, tmp_path: Path, what: str) -> None:
        self.refused(tmp_path, gzip.compress(HOSTILE[what]), "is not used, because")

    def test_a_sparse_file_is_refused(self, tmp_path: Path) -> None:
        member = a_member("x", size=512)
        member.pax_headers = {"GNU.sparse.map": "0,1,1000000,1", "GNU.sparse.size": "1000001"}
        self.refused(tmp_path, packed(member, form=tarfile.PAX_FORMAT), "neither a file")

    def test_a_name_with_a_zero_byte_is_refused(self, tmp_path: Path) -> None:
        member = a_member("x")
        member.pax_headers = {"path": "x\0y"}
        self.refused(tmp_path, packed(member, form=tarfile.PAX_FORMAT), "not a path inside")

    def test_a_bomb_is_refused_before_it_has_grown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code_entries, "_MAX_TAR_BYTES", 100_000)
        self.refused(tmp_path, gzip.compress(bytes(1_000_000)), "more than 100 kB")

    def test_too_many_files_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code_entries, "MAX_CODE_FILES", 3)
        members = [a_member(str(number)) for number in range(4)]
        code = packed(*members[:3])
        assert len(tree(unpacked(lambda key: code, digest_of(code), tmp_path / "fine"))) == 3
        (tmp_path / "fine").rename(tmp_path.parent / f"{tmp_path.name}-fine")
        self.refused(tmp_path, packed(*members), "more than 3 files")

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (b"", "cut short"),
            (b"no archive", "cannot be decompressed"),
            (packed(a_member("x", size=9000))[:-20], "cut short"),
            (packed(a_member("x")) + b"more", "something follows"),
            (gzip.compress(b"no tar file" * 100), "damaged"),
        ],
        ids=["nothing", "no archive", "its end is missing", "more follows", "no tar file"],
    )
    def test_damaged_bytes_are_refused(self, tmp_path: Path, data: bytes, match: str) -> None:
        self.refused(tmp_path, data, match)


class TestLinksThatStayInside:
    def test_they_are_unpacked(self, tmp_path: Path) -> None:
        targets = {"a": "b", "p/q/d": "../..", "p/e": "q/d/b", "p/here": ".", "nowhere": "missing"}
        data = packed(a_member("b", size=3), *(a_link(name, target) for name, target in targets.items()))
        code = unpacked(lambda key: data, digest_of(data), tmp_path)
        assert tree(code) == {"b": bytes(3), **targets}
        assert all((code / name).resolve().is_relative_to(code) for name in targets)


def unpack_slowly(folder: Path, data: bytes, seconds: float) -> None:
    """Ask for code as one of several processes; each fetch is counted by a file."""

    def fetch(key: str) -> bytes:
        (folder / f"fetch-{os.getpid()}").touch()
        time.sleep(seconds)
        return data

    code = unpacked(fetch, digest_of(data), folder / "code")
    assert len(tree(code)) == 200


def unpack_until_killed(folder: Path, data: bytes) -> None:
    real_symlink = os.symlink

    def symlink(*arguments: object, **options: object) -> None:  # the last of all entries
        (folder / "half").touch()
        time.sleep(60)
        real_symlink(*arguments, **options)  # type: ignore[arg-type]

    os.symlink = symlink
    unpacked(lambda key: data, digest_of(data), folder / "code")


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


class TestProcesses:
    DATA = packed(*(a_member(f"f{number}", size=50) for number in range(199)), a_link("last", "f0"))

    def test_one_of_many_fetches(self, tmp_path: Path) -> None:
        processes = [SPAWN.Process(target=unpack_slowly, args=(tmp_path, self.DATA, 0.3)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(40)
        assert [process.exitcode for process in processes] == [0] * 4
        assert len(list(tmp_path.glob("fetch-*"))) == 1
        assert sorted(path.name for path in (tmp_path / "code").iterdir()) == [
            digest_of(self.DATA), f"{digest_of(self.DATA)}.lock"
        ]  # fmt: skip

    def test_what_a_killed_process_leaves_is_never_used(self, tmp_path: Path) -> None:
        process = SPAWN.Process(target=unpack_until_killed, args=(tmp_path, self.DATA))
        process.start()
        wait_until((tmp_path / "half").exists)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
        digest = digest_of(self.DATA)
        assert len(tree(tmp_path / "code" / f"{digest}.part")) == 199
        (tmp_path / "code" / f"{digest}.part" / "stale").touch()
        assert not (tmp_path / "code" / digest).exists()
        code = unpacked(lambda key: self.DATA, digest, tmp_path / "code")
        assert len(tree(code)) == 200
        assert not (tmp_path / "code" / f"{digest}.part").exists()

    def test_an_error_while_writing_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def symlink(*arguments: object, **options: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "symlink", symlink)
        with pytest.raises(InputError, match="No space left on device"):
            unpacked(lambda key: self.DATA, digest_of(self.DATA), tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [f"{digest_of(self.DATA)}.lock"]
