"""Messages between two ranks over every transport: each finds its receive, in any order and of any size."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.groups import OpenRanks, until, value_of, values_of
from zooid.comm import ProcessGroup
from zooid.core.errors import CommError

pytestmark = pytest.mark.timeout(30)

SMALL, LARGE = 5, 30_000
sized = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


@sized
def test_messages_find_the_receive_with_their_tag(open_ranks: OpenRanks, size: int) -> None:
    def receive(group: ProcessGroup, tag: int) -> float:
        tensor = torch.empty(size)
        group.recv([tensor], 0, tag).wait()
        return value_of(tensor)

    with open_ranks(2) as ranks:
        sender, receiver = ranks.groups
        works = [sender.send([torch.full((size,), value)], 1, tag) for tag, value in ((1, 10.0), (2, 20.0), (1, 11.0))]
        assert [receive(receiver, tag) for tag in (2, 1, 1)] == [20.0, 10.0, 11.0]
        assert all(work.wait() for work in works)


@sized
def test_a_receive_may_be_posted_before_its_send(open_ranks: OpenRanks, size: int) -> None:
    with open_ranks(2) as ranks:
        wide = torch.zeros(size, 4)
        works = [ranks.groups[1].recv([wide[:, column]], 0, column) for column in range(4)]
        for column in (3, 1, 0, 2):
            ranks.groups[0].send([torch.full((size,), float(column))], 1, column)
        for work in works:
            assert work.wait()
            assert work.source_rank() == 0
        assert torch.equal(wide, torch.arange(4.0).expand(size, 4))


def test_a_sender_may_change_its_tensor_when_the_send_has_ended(open_ranks: OpenRanks) -> None:
    """Small messages end before they are received."""
    with open_ranks(2) as ranks:
        tensor, received = torch.empty(SMALL), torch.empty(10, SMALL)
        for number in range(10):
            ranks.groups[0].send([tensor.fill_(float(number))], 1).wait()
        tensor.fill_(-1.0)
        for row in received:
            ranks.groups[1].recv([row], 0).wait()
        assert torch.equal(received, torch.arange(10.0).unsqueeze(1).expand(10, SMALL))


def test_many_posted_receives_do_not_stop_a_send(open_ranks: OpenRanks) -> None:
    """The peer sends only after it has heard from us; however many receives wait, that message must go out."""
    num_messages = 80
    with open_ranks(2) as ranks:
        first, second = ranks.groups
        tensors = [torch.empty(1) for _ in range(num_messages)]
        works = [first.recv([tensor], 1, tag) for tag, tensor in enumerate(tensors)]
        first.send([torch.ones(1)], 1, 0)
        second.recv([torch.empty(1)], 0, 0).wait()
        for tag in range(num_messages):
            second.send([torch.full((1,), float(tag))], 0, tag)
        for work in works:
            work.wait()
        assert [int(tensor) for tensor in tensors] == list(range(num_messages))


def test_both_sides_may_send_large_messages_at_once(open_ranks: OpenRanks) -> None:
    size = 500_000

    def body(group: ProcessGroup, rank: int) -> Tensor:
        received = torch.empty(size)
        sending = group.send([values_of(rank, size)], 1 - rank)
        group.recv([received], 1 - rank).wait()
        sending.wait()
        return received

    with open_ranks(2) as ranks:
        for rank, received in enumerate(ranks.play(body)):
            assert torch.equal(received, values_of(1 - rank, size))


def test_messages_and_collectives_do_not_mix(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> tuple[float, float]:
        passed, summed = torch.full((2,), 7.0 if rank == 0 else 0.0), torch.ones(2)
        work = group.send([passed], 1) if rank == 0 else group.recv([passed], 0)
        group.allreduce([summed]).wait()
        work.wait()
        return float(passed[1]), float(summed[1])

    with open_ranks(2) as ranks:
        assert ranks.play(body) == [(7.0, 2.0)] * 2


@sized
def test_a_receive_from_any_rank_takes_what_comes_and_says_from_whom(open_ranks: OpenRanks, size: int) -> None:
    """Two messages of every rank, for as many receives; of one rank, the first comes first."""
    num_ranks = 4
    with open_ranks(num_ranks) as ranks:
        receiver = ranks.groups[0]
        early, late = ([torch.empty(size) for _ in range(num_ranks - 1)] for _ in range(2))
        works = [receiver.recv_anysource([tensor], 3) for tensor in early]
        sent = [
            group.send([torch.full((size,), 10.0 * rank + number)], 0, 3)
            for number in range(2)
            for rank, group in enumerate(ranks.groups)
            if rank != 0
        ]
        works += [receiver.recv_anysource([tensor], 3) for tensor in late]
        assert all(work.wait() for work in [*works, *sent])
        received = [value_of(tensor) for tensor in [*early, *late]]
        assert sorted(received) == [10.0, 11.0, 20.0, 21.0, 30.0, 31.0]
        assert [work.source_rank() for work in works] == [int(value // 10) for value in received]


def test_receives_from_any_rank_and_from_one_share_its_messages(open_ranks: OpenRanks) -> None:
    with open_ranks(3) as ranks:
        tensors = [torch.empty(1) for _ in range(3)]
        named = ranks.groups[0].recv([tensors[0]], 2, 0)
        anyone = [ranks.groups[0].recv_anysource([tensor], 0) for tensor in tensors[1:]]
        for value, source in ((5.0, 1), (6.0, 2), (7.0, 2)):
            ranks.groups[source].send([torch.full((1,), value)], 0, 0).wait()
        assert all(work.wait() for work in [named, *anyone])
        assert float(tensors[0]) == 6.0
        assert sorted(float(tensor) for tensor in tensors[1:]) == [5.0, 7.0]


def test_a_receive_from_any_rank_waits_for_its_tag(open_ranks: OpenRanks) -> None:
    with open_ranks(2) as ranks:
        tensor, other = torch.zeros(1), torch.zeros(1)
        work = ranks.groups[0].recv_anysource([tensor], 1)
        ranks.groups[1].send([torch.ones(1)], 0, 2).wait()
        ranks.groups[0].recv([other], 1, 2).wait()
        assert not work.is_completed()
        ranks.groups[1].send([torch.full((1,), 2.0)], 0, 1).wait()
        work.wait()
        assert (float(tensor), float(other)) == (2.0, 1.0)


def test_many_receives_from_any_rank_under_many_senders_lose_nothing(open_ranks: OpenRanks) -> None:
    """Messages arrive on all streams while receives are posted by several threads."""
    num_messages, num_ranks = 40, 4

    def send_all(rank: int) -> None:
        for number in range(num_messages):
            size = LARGE if number % 8 == 0 else SMALL
            ranks.groups[rank].send([torch.full((size,), float(rank * 1000 + number))], 0, size).wait()

    def receive(size: int) -> float:
        tensor = torch.empty(size)
        ranks.groups[0].recv_anysource([tensor], size).wait()
        return value_of(tensor)

    sizes = [LARGE if number % 8 == 0 else SMALL for number in range(num_messages)] * (num_ranks - 1)
    with open_ranks(num_ranks) as ranks, ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(send_all, rank) for rank in range(1, num_ranks)]
        received = list(pool.map(receive, sizes))
        for future in sending:
            future.result()
    assert sorted(received) == [float(r * 1000 + n) for r in range(1, num_ranks) for n in range(num_messages)]


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (0, 3), (3, 0), (LARGE, 2), (2, LARGE), (LARGE, LARGE + 1)], ids=str)
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_message_of_another_size_is_refused(open_ranks: OpenRanks, sizes: tuple[int, int], is_late: bool) -> None:
    """Whether it is received before or after it is sent."""
    sent, expected = torch.ones(sizes[0]), torch.empty(sizes[1])
    with open_ranks(2) as ranks:
        if is_late:
            ranks.groups[0].send([sent], 1)
        work = ranks.groups[1].recv([expected], 0)
        if not is_late:
            ranks.groups[0].send([sent], 1)
        why = f"a message of {sent.nbytes} bytes arrived.* where {expected.nbytes} were expected"
        with pytest.raises(CommError, match=why):
            work.wait()


def test_a_message_of_another_size_from_any_rank_is_refused(open_ranks: OpenRanks) -> None:
    with open_ranks(2) as ranks:
        work = ranks.groups[1].recv_anysource([torch.empty(2)])
        ranks.groups[0].send([torch.ones(LARGE)], 1)
        with pytest.raises(CommError, match=f"a message of {4 * LARGE} bytes arrived.* where 8 were expected"):
            work.wait()


def test_messages_that_were_taken_are_deleted(open_ranks: OpenRanks) -> None:
    """Where messages are objects."""
    with open_ranks(2) as ranks:
        for number in range(70):
            ranks.groups[0].send([torch.full((1,), float(number))], 1).wait()
            ranks.groups[1].recv([torch.empty(1)], 0).wait()
        until(lambda: len(ranks.objects) < 10)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.data(), st.randoms(use_true_random=False))
def test_any_messages_arrive_in_order_however_sends_and_receives_are_posted(
    open_ranks: OpenRanks, data: st.DataObject, random: Random
) -> None:
    """Between two ranks and with one tag, the n-th message finds the n-th receive."""
    num_ranks = 3
    routes = data.draw(
        st.lists(
            st.tuples(st.sampled_from([(a, b) for a in range(3) for b in range(3) if a != b]), st.integers(0, 1)),
            min_size=1,
            max_size=30,
        )
    )
    sizes = [random.choice([0, 1, SMALL, LARGE]) for _ in routes]
    received = [torch.zeros(size) for size in sizes]
    orders = [random.sample(range(len(routes)), len(routes)) for _ in range(num_ranks)]

    def post(group: ProcessGroup, rank: int) -> None:
        works = []
        numbers = {key: [at for at, route in enumerate(routes) if route == key] for key in set(routes)}
        for at in orders[rank]:  # in any order, except that messages of one route stay in theirs
            (source, reader), tag = routes[at]
            if rank not in (source, reader):
                continue
            nth = numbers[routes[at]].pop(0)
            if rank == source:
                works.append(group.send([torch.full((sizes[nth],), float(nth))], reader, tag))
            else:
                works.append(group.recv([received[nth]], source, tag))
        for work in works:
            work.wait()

    with open_ranks(num_ranks) as ranks:
        ranks.play(post)
    for at, tensor in enumerate(received):
        assert torch.equal(tensor, torch.full((sizes[at],), float(at)))
