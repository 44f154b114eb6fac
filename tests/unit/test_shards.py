"""Tar shards as a data set: webdataset's own files, by index, and what is said of folders that are not in order."""

import contextlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset import tariterators

import zooid
from tests.unit.shard_folders import READING_JOB, SAMPLES_PER_SHARD, decode, number_of, write_shards
from zooid.core.errors import InputError, JobError, ObjectNotFound
from zooid.layers import collate
from zooid.store import open_store

INDEX = "shardindex.json"


def whole(files: dict[str, bytes]) -> tuple[dict[str, bytes], None]:
    return files, None


def write_index(folder: Path, **fields: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"wids_version": 1, **fields}))


def write_tar(path: Path, files: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def read_with_webdataset(paths: list[Path]) -> list[dict[str, bytes]]:
    """Through its own two steps, since WebDataset leaves files open."""
    with contextlib.ExitStack() as stack:
        sources = [{"url": str(path), "stream": stack.enter_context(path.open("rb"))} for path in paths]
        samples = [*tariterators.group_by_keys(tariterators.tar_file_expander(sources))]
    about = {"__key__", "__url__"}
    return [{field: content for field, content in sample.items() if field not in about} for sample in samples]


@pytest.mark.parametrize("cached", [False, True])
def test_what_webdataset_wrote_is_read_by_index(cached: bool, tmp_path: Path) -> None:
    url = write_shards(tmp_path / "train", 47)
    progress: list[tuple[int, int]] = []
    assert zooid.index_shards(url, on_progress=lambda *at: progress.append(at)) == 47
    assert progress == [(done, 5) for done in (1, 2, 3, 4, 5)]
    data = zooid.shards(url, decode, cache=tmp_path / "cache" if cached else None)
    assert data.shard_sizes == (10, 10, 10, 10, 7)
    assert len(data) == 47
    for number in [46, 0, 9, 10, 31, np.int64(5), *range(47)]:
        assert number_of(data[number]) == number
    for outside in (-1, 47):
        with pytest.raises(IndexError, match=f"sample {outside} of a data set of 47"):
            data[outside]
    assert (tmp_path / "cache").exists() == cached, "files that are here already are read where they lie"
    data.close()
    assert number_of(data[3]) == 3, "closing is no end"
    data.close()


def test_samples_are_those_of_webdataset_itself(tmp_path: Path) -> None:
    url = write_shards(tmp_path / "train", 25)
    zooid.index_shards(url)
    data = zooid.shards(url, whole)
    assert [data[n][0] for n in range(25)] == read_with_webdataset(sorted((tmp_path / "train").glob("*.tar")))


names = st.text("ab.X_/", min_size=1, max_size=6).filter(lambda name: all(part for part in name.split("/")))
contents = st.dictionaries(
    st.one_of(
        names,
        st.builds("{}{}.{}".format, st.sampled_from(["", "a/", "__m__/"]), st.integers(0, 3), st.sampled_from("xyZ")),
        st.sampled_from(["__meta__", "__info.json__", "a" * 120 + "/b.jpg", "unicode-ü.txt"]),
    ).filter(lambda name: not set(name.split("/")) & {".", ".."}),
    st.binary(max_size=700),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(contents, st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_any_tar_file_has_the_samples_that_webdataset_finds_in_it(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], form: int
) -> None:
    """Odd names, folders, files that belong to no sample, long names; or both refuse it."""
    folder = tmp_path_factory.mktemp("odd")
    write_tar(folder / "a.tar", files, form)
    try:
        expected = read_with_webdataset([folder / "a.tar"])
    except ValueError:  # two files of one name
        with pytest.raises(InputError, match="of its sample; write the shard again"):
            zooid.index_shards(folder.as_uri())
        return
    assert zooid.index_shards(folder.as_uri()) == len(expected)
    if expected:
        data = zooid.shards(folder.as_uri(), whole)
        assert [data[n][0] for n in range(len(data))] == expected


def test_an_index_by_widsindex_serves(tmp_path: Path) -> None:
    """As that command writes it, for shards in a folder below; there are fields that zooid does not know."""
    write_shards(tmp_path / "set" / "train", 20)
    listed = [{"url": f"train/train-000{n}.tar", "nsamples": 10, "md5sum": md5, "filesize": 51200} for n, md5 in SUMS]
    write_index(tmp_path / "set", __kind__="wids-shard-index-v1", shardlist=listed, name="train")
    data = zooid.shards((tmp_path / "set").as_uri(), decode)
    assert [number_of(data[n]) for n in (0, 19)] == [0, 19]


SUMS = [(0, "0" * 32), (1, "1" * 32)]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        (None, "{folder}/train-0000.tar"),
        (None, "{path}/train-0000.tar"),
        (None, "./train-0000.tar"),
        ("{folder}", "train-0000.tar"),
        ("{folder}/", "train-0000.tar"),
    ],
)
def test_an_index_may_name_shards_in_other_ways(base: str | None, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "train set"
    write_shards(folder, 10)
    places = {"folder": folder.as_uri(), "path": str(folder)}
    extra = {} if base is None else {"base": base.format(**places)}
    write_index(folder, shardlist=[{"url": url.format(**places), "nsamples": 10}], **extra)
    assert number_of(zooid.shards(folder.as_uri() + "/", decode)[7]) == 7
    assert number_of(zooid.shards(f"{folder.as_uri()}/{INDEX}", decode)[8]) == 8


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, r"there is no shardindex.json in file://.*make it with zooid.index_shards\('file://.*/train'\)"),
        ("{", "is not an index of shards: Input data was truncated; make it with"),
        ({"shardlist": [{"url": "a.tar"}]}, "is not an index of shards: Object missing required field `nsamples`"),
        ({"shardlist": []}, "names no samples; make it with"),
        ({"wids_version": 2, "shardlist": []}, "is of version 2; zooid reads lists of shards of version 1"),
        ({"datasets": [{"source_url": "x.json"}]}, "is a list of other indices; zooid reads"),
        ({"shardlist": [{"url": "s3://other/a.tar", "nsamples": 1}]}, "the shard s3://other/a.tar, which is not below"),
        ({"shardlist": [{"url": "../a.tar", "nsamples": 1}]}, r"the shard \.\./a.tar, which is not below"),
        ({"shardlist": [{"url": "a.tar.gz", "nsamples": 1}]}, r"'a.tar.gz' is not a .tar file; .* decompress them"),
        ({"shardlist": [{"url": "a.tar", "nsamples": -1}]}, "`num_samples` of a.tar is -1; it must be at least 0"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(
    index: dict[str, Any] | str | None, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    if index is not None:
        content = index if isinstance(index, str) else json.dumps({"wids_version": 1, **index})
        (folder / INDEX).write_text(content)
    with pytest.raises(InputError, match=message):
        zooid.shards(folder.as_uri(), decode)


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    url = (tmp_path / "typo").as_uri()
    for call in (lambda: zooid.shards(url, decode), lambda: zooid.index_shards(url)):
        with pytest.raises(InputError, match=r"there is no folder file://.*/typo"):
            call()
    assert not (tmp_path / "typo").exists()


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    url = write_shards(tmp_path / "train", 10)
    zooid.index_shards(url)
    with pytest.raises(InputError, match="`decode` is 'jpg'; it must be a callable"):
        zooid.shards(url, "jpg")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="memory://run exists in one process only"):
        zooid.shards("memory://run", decode)
    with pytest.raises(InputError, match="`cache_bytes` is 0; give a number of bytes above 0"):
        zooid.shards(url, decode, cache=tmp_path / "cache", cache_bytes=0)
    with pytest.raises(InputError, match=r"8 shards of file://.* are in use at a time, 51.2 kB together; give at"):
        zooid.shards(url, decode, cache=tmp_path / "cache", cache_bytes=50_000)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"the cache .*/file cannot be created: File exists; give another folder"):
        zooid.shards(url, decode, cache=tmp_path / "file")


def test_indexing_says_what_it_cannot_count(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no \.tar file in file://"):
        zooid.index_shards(tmp_path.as_uri())
    url = write_shards(tmp_path / "train", 20)
    shard = tmp_path / "train" / "train-0001.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"train-0001.tar is not a complete tar file \(.*\); write it"):
        zooid.index_shards(url)
    assert not (tmp_path / "train" / INDEX).exists()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("remove", ObjectNotFound, r"the shard file://.*/train-0001.tar is missing, which the index names; restore it"),
        ("cut", InputError, "train-0001.tar has 5000 bytes, but the index says 51200; restore it, or make the index"),
        ("shorten", InputError, "train-0001.tar has 10240 bytes, but the index says 51200; restore it, or make the"),
        ("replace", InputError, "train-0001.tar has (the MD5 sum .*|9 samples), but the index says .*; restore it, or"),
    ],
)
def test_a_shard_that_is_not_as_indexed_is_refused(
    cached: bool, change: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Nothing is left of it in the cache, and the other shards can be read."""
    url = write_shards(tmp_path / "train", 20, values_per_sample=100)
    zooid.index_shards(url)
    shard = tmp_path / "train" / "train-0001.tar"
    content = shard.read_bytes()
    if change == "remove":
        shard.unlink()
    elif change == "cut":
        shard.write_bytes(content[:5000])
    else:
        num_samples = 3 if change == "shorten" else 9
        write_tar(shard, {f"{n}.cls": b"1" for n in range(num_samples)})
        if change == "replace":
            shard.write_bytes(shard.read_bytes().ljust(len(content), b"\0"))
    data = zooid.shards(url, decode, cache=tmp_path / "cache" if cached else None)
    for _ in range(2):
        with pytest.raises(error, match=message):
            data[13]
    assert number_of(data[4]) == 4
    data.close()
    if cached:
        kept = sorted(path.name[17:] for path in (tmp_path / "cache").glob("*.tar*") if path.suffix != ".lock")
        assert kept == ["train-0000.tar", "train-0000.tar.json"]


def test_a_sample_without_a_wanted_field_is_named(tmp_path: Path) -> None:
    url = write_shards(tmp_path / "train", 20)
    zooid.index_shards(url)
    data = zooid.shards(url, lambda files: (files["jpg"], 0))
    text = (
        "`decode` raised KeyError: 'jpg' for sample 14, which is '000014' of the shard train-0001.tar and has .cls, "
        ".values.npy; fix it or `decode`"
    )
    with pytest.raises(JobError) as raised:
        collate(data, [14], READING_JOB)
    assert str(raised.value) == text


def test_the_index_lies_beside_the_shards_of_folders_below(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_shards(tmp_path / "set" / part, SAMPLES_PER_SHARD)
    assert zooid.index_shards((tmp_path / "set").as_uri()) == 2 * SAMPLES_PER_SHARD
    index = json.loads(bytes(open_store((tmp_path / "set").as_uri()).get(INDEX)))
    assert [entry["url"] for entry in index["shardlist"]] == ["a/train-0000.tar", "b/train-0000.tar"]
    data = zooid.shards((tmp_path / "set").as_uri(), decode, cache=tmp_path / "cache")
    assert [number_of(data[n]) for n in (0, 10)] == [0, 0]
    data.close()
