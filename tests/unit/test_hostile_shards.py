"""Tar files and indices of strangers: refused with a project error, in no time and in no memory."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zooid
from zooid.core.errors import InputError, RecordError
from zooid.core.runs.shard import SampleFiles, ShardTable, TarShard
from zooid.store.shards.archive import _is_meta, _parts, table_of
from zooid.store.shards.index import INDEX_NAME, index_shards

BLOCK = 512


def a_header(name: str = "0001.cls", size: int = 1, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = _number(size)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:BLOCK])
    return bytes(header)


def _number(size: int) -> bytes:
    """As GNU tar writes what does not fit into eleven octal digits."""
    if 0 <= size < 8**11:
        return b"%011o\0" % size
    return (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")


END = b"\0" * 2 * BLOCK
LONG_NAME = a_header("././@LongLink", 5, tarfile.GNUTYPE_LONGNAME) + b"name\0".ljust(BLOCK, b"\0")
HOSTILE = {
    "a size below zero": a_header(size=-BLOCK) + END,
    "a size far below zero": a_header() + b"7".ljust(BLOCK, b"\0") + a_header("0002.cls", size=-3 * BLOCK) + END,
    "a damaged header behind a good sample": a_header() + b"7".ljust(BLOCK, b"\0") + b"?" * BLOCK + END,
    "a header that is cut short": a_header() + b"7".ljust(BLOCK, b"\0") + a_header("0002.cls")[: BLOCK // 2],
    "a size beyond every disk": a_header(size=2**62) + END,
    "a size beyond the file": a_header(size=10**12) + END,
    "a name as long as the disk": a_header("././@LongLink", 2**40, tarfile.GNUTYPE_LONGNAME) + END,
    "a name of less than nothing": a_header("././@LongLink", -BLOCK, tarfile.GNUTYPE_LONGNAME) + END,
    "names within names": LONG_NAME * 2000 + END,
    "a sparse map that never ends": (
        a_header("pax", 44, tarfile.XHDTYPE)
        + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(BLOCK, b"\0")
        + a_header(size=BLOCK)
        + b"99999999\n".ljust(BLOCK, b"1")
        + END
    ),
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
class TestHeaders:
    def test_counting_ends_with_a_project_error(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(InputError, match=r"a\.tar"):
            index_shards(tmp_path.as_uri())

    def test_reading_ends_with_a_project_error(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(data)
        write_index(tmp_path, {"url": "a.tar", "nsamples": 1})
        with pytest.raises(InputError, match=r"a\.tar"):
            zooid.shards(tmp_path.as_uri(), decode=dict)[0]


@pytest.mark.timeout(20)
def test_a_long_name_takes_no_longer_than_it_is_long(tmp_path: Path) -> None:
    name = "/" * 500_000
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        header = tarfile.TarInfo("0001.cls")
        header.size = 1
        archive.addfile(header, io.BytesIO(b"7"))
    plain = (tmp_path / "a.tar").read_bytes()
    data = f"{name}\0".encode()
    long_name = a_header("././@LongLink", len(data), tarfile.GNUTYPE_LONGNAME)
    (tmp_path / "a.tar").write_bytes(long_name + data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0") + plain)
    table_of(tmp_path / "a.tar", "a.tar", with_checksums=True)


@given(st.text("a._/", max_size=12))
def test_names_are_divided_as_webdataset_does(name: str) -> None:
    expected = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", name, re.DOTALL)
    assert _parts(name) == (None if expected is None else (expected[1], expected[2]))
    assert _is_meta(name) == bool(re.match(r"__[^/]*__($|/)", name))


def write_index(folder: Path, *entries: dict[str, Any], **others: Any) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"wids_version": 1, "shardlist": entries, **others}))


class TestIndex:
    @pytest.mark.parametrize(
        "where",
        [
            lambda folder: {"url": "a/../../secret.tar"},
            lambda folder: {"url": "../secret.tar"},
            lambda folder: {"url": f"{folder.as_uri()}/a/../../secret.tar"},
            lambda folder: {"url": f"{folder.as_uri()}/%2e%2e/secret.tar"},
            lambda folder: {"url": f"{folder.parent}/secret.tar"},
            lambda folder: {"url": f"{folder}-2/../secret.tar"},
            lambda folder: {"url": "secret.tar", "base": f"{folder.as_uri()}/.."},
            lambda folder: {"url": "secret.tar", "base": "b/../.."},
            lambda folder: {"url": "file://[/secret.tar"},
            lambda folder: {"url": "."},
            lambda folder: {"url": ""},
        ],
    )
    def test_nothing_outside_of_the_folder_is_read(
        self, where: Callable[[Path], dict[str, str]], tmp_path: Path
    ) -> None:
        folder = tmp_path / "shards"
        (folder / "a").mkdir(parents=True)
        with tarfile.open(tmp_path / "secret.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("0001.cls"))
        entry = where(folder)
        base = {"base": entry.pop("base")} if "base" in entry else {}
        write_index(folder, {**entry, "nsamples": 1}, **base)
        with pytest.raises(InputError, match=r"not below|not the name of a shard|not a \.tar file"):
            zooid.shards(folder.as_uri(), decode=dict)[0]

    def test_names_inside_of_the_folder_are_read_however_they_are_spelled(self, tmp_path: Path) -> None:
        (tmp_path / "my shards").mkdir()
        with tarfile.open(tmp_path / "my shards" / "a.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("0001.cls"))
        for url in (
            "a.tar",
            "./a.tar",
            "b/../a.tar",
            f"{tmp_path}/my shards/a.tar",
            f"{tmp_path.as_uri()}/my%20shards/a.tar",
        ):
            write_index(tmp_path / "my shards", {"url": url, "nsamples": 1})
            assert zooid.shards((tmp_path / "my shards").as_uri(), decode=dict)[0] == {"cls": b""}

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"num_samples": 10**18}, "samples, but a tar file of its size has at most"),
            ({"num_samples": 5, "size_bytes": 2048}, "at most 4"),
            ({"num_samples": 0, "size_bytes": -1}, "is -1; it must be at least 0"),
            ({"num_samples": 1, "key": "a\x00.tar"}, "not the name of a shard"),
            ({"num_samples": 1, "key": "a\n.tar"}, "not the name of a shard"),
        ],
    )
    def test_numbers_and_names_that_no_shard_has_are_refused(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(RecordError, match=message):
            TarShard(**{"key": "a.tar"} | fields)

    def test_an_index_that_is_too_deep_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / INDEX_NAME).write_bytes(b'{"wids_version": 1, "more": ' + b"[" * 10**5)
        with pytest.raises(InputError, match="is not an index of shards"):
            zooid.shards(tmp_path.as_uri(), decode=dict)

    def test_a_shard_that_is_a_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar").mkdir()
        write_index(tmp_path, {"url": "a.tar", "nsamples": 1})
        with pytest.raises(InputError, match="cannot be read"):
            zooid.shards(tmp_path.as_uri(), decode=dict)[0]


@pytest.mark.parametrize(("offset", "size"), [(0, 2**62), (-512, 10), (4000, 97), (512, -1)])
def test_a_table_whose_files_lie_outside_of_the_shard_is_refused(offset: int, size: int) -> None:
    with pytest.raises(RecordError, match=f"`samples` has {size} bytes at offset {offset}; the shard has 4096 bytes"):
        ShardTable(size_bytes=4096, samples=(SampleFiles("0001", None, (("cls", offset, size),)),))
