"""Stores fail, objects are damaged, ranks die, hang or leave: the numbers are right, or an error says who it was."""

import itertools
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import distributed as dist

import zooid.comm
from lab.faults import Faults, FaultyStore, Rates
from lab.servers import S3Server, moto_s3
from tests.integration.ranks import LIMIT_S, Rank, Ranks, Way, run, started
from zooid.core.errors import CommError
from zooid.store import open_store
from zooid.store.store_protocol import Data, ObjectStore

pytestmark = pytest.mark.timeout(120)

ways = pytest.mark.parametrize("way", ["store", "tcp"])

LARGE = 40_000
"""Elements that `exchange` is not chosen for."""
SHORT_TIMEOUT_S = 2.0
NUM_WARM_UP = 10
"""Calls before a test disturbs the ranks."""


def join_through(rank: Rank, objects: ObjectStore, *, all_reduce: Literal["auto", "exchange"] = "auto") -> None:
    """Make the default group with a store of the test's own making."""
    meeting = zooid.comm.ObjectRendezvous(objects, "run", options=zooid.comm.Options(all_reduce=all_reduce))
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("zooid", store=meeting, rank=rank.number, world_size=rank.size, timeout=limit)


def reduce_for_ever(rank: Rank, on_call: Callable[[int], None] = lambda number: None) -> None:
    """Until something goes wrong; says so when it is well under way."""
    for number in itertools.count():
        values = torch.full((LARGE,), float(rank.number))
        dist.all_reduce(values)
        on_call(number)
        if number == NUM_WARM_UP:
            rank.parent.send("under way")


def await_under_way(ranks: Ranks, size: int = 3) -> None:
    for rank in range(size):
        assert ranks.hear(rank) == "under way"


def names(error: str, rank: int) -> bool:
    """Whether an error blames a rank, among others perhaps."""
    return any(
        str(rank) in re.findall(r"\d+", found) for found in re.findall(r"(?:for ranks?|rank) (\d[\d, ]*)", error)
    )


class TestFailingStore:
    SIZES = (1, 100, 10_000, LARGE, 150_000)
    NUM_CALLS = 80
    NUM_AT_ONCE = 8

    def test_leaves_every_sum_right(self, tmp_path: Path) -> None:
        faults: Counter[str] = Counter()
        for counts, num_retries in run(self.add_up, 3, str(tmp_path), limit_s=80):
            faults.update(counts)
            assert num_retries > 0
        print(faults)
        for operation in ("put", "create", "get", "list"):
            for fault in ("error", "lost_response", "delay"):
                assert faults[f"{operation}.{fault}"] > 0
        assert faults["delete.error"] + faults["delete.lost_response"] > 0
        assert open_store(tmp_path.as_uri()).is_empty()

    @classmethod
    def add_up(cls, rank: Rank, folder: str) -> tuple[dict[str, int], int]:
        """One request in twenty fails and one in ten is late, where there are many; more where there are few.

        A rank may need as few as one or two requests to delete everything, so that nearly all of these fail.
        """
        usual = Rates(error=0.025, lost_response=0.025, delay=0.1, delay_s=0.02)
        high = Rates(error=0.25, lost_response=0.25, delay=0.2, delay_s=0.02)
        highest = Rates(error=0.45, lost_response=0.45)
        faults = Faults(put=usual, get=usual, create=high, list=high, delete=highest)
        store = FaultyStore(open_store(f"file://{folder}"), faults, seed=rank.number)
        join_through(rank, store)
        for first in range(0, cls.NUM_CALLS, cls.NUM_AT_ONCE):
            numbers = range(first, first + cls.NUM_AT_ONCE)
            own = [torch.arange(cls.SIZES[n % len(cls.SIZES)]) + float(n * rank.number) for n in numbers]
            works = [dist.all_reduce(values, async_op=True) for values in own]
            for number, values, work in zip(numbers, own, works, strict=True):
                assert work is not None
                work.wait()
                assert torch.equal(values, 3.0 * torch.arange(len(values)) + number * (0 + 1 + 2))
            zooid.comm.monitored_barrier()
        num_retries = zooid.comm.statistics().num_retries
        dist.destroy_process_group()
        return store.counts, num_retries


class TestKilledRank:
    @pytest.mark.parametrize("victim", [0, 1, 2])
    @pytest.mark.parametrize("algorithm", ["exchange", "streaming", "ring"])
    def test_is_named_within_a_second_over_tcp(self, algorithm: str, victim: int, tmp_path: Path) -> None:
        self.check("tcp", algorithm, victim, tmp_path, timeout_s=LIMIT_S, limit_s=1.0)

    @pytest.mark.parametrize("algorithm", ["exchange", "streaming"])
    def test_is_named_at_the_time_out_over_the_store(self, algorithm: str, tmp_path: Path) -> None:
        """Each rank in a group of its own, at the same time, since most of it is waiting."""
        with ThreadPoolExecutor(3) as pool:
            for ended in [pool.submit(self.check_over_store, algorithm, victim, tmp_path) for victim in (0, 1, 2)]:
                ended.result()

    def check_over_store(self, algorithm: str, victim: int, folder: Path) -> None:
        self.check("store", algorithm, victim, folder, timeout_s=SHORT_TIMEOUT_S, limit_s=SHORT_TIMEOUT_S + 1.0)

    def check(self, way: Way, algorithm: str, victim: int, folder: Path, *, timeout_s: float, limit_s: float) -> None:
        with started(self.join_and_reduce, 3, way, f"{folder}/group-{victim}", algorithm, timeout_s) as ranks:
            await_under_way(ranks)
            killed_s = ranks.send_signal(victim, signal.SIGKILL)
            for survivor in {0, 1, 2} - {victim}:
                ended = ranks.ended(survivor)
                print(f"rank {survivor}, {ended.at_s - killed_s:.3f} s after the kill: {ended.error}")
                assert ended.at_s - killed_s <= limit_s
                assert names(ended.error, victim)

    @staticmethod
    def join_and_reduce(rank: Rank, way: Way, path: str, algorithm: str, timeout_s: float) -> None:
        rank.join(way, path, timeout_s=timeout_s, all_reduce=algorithm)
        reduce_for_ever(rank)


class TestStoppedRank:
    @ways
    def test_an_abort_frees_the_others_at_once(self, way: Way, tmp_path: Path) -> None:
        """Over TCP one rank's abort frees all; over the store everybody's frees his own."""
        with started(self.join_and_abort, 3, way, f"{tmp_path}/group", is_exit_whole=True) as ranks:
            await_under_way(ranks)
            ranks.send_signal(2, signal.SIGSTOP)
            aborted_s = 0.0
            for survivor in (0, 1):
                if survivor == 0 or way == "store":
                    ranks.tell(survivor, "abort when nothing moves")
                ended = ranks.ended(survivor)
                assert not ended.error, ended.traceback
                aborted_s = ended.value or aborted_s
                print(f"rank {survivor} was freed after {ended.at_s - aborted_s:.3f} s")
                assert ended.at_s - aborted_s <= 0.5
            assert [ranks.exit_code(survivor, 10) for survivor in (0, 1)] == [0, 0]

    @staticmethod
    def join_and_abort(rank: Rank, way: Way, path: str) -> float:
        """When this rank aborted, if it did; rank 0 destroys its group then, others just end."""
        rank.join(way, path)
        num_calls = 0
        aborted_s = 0.0

        def count(number: int) -> None:
            nonlocal num_calls
            num_calls = number

        def abort() -> None:
            nonlocal aborted_s
            rank.parent.recv()
            before = -1
            while num_calls != before:
                before = num_calls
                time.sleep(0.3)
            aborted_s = time.monotonic()
            assert dist.group.WORLD is not None
            dist.group.WORLD.abort()

        threading.Thread(target=abort, daemon=True).start()
        with pytest.raises(CommError, match="the process group was aborted"):
            reduce_for_ever(rank, count)
        if rank.number == 0:
            dist.destroy_process_group()
        return aborted_s


class TestInterruptedRank:
    @ways
    def test_ends_promptly(self, way: Way, tmp_path: Path) -> None:
        with started(self.join_and_wait, 2, way, f"{tmp_path}/group", is_exit_whole=True) as ranks:
            assert ranks.hear(0) == "about to wait"
            assert ranks.is_silent(0, 0.3)
            interrupted_s = ranks.send_signal(0, signal.SIGINT)
            ended = ranks.ended(0)
            assert ended.error.startswith("KeyboardInterrupt")
            assert ended.at_s - interrupted_s <= 0.5
            assert ranks.exit_code(0, 10) == 1

    @staticmethod
    def join_and_wait(rank: Rank, way: Way, path: str) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background ignores it
        rank.join(way, path)
        if rank.number == 0:
            rank.parent.send("about to wait")
            dist.all_reduce(torch.ones(3))
        rank.parent.recv()


class TestRankThatLeaves:
    @pytest.mark.parametrize("how", ["exits with an error", "raises"])
    def test_without_finishing_is_named(self, how: str, tmp_path: Path) -> None:
        with started(self.join_and_give_up, 3, f"{tmp_path}/group", how, is_exit_whole=True) as ranks:
            assert ranks.exit_code(1, 10) == 1
            for survivor in (0, 2):
                error = ranks.ended(survivor, 2).error
                print(error)
                assert error.startswith("PeerLost")
                assert names(error, 1)

    @staticmethod
    def join_and_give_up(rank: Rank, path: str, how: str) -> None:
        rank.join("tcp", path)
        dist.all_reduce(torch.ones(LARGE))
        if rank.number == 1:
            if how == "raises":
                raise ValueError("out of luck")
            sys.exit(1)
        dist.all_reduce(torch.ones(LARGE))

    @pytest.mark.parametrize("size", [1, LARGE], ids=["exchange", "streaming"])
    def test_after_its_last_call_harms_nobody(self, size: int, tmp_path: Path) -> None:
        for attempt in range(10):
            assert run(self.join_and_reduce_once, 3, f"{tmp_path}/group-{attempt}", size) == [3.0] * 3

    @staticmethod
    def join_and_reduce_once(rank: Rank, path: str, size: int) -> float:
        rank.join("tcp", path)
        values = torch.ones(size)
        dist.all_reduce(values)
        return float(values[-1])

    def test_after_it_has_sent_its_part_is_not_missed(self, tmp_path: Path) -> None:
        with started(self.join_and_send_part, 3, f"{tmp_path}/group", is_exit_whole=True) as ranks:
            assert [ranks.exit_code(rank, 10) for rank in (1, 2)] == [0, 0]
            ranks.tell(0, "the others have exited")
            assert ranks.results()[0] == 3.0

    @staticmethod
    def join_and_send_part(rank: Rank, path: str) -> float:
        rank.join("tcp", path)
        values = torch.ones(3)
        if rank.number == 0:
            rank.parent.recv()
        dist.reduce(values, 0)
        return float(values[0])

    @pytest.mark.parametrize("is_group_destroyed", [True, False], ids=["destroys its group", "just exits"])
    def test_after_a_send_leaves_time_to_receive(self, is_group_destroyed: bool, tmp_path: Path) -> None:
        """The reader is stopped until the sender is gone, while the message waits in its socket."""
        with started(self.join_and_send, 2, f"{tmp_path}/group", is_group_destroyed) as ranks:
            assert ranks.hear(1) == "receiving"
            ranks.send_signal(1, signal.SIGSTOP)
            ranks.tell(0, "send")
            assert ranks.hear(0) == "sent"
            ranks.exit_code(0, 0.5)  # it may wait for the reader, as long as it likes
            ranks.send_signal(1, signal.SIGCONT)
            assert ranks.results() == [7.0] * 2

    @staticmethod
    def join_and_send(rank: Rank, path: str, is_group_destroyed: bool) -> float:
        rank.join("tcp", path, num_streams="8")
        values = torch.full((25_000,), 7.0 if rank.number == 0 else 0.0)
        if rank.number == 0:
            rank.parent.recv()
            dist.send(values, 1)
            rank.parent.send("sent")
        else:
            work = dist.irecv(values, 0)
            assert work is not None
            rank.parent.send("receiving")
            work.wait()
        if is_group_destroyed:
            dist.destroy_process_group()
        return float(values[-1])


class DamagingStore(FaultyStore):
    """Writes, or reads, some objects of one call other than they are."""

    def __init__(self, inner: ObjectStore, damage: Callable[[bytes], bytes], *, num_reads: int = 0) -> None:
        super().__init__(inner, Faults(), seed=0)
        self._damage = damage
        self._num_reads = num_reads
        """That are damaged; 0 where what is written is."""
        self.num_damaged = 0

    def put(self, key: str, data: Data) -> None:
        if "/calls/" in key and not self._num_reads:
            data = self._damaged(bytes(data))
        super().put(key, data)

    def get(self, key: str) -> memoryview:
        found = super().get(key)
        if "/calls/" in key and self.num_damaged < self._num_reads:
            return memoryview(self._damaged(bytes(found)))
        return found

    def _damaged(self, data: bytes) -> bytes:
        self.num_damaged += 1
        return self._damage(data)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "cut to nothing": lambda data: b"",
    "altered": lambda data: bytes([data[0] ^ 1]) + data[1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
class TestDamagedObject:
    def test_is_read_again(self, damage: str, tmp_path: Path) -> None:
        (num_damaged, num_retries, total), (_, _, other_total) = run(self.add_up, 2, str(tmp_path), damage, 0, 3)
        assert num_damaged == 3
        assert num_retries >= 3
        assert total == other_total == 3.0

    def test_is_reported_with_its_writer(self, damage: str, tmp_path: Path) -> None:
        with started(self.add_up, 2, str(tmp_path), damage, 1, 0) as ranks:
            error = ranks.ended(0, 10).error
        print(error)
        assert error.startswith("DamagedMessage")
        assert names(error, 1)

    @staticmethod
    def add_up(rank: Rank, folder: str, damage: str, damaging_rank: int, num_reads: int) -> tuple[int, int, float]:
        objects = open_store(f"file://{folder}")
        damaging = DamagingStore(objects, DAMAGES[damage], num_reads=num_reads)
        join_through(rank, damaging if rank.number == damaging_rank else objects)
        values = torch.full((1000,), 1.0 + rank.number)
        dist.all_reduce(values)
        return damaging.num_damaged, zooid.comm.statistics().num_retries, float(values[-1])


class TestSecondRun:
    """In the same place."""

    @ways
    def test_after_a_crash_is_right(self, way: Way, tmp_path: Path) -> None:
        for attempt in range(3):
            path = f"{tmp_path}/group-{attempt}"
            with started(TestKilledRank.join_and_reduce, 3, way, path, "auto", LIMIT_S) as ranks:
                await_under_way(ranks)
            left = own_files(path)
            assert left, "the first run was killed before it could clean up"
            assert run(self.join_and_leave, 3, way, path) == [3.0] * 3
            assert own_files(path) <= left

    @ways
    def test_after_a_crash_takes_nothing_for_its_own(self, way: Way, tmp_path: Path) -> None:
        """What the first run's barrier left in the store does not open the second's."""
        with started(self.join_and_pass_barrier, 2, way, f"{tmp_path}/group", True) as ranks:
            assert [ranks.hear(rank) for rank in (0, 1)] == ["passed"] * 2
        with started(self.join_and_pass_barrier, 2, way, f"{tmp_path}/group", False) as ranks:
            assert ranks.ended(1, 10).error.startswith("CommTimeout")

    @staticmethod
    def join_and_pass_barrier(rank: Rank, way: Way, path: str, do_all_come: bool) -> None:
        rank.join(way, path)
        if rank.number == 1 or do_all_come:
            zooid.comm.monitored_barrier(timeout=LIMIT_S if do_all_come else 0.5)
            rank.parent.send("passed")
        rank.parent.recv()

    @ways
    def test_finds_nothing_of_a_first_that_ended_well(self, way: Way, tmp_path: Path) -> None:
        path = f"{tmp_path}/group"
        for _ in range(2):
            assert run(self.join_and_leave, 3, way, path) == [3.0] * 3
            assert own_files(path) == set()

    @pytest.mark.parametrize("query", ["", "?transport=tcp"], ids=["store", "tcp"])
    def test_on_s3(self, query: str, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in moto.environment.items():
            monkeypatch.setenv(name, value)
        url = f"{moto.bucket_url('again')}/{query.strip('?')}run"
        with started(self.join_s3, 3, moto.environment, url + query, True) as ranks:
            await_under_way(ranks)
        left = open_store(url).list("")
        assert left, "the first run was killed before it could clean up"
        assert run(self.join_s3, 3, moto.environment, url + query, False) == [3.0] * 3
        assert set(open_store(url).list("")) <= set(left)

    @staticmethod
    def join_s3(rank: Rank, environment: dict[str, str], url: str, is_endless: bool) -> float:
        os.environ.update(environment)
        rank.join_url(url)
        if is_endless:
            reduce_for_ever(rank)
        return reduce_and_leave()

    @staticmethod
    def join_and_leave(rank: Rank, way: Way, path: str) -> float:
        rank.join(way, path)
        return reduce_and_leave()


def reduce_and_leave() -> float:
    small, large = torch.ones(3), torch.ones(LARGE)
    for values in (small, large):
        dist.all_reduce(values)
    dist.destroy_process_group()
    return float((small[0] + large[-1]) / 2)


def own_files(path: str) -> set[str]:
    """What zooid keeps beside the file through which torch's own store meets."""
    return {str(each) for each in Path(path).parent.glob(f"{Path(path).name}.*/**/*")}


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server
