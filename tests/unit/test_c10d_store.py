"""Ranks meet through objects alone: exact counters, clear time-outs, and torch.distributed as with any backend."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]  # as in zooid.comm

from zooid.comm import ObjectRendezvous, Options
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommTimeout, InputError
from zooid.store import open_store

_numbers = count()


def rendezvous(timeout_s: float = 20.0, abort: Abort | None = None) -> ObjectRendezvous:
    store = open_store(f"memory://rendezvous-{next(_numbers)}")
    return ObjectRendezvous(store, "run/0", timeout_s=timeout_s, abort=abort)


@pytest.fixture
def plain() -> ObjectRendezvous:
    return rendezvous(timeout_s=2.0)


@pytest.fixture(params=["plain", "prefixed"])
def meeting(request: pytest.FixtureRequest, plain: ObjectRendezvous) -> Store:
    """By itself, and through the C++ wrapper in which torch.distributed puts every store."""
    return PrefixStore("a/b", plain) if request.param == "prefixed" else plain


def test_the_last_value_set_is_the_one_got(meeting: Store) -> None:
    meeting.set("key", "first")
    meeting.set("key", "second")
    assert meeting.get("key") == b"second"
    meeting.set("empty", "")
    assert meeting.get("empty") == b""


@pytest.mark.parametrize("key", ["a/b", "a b", "ümlaut", "%2F", "a:b#c", "0"])
def test_any_text_is_a_key(meeting: Store, key: str) -> None:
    meeting.set(key, "here")
    meeting.set("other", "there")
    assert meeting.get(key) == b"here"


def test_keys_are_there_or_not(meeting: Store) -> None:
    meeting.set("one", "1")
    assert meeting.check(["one"])
    assert not meeting.check(["one", "two"])
    meeting.set("two", "2")
    assert meeting.check(["one", "two"])


def test_a_deleted_key_is_gone_and_can_be_set_again(meeting: Store) -> None:
    meeting.set("key", "1")
    meeting.set("key", "2")
    assert meeting.delete_key("key")
    assert not meeting.check(["key"])
    assert not meeting.delete_key("key")
    meeting.set("key", "3")
    assert meeting.get("key") == b"3"


def test_keys_are_counted(meeting: Store) -> None:
    for key in ("one", "two", "two"):
        meeting.set(key, key)
    assert meeting.num_keys() == 2


def test_compare_set_changes_only_what_is_as_expected(meeting: Store) -> None:
    assert meeting.compare_set("key", "something", "new") == b"something"
    assert not meeting.check(["key"])
    assert meeting.compare_set("key", "", "first") == b"first"
    assert meeting.compare_set("key", "wrong", "second") == b"first"
    assert meeting.compare_set("key", "first", "second") == b"second"
    assert meeting.get("key") == b"second"


def test_additions_of_many_at_once_all_count(meeting: Store) -> None:
    def add(_: int) -> list[int]:
        return [meeting.add("count", 1) for _ in range(25)]

    with ThreadPoolExecutor(8) as pool:
        totals = [total for own in pool.map(add, range(8)) for total in own]
    assert sorted(totals) == list(range(1, 201)), "every addition saw another total"
    assert meeting.add("count", -200) == 0
    assert meeting.get("count") == b"0"


def test_of_many_compare_sets_at_once_one_wins(meeting: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda rank: meeting.compare_set("leader", "", f"rank {rank}"), range(8)))
    assert set(answers) == {meeting.get("leader")}


def test_a_wait_ends_when_the_last_key_is_set(meeting: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        meeting.set("one", "1")
        waiting = pool.submit(meeting.wait, ["one", "two"])
        time.sleep(0.02)
        assert not waiting.done()
        meeting.set("two", "2")
        waiting.result(timeout=5)


def test_a_key_that_nobody_sets_times_out_by_name(meeting: Store) -> None:
    with pytest.raises(CommTimeout, match=r"no rank set the key '(a/b/)?late' at the rendezvous within 0.1 s"):
        meeting.wait(["late"], timedelta(seconds=0.1))


def test_the_time_out_can_be_changed(meeting: Store) -> None:
    meeting.set_timeout(timedelta(seconds=0.1))
    begin_s = time.monotonic()
    with pytest.raises(CommTimeout, match="late"):
        meeting.get("late")
    assert time.monotonic() - begin_s < 1.0


def test_an_abort_frees_a_wait() -> None:
    abort = Abort()
    meeting = rendezvous(abort=abort)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meeting.get, "never")
        abort.set("the run is over")
        with pytest.raises(CommAborted, match="the run is over"):
            waiting.result(timeout=1)


def test_a_store_that_holds_no_messages_is_refused_for_them() -> None:
    why = r"is a HashStore, which holds no messages; use pg_options=zooid.comm.Options\(transport='tcp'\)"
    with pytest.raises(InputError, match=why):
        dist.init_process_group("zooid", store=HashStore(), rank=0, world_size=1, pg_options=Options(transport="store"))
    assert not dist.is_initialized()


def test_a_store_that_holds_no_messages_is_good_for_meeting() -> None:
    dist.init_process_group("zooid", store=HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0, 1.0, 1.0]
    finally:
        dist.destroy_process_group()


def test_the_store_may_be_made_within_the_call() -> None:
    """Torch keeps only the C++ half of a store; groups that are made later need the other half, too."""
    dist.init_process_group("zooid", store=rendezvous(), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=dist.new_group([0]))
        assert tensor.tolist() == [1.0, 1.0, 1.0]
    finally:
        dist.destroy_process_group()


PROGRAM = """
import json, sys
from datetime import timedelta
import torch
from torch import distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]  # as in zooid.comm
from zooid.comm import ObjectRendezvous
from zooid.store import open_store

url, rank = sys.argv[1], int(sys.argv[2])
meeting = ObjectRendezvous(open_store(url), "run/0", timeout_s=60.0)
dist.init_process_group("zooid", store=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
summed = torch.full((3,), float(rank + 1))
dist.all_reduce(summed)
largest = torch.full((40_000,), float(rank))
dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=dist.new_group([0, 1]))
alone = dist.new_group([1])
if rank == 1:
    dist.all_reduce(summed, group=alone)
told = torch.full((1,), float(rank))
dist.broadcast(told, src=1)
gathered = [torch.empty(1) for _ in range(2)]
dist.all_gather(gathered, torch.full((1,), float(10 * rank)))
passed = torch.full((1,), 5.0)
dist.send(passed, 1, tag=4) if rank == 0 else dist.recv(passed.zero_(), 0, tag=4)
dist.barrier()
dist.destroy_process_group()
told, passed, gathered = told.item(), passed.item(), [part.item() for part in gathered]
print(json.dumps([summed.tolist(), largest.unique().tolist(), told, gathered, passed]))
"""


def test_two_processes_that_share_only_a_folder_train_together(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, f"file://{tmp_path}"]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        answers = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (output, errors) in zip(processes, answers, strict=True):
        assert process.returncode == 0, errors
        assert json.loads(output) == [[3.0, 3.0, 3.0], [1.0], 1.0, [0.0, 10.0], 5.0]
