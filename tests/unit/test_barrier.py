"""Ranks that share nothing but a store pass a barrier together, with each other's words, or learn who is missing."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.faults import Faults, FaultyStore, Rates
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted
from zooid.store import ObjectStore, RetryingStore, open_store
from zooid.store.barrier import ObjectBoard, RanksMissing, pass_barrier


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def pass_all(store: ObjectStore, ranks: list[int], size: int, timeout_s: float = 10.0) -> list[list[bytes]]:
    board = ObjectBoard(store, Abort())

    def take_part(rank: int) -> list[bytes]:
        return pass_barrier(board, "folder", rank, size, f"words of {rank}".encode(), timeout_s=timeout_s)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(take_part, ranks))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everybody_hears_everybody(store: ObjectStore, size: int) -> None:
    expected = [f"words of {rank}".encode() for rank in range(size)]
    assert pass_all(store, list(range(size)), size) == [expected] * size


def test_a_store_that_fails_now_and_then_harms_nobody(store: ObjectStore) -> None:
    rates = Rates(error=0.4, lost_response=0.2)
    faulty = FaultyStore(store, Faults(put=rates, get=rates), seed=3)
    assert len(pass_all(RetryingStore(faulty, give_up_s=10.0), [0, 1, 2], 3)) == 3
    assert sum(faulty.counts.values()) > 3


@pytest.mark.parametrize(("names_all", "missing"), [(False, (1,)), (True, (1, 3))])
def test_the_first_names_who_is_missing(store: ObjectStore, names_all: bool, missing: tuple[int, ...]) -> None:
    board = ObjectBoard(store, Abort())
    board.post("folder/000002", b"here")
    with pytest.raises(RanksMissing, match=r"did not arrive within 0.2 s") as caught:
        pass_barrier(board, "folder", 0, 4, timeout_s=0.2, names_all=names_all)
    assert caught.value.ranks == missing


def test_the_others_only_know_that_they_were_not_let_go(store: ObjectStore) -> None:
    with pytest.raises(RanksMissing) as caught:
        pass_barrier(ObjectBoard(store, Abort()), "folder", 2, 3, timeout_s=0.1)
    assert caught.value.ranks == (0,)


def test_an_abort_frees_it(store: ObjectStore) -> None:
    abort = Abort()
    abort.set("the run is over")
    with pytest.raises(CommAborted, match="the run is over"):
        pass_barrier(ObjectBoard(store, abort), "folder", 0, 2, timeout_s=10.0)
