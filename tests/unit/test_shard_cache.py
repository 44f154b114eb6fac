"""Shards that were fetched to this machine: once, whole, by whichever process needs them, and within bounds."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zooid
from lab.faults import Faults, FaultyStore, Rates
from lab.waiting import wait_until
from tests.processes import children, is_gone
from tests.unit.shard_folders import SAMPLES_PER_SHARD, decode, number_of, write_shards
from zooid.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from zooid.store import open_store
from zooid.store.shards import ShardedData
from zooid.store.shards import cache as caching
from zooid.store.shards.cache import ShardCache
from zooid.store.shards.index import read_index

pytestmark = pytest.mark.timeout(60)

FORK = multiprocessing.get_context("fork")
NUM_SAMPLES = 120
Open = Callable[..., ShardedData]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = write_shards(tmp_path / "train", NUM_SAMPLES)
    zooid.index_shards(url)
    return url


@pytest.fixture
def opened(url: str, tmp_path: Path) -> Iterator[Open]:
    """Data sets over the same folder and cache."""
    data = []

    def open_data(cache_bytes: int | None = None) -> ShardedData:
        data.append(zooid.shards(url, decode, cache=tmp_path / "cache", cache_bytes=cache_bytes))
        return data[-1]

    yield open_data
    for each in data:
        each.close()


def cached(tmp_path: Path, number: int | None = None) -> list[Path]:
    """The shards that are here, whole."""
    pattern = "*.tar" if number is None else f"*-train-{number:04d}.tar"
    return sorted(path for path in (tmp_path / "cache").glob(pattern) if caching.read_table(path))


def names_of(paths: list[Path]) -> list[str]:
    """Without the digest in front."""
    return sorted(path.name[17:] for path in paths)


def in_child(work: Callable[[], Any]) -> Any:
    """What a forked process gets; it must not use the store that this one has used."""
    ours, theirs = FORK.Pipe()

    def run(pipe: Connection) -> None:
        pipe.send(work())

    process = FORK.Process(target=run, args=(theirs,))
    process.start()
    result = ours.recv()
    process.join()
    return result


def test_only_what_is_needed_is_fetched_and_only_once(opened: Open, tmp_path: Path) -> None:
    others = children()
    data = opened()
    assert [number_of(data[n]) for n in (5, 35, 7)] == [5, 35, 7]
    assert names_of(cached(tmp_path)) == ["train-0000.tar", "train-0003.tar"]
    data.close()
    assert children() == others
    again = opened()
    assert number_of(again[6]) == 6
    assert children() == others, "what is here already needs no process to fetch it"


def test_a_process_that_was_forked_fetches_for_itself(opened: Open) -> None:
    data = opened()
    assert number_of(data[0]) == 0
    assert in_child(lambda: [number_of(data[n]) for n in (3, 50)]) == [3, 50]
    assert number_of(data[50]) == 50


@pytest.mark.parametrize("cache_bytes", [None, 8 * 51200])
def test_processes_share_the_cache(cache_bytes: int | None, opened: Open, tmp_path: Path) -> None:
    """All of them at once, in different orders; without a bound, nobody fetches what another one has."""
    processes, pipes = [], []
    data = opened(cache_bytes)

    def read_all(seed: int, pipe: Connection) -> None:
        order = np.random.default_rng(seed).permutation(NUM_SAMPLES).tolist()
        pipe.send([number_of(data[n]) for n in order] == order)
        pipe.send({} if cache_bytes else {path.name: path.stat().st_ino for path in cached(tmp_path)})

    for seed in range(3):
        ours, theirs = FORK.Pipe()
        processes.append(FORK.Process(target=read_all, args=(seed, theirs)))
        processes[-1].start()
        pipes.append(ours)
    assert [pipe.recv() for pipe in pipes] == [True] * 3
    inodes = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    if cache_bytes is None:
        assert len(inodes[0]) == NUM_SAMPLES // SAMPLES_PER_SHARD
        assert inodes[0] == inodes[1] == inodes[2]
    else:
        assert sum(path.stat().st_size for path in cached(tmp_path)) <= cache_bytes


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.index(b"\x93NUMPY") + 150
    content[at] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def spoil_table(path: Path) -> None:
    path.with_name(path.name + ".json").write_bytes(b'{"record": "shard-t')


@pytest.mark.parametrize("while_open", [False, True])
@pytest.mark.parametrize("damage", [flip, truncate, spoil_table, Path.unlink])
def test_a_damaged_shard_is_noticed_and_fetched_again(
    damage: Callable[[Path], None], while_open: bool, opened: Open, tmp_path: Path
) -> None:
    data = opened()
    assert [number_of(data[n]) for n in range(10)] == list(range(10))
    (path,) = cached(tmp_path, 0)
    damage(path)
    reader = data if while_open else opened()
    assert [number_of(reader[n]) for n in range(10)] == list(range(10))
    original = (tmp_path / "train" / "train-0000.tar").read_bytes()
    assert number_of(opened()[0]) == 0
    assert cached(tmp_path, 0)[0].read_bytes() == original


def test_shards_that_changed_are_fetched_when_their_index_says_so(opened: Open, url: str, tmp_path: Path) -> None:
    assert number_of(opened()[15]) == 15
    shard = tmp_path / "train" / "train-0001.tar"
    shard.write_bytes((tmp_path / "train" / "train-0002.tar").read_bytes())
    assert number_of(opened()[15]) == 15, "as long as the index is the old one"
    zooid.index_shards(url)
    assert number_of(opened()[15]) == 25


def test_a_bound_holds_and_nothing_else_is_removed(opened: Open, tmp_path: Path) -> None:
    bound = 9 * 51200
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "my-own.tar").write_bytes(b"mine" * 100_000)
    data = opened(bound)
    for number in range(NUM_SAMPLES):
        assert number_of(data[number]) == number
        assert sum(path.stat().st_size for path in cached(tmp_path)) <= bound
    last = [f"train-{number:04d}.tar" for number in range(3, 12)]
    assert names_of(cached(tmp_path)) == last, "those that were used last"
    assert (tmp_path / "cache" / "my-own.tar").exists()
    assert number_of(data[0]) == 0


def test_shards_are_fetched_in_the_background(opened: Open, tmp_path: Path) -> None:
    data = opened()
    data.prefetch([4, 7])
    wait_until(lambda: cached(tmp_path, 4) and cached(tmp_path, 7))
    assert len(cached(tmp_path)) == 2
    data.prefetch([4])
    assert number_of(data[45]) == 45


def test_a_failure_in_the_background_is_told_to_whoever_needs_the_shard(opened: Open, tmp_path: Path) -> None:
    shard = tmp_path / "train" / "train-0002.tar"
    content = shard.read_bytes()
    shard.unlink()
    data = opened()
    data.prefetch([2])
    with pytest.raises(ObjectNotFound, match=r"train-0002\.tar is missing"):
        data[25]
    shard.write_bytes(content)
    assert number_of(data[25]) == 25


def test_a_fetcher_that_dies_is_an_error_and_not_the_end(opened: Open, url: str, tmp_path: Path) -> None:
    """Shard 3 is a pipe, so that the fetcher waits for its bytes until it is killed."""
    others = set(children())
    data = opened()
    assert number_of(data[0]) == 0
    (fetcher,) = set(children()) - others
    path = tmp_path / "train" / "train-0003.tar"
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)

    def kill_when_it_reads() -> None:
        with path.open("wb"):
            os.kill(fetcher, signal.SIGKILL)

    killer = FORK.Process(target=kill_when_it_reads)
    killer.start()
    with pytest.raises(StoreError, match=r"fetches shards ended with exit status -9 while it fetched 'train-0003.tar'"):
        data[35]
    killer.join()
    path.unlink()
    path.write_bytes(content)
    assert number_of(data[35]) == 35


def test_a_fetcher_ends_with_the_process_that_started_it(opened: Open) -> None:
    data = opened()
    ours, theirs = FORK.Pipe()

    def member(pipe: Connection) -> None:
        data[15]
        pipe.send(children())
        signal.pause()

    process = FORK.Process(target=member, args=(theirs,))
    process.start()
    (fetcher,) = ours.recv()
    assert not is_gone(fetcher)
    process.kill()
    process.join()
    wait_until(lambda: is_gone(fetcher))


def test_what_a_killed_fetcher_left_is_no_shard_and_goes(opened: Open, tmp_path: Path) -> None:
    data = opened()
    assert number_of(data[0]) == 0
    name = cached(tmp_path, 0)[0].name
    parts = [tmp_path / "cache" / f"{name[:16]}-{other}.tar.part" for other in ("train-0001", "gone")]
    for part in parts:
        part.write_bytes(b"half a sh")
    assert number_of(data[15]) == 15
    assert not any(part.exists() for part in parts)


def test_a_store_that_fails_for_a_while_is_asked_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_BACKOFF_S", (0.0, 0.0, 0.0))
    cache = ShardCache(tmp_path / "cache", None)
    cache.folder.mkdir()
    store = open_store(url)
    faulty = FaultyStore(store, Faults(get=Rates(error=0.5)), seed=2)
    for shard in read_index(store, "shardindex.json"):
        cache.fetch(faulty, shard)
    assert faulty.counts["get.error"] >= 3
    assert len(cached(tmp_path)) == NUM_SAMPLES // SAMPLES_PER_SHARD


def test_a_store_that_keeps_failing_is_an_error(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_BACKOFF_S", (0.0, 0.0, 0.0))
    cache = ShardCache(tmp_path / "cache", None)
    cache.folder.mkdir()
    store = open_store(url)
    faulty = FaultyStore(store, Faults(get=Rates(error=1.0)), seed=1)
    with pytest.raises(StoreUnavailable, match="injected"):
        cache.fetch(faulty, read_index(store, "shardindex.json")[0])
    assert faulty.counts["get.error"] == 4
    assert cached(tmp_path) == []
    assert not [*cache.folder.glob("*.part")]


def test_without_a_home_shards_are_kept_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert caching.default_folder() == tmp_path / "home" / ".cache" / "zooid" / "shards"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert caching.default_folder() == tmp_path / f"zooid-shards-{os.getuid()}"
