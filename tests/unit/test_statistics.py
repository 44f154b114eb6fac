"""What a group counts: exactly, and from any thread."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from tests.contract.groups import Opener
from zooid.comm import ProcessGroup, Statistics, monitored_barrier, statistics
from zooid.comm.traffic_counter import Counter
from zooid.core.errors import InputError
from zooid.core.runs.store_rules import TRAILER_BYTES


def test_amounts_of_many_threads_all_count() -> None:
    counter = Counter()

    def add(_: int) -> None:
        for _ in range(500):
            counter.add(num_puts=1, sent_bytes=10, waited_s=0.5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert counter.read() == Statistics(num_puts=2000, sent_bytes=20_000, waited_s=1000.0)


def test_what_is_not_counted_cannot_be_added() -> None:
    with pytest.raises(KeyError, match="num_pust"):
        Counter().add(num_pust=1)


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_a_group_counts_its_messages_to_the_byte(kind: str, tmp_path: Path) -> None:
    is_store = kind == "memory"
    with Opener(kind, tmp_path)(3) as ranks:
        ranks.play(lambda group, rank: group.allreduce([torch.ones(100)]).wait())
        for group in ranks.groups:
            counted = asdict(group.counter.read())
            each = 400 + (TRAILER_BYTES if is_store else 0)
            num_sent = 1 if is_store else 2  # an object is put once for all its readers
            assert (counted["num_messages_sent"], counted["sent_bytes"]) == (num_sent, num_sent * each)
            assert (counted["num_messages_received"], counted["received_bytes"]) == (2, 2 * each)
            assert (counted["num_puts"], counted["num_gets"]) == ((1, 2) if is_store else (0, 0))
            assert counted["waited_s"] > 0


def test_a_user_asks_for_the_default_group_or_any(tmp_path: Path) -> None:
    dist.init_process_group("zooid", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        group = dist.new_group([0])
        dist.all_reduce(torch.ones(10), group=group)
        assert isinstance(group, ProcessGroup)
        assert statistics(group) == statistics() == Statistics()
        monitored_barrier()
        monitored_barrier(group, timeout=1.0)
    finally:
        dist.destroy_process_group()


def test_groups_of_other_backends_know_nothing_of_this() -> None:
    with pytest.raises(InputError, match=r"this group is a .*; this call needs a group of the backend zooid"):
        statistics(object())
