"""Every collective call of a process group, over every transport: the right numbers, the same on all ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributed as dist

from tests.contract.groups import OpenRanks, assert_same_bits, reducing, rooted, until, value_of, values_of
from zooid.comm import ProcessGroup
from zooid.schedule.grain_tree import Deal, TreeSum

NUM_RANKS = 3
SIZES = [7, 30_000]
"""What goes in one small message, and what is worth cutting up; over sockets, what is sent at once and what is not."""

pytestmark = pytest.mark.timeout(30)
sized = pytest.mark.parametrize("size", SIZES, ids=["small", "large"])


def total_of(size: int | list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """The sum of all ranks' values, in the order of ranks."""
    total = values_of(0, size, dtype)
    for rank in range(1, NUM_RANKS):
        total += values_of(rank, size, dtype)
    return total


@sized
@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_everyone_the_roots_tensor(open_ranks: OpenRanks, size: int, root: int) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = values_of(rank, [2, size]).t()
        group.broadcast([tensor], rooted(dist.BroadcastOptions, root)).wait()
        return tensor

    with open_ranks(NUM_RANKS) as ranks:
        for result in ranks.play(body):
            assert torch.equal(result, values_of(root, [2, size]).t())


@sized
@pytest.mark.parametrize("operation", ["SUM", "AVG", "MAX"])
def test_reduce_gives_the_root_what_everyone_has_and_leaves_the_others_alone(
    open_ranks: OpenRanks, size: int, operation: str
) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = values_of(rank, size)
        options = rooted(dist.ReduceOptions, 1, reduceOp=getattr(dist.ReduceOp, operation))
        group.reduce([tensor], options).wait()
        return tensor

    with open_ranks(NUM_RANKS) as ranks:
        results = ranks.play(body)
    stacked = torch.stack([values_of(rank, size) for rank in range(NUM_RANKS)])
    wanted = {"SUM": total_of(size), "AVG": total_of(size) / NUM_RANKS, "MAX": stacked.amax(0)}[operation]
    assert torch.equal(results[1], wanted)
    for rank in (0, 2):
        assert torch.equal(results[rank], values_of(rank, size))


@sized
def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(open_ranks: OpenRanks, size: int) -> None:
    """Parts may be of different sizes, and of any layout in memory."""

    def part_of(rank: int, owner: int) -> Tensor:
        return values_of(10 * rank + owner, [2, size + owner]).t()

    def body(group: ProcessGroup, rank: int) -> Tensor:
        output = torch.zeros(2, size + rank).t()
        group.reduce_scatter([output], [[part_of(rank, owner) for owner in range(NUM_RANKS)]]).wait()
        return output

    with open_ranks(NUM_RANKS) as ranks:
        for owner, output in enumerate(ranks.play(body)):
            assert torch.equal(output, part_of(0, owner) + part_of(1, owner) + part_of(2, owner))


@sized
@pytest.mark.parametrize("operation", ["SUM", "AVG"])
def test_reduce_scatter_cuts_a_tensor_into_parts(open_ranks: OpenRanks, size: int, operation: str) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        output = torch.zeros(size)
        group.reduce_scatter_single(output, values_of(rank, [NUM_RANKS, size]), reducing(operation)).wait()
        return output

    with open_ranks(NUM_RANKS) as ranks:
        total = total_of([NUM_RANKS, size]) / (NUM_RANKS if operation == "AVG" else 1)
        for rank, output in enumerate(ranks.play(body)):
            assert torch.equal(output, total[rank])


def test_several_reduce_scatters_can_be_one_call(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.zeros(size) for size in SIZES]
        inputs = [values_of(rank, NUM_RANKS * size) for size in SIZES]
        assert group.reduce_scatter_single_coalesced(outputs, inputs, reducing("SUM")).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        for rank, outputs in enumerate(ranks.play(body)):
            for size, output in zip(SIZES, outputs, strict=True):
                assert torch.equal(output, total_of(NUM_RANKS * size)[rank * size : (rank + 1) * size])


@pytest.mark.parametrize("shape", [(2, 2), (0,), (), (3, 9_000)], ids=["matrix", "empty", "scalar", "large"])
def test_all_gather_gives_everyones_tensor_to_everyone(open_ranks: OpenRanks, shape: tuple[int, ...]) -> None:
    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.empty(shape) for _ in range(NUM_RANKS)]
        group.allgather([outputs], [values_of(rank, shape)]).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        for outputs in ranks.play(body):
            for rank, output in enumerate(outputs):
                assert torch.equal(output, values_of(rank, shape))


def test_tensors_that_are_gathered_may_differ_in_size(open_ranks: OpenRanks) -> None:
    sizes = [30_000, 0, 5]

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.empty(2, size).t() for size in sizes]
        group.allgather([outputs], [values_of(rank, [sizes[rank], 2])]).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        for outputs in ranks.play(body):
            for rank, output in enumerate(outputs):
                assert torch.equal(output, values_of(rank, [sizes[rank], 2]))


@sized
def test_all_gather_fills_one_tensor_with_everyones(open_ranks: OpenRanks, size: int) -> None:
    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        output, coalesced = torch.empty(NUM_RANKS, size), [torch.empty(NUM_RANKS * n) for n in (size, 2)]
        group.all_gather_single(output, values_of(rank, size)).wait()
        group.all_gather_single_coalesced(coalesced, [values_of(rank, size), values_of(rank, 2)]).wait()
        return [output, *coalesced]

    everyones = torch.stack([values_of(rank, size) for rank in range(NUM_RANKS)])
    with open_ranks(NUM_RANKS) as ranks:
        for output, first, second in ranks.play(body):
            assert torch.equal(output, everyones)
            assert torch.equal(first, everyones.reshape(-1))
            assert torch.equal(second, torch.cat([values_of(rank, 2) for rank in range(NUM_RANKS)]))


def test_several_tensors_can_be_gathered_in_one_call(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> list[list[Tensor]]:
        outputs = [[torch.empty(size) for size in SIZES] for _ in range(NUM_RANKS)]
        group.allgather_coalesced(outputs, [values_of(rank, size) for size in SIZES]).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        for outputs in ranks.play(body):
            for rank, of_rank in enumerate(outputs):
                assert all(torch.equal(out, values_of(rank, size)) for out, size in zip(of_rank, SIZES, strict=True))


@sized
def test_gather_brings_everyones_tensor_to_the_root(open_ranks: OpenRanks, size: int) -> None:
    root = 1

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.zeros(2, size).t() for _ in range(NUM_RANKS)] if rank == root else []
        group.gather(
            [outputs] if outputs else [], [values_of(rank, [size, 2])], rooted(dist.GatherOptions, root)
        ).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        outputs = ranks.play(body)[root]
    for rank, output in enumerate(outputs):
        assert torch.equal(output, values_of(rank, [size, 2]))


@sized
def test_scatter_gives_each_rank_its_part_of_what_the_root_has(open_ranks: OpenRanks, size: int) -> None:
    root = 2

    def body(group: ProcessGroup, rank: int) -> Tensor:
        output = torch.zeros(2, size).t()
        inputs = [[values_of(owner, [size, 2]) for owner in range(NUM_RANKS)]] if rank == root else []
        group.scatter([output], inputs, rooted(dist.ScatterOptions, root)).wait()
        return output

    with open_ranks(NUM_RANKS) as ranks:
        for rank, output in enumerate(ranks.play(body)):
            assert torch.equal(output, values_of(rank, [size, 2]))


@sized
def test_all_to_all_gives_everyone_a_tensor_from_everyone(open_ranks: OpenRanks, size: int) -> None:
    def tensor_of(source: int, reader: int) -> Tensor:
        """Of a size that depends on both."""
        return values_of(NUM_RANKS * source + reader, size * (source + 1) + reader)

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.empty_like(tensor_of(source, rank)) for source in range(NUM_RANKS)]
        group.alltoall(outputs, [tensor_of(rank, reader) for reader in range(NUM_RANKS)]).wait()
        return outputs

    with open_ranks(NUM_RANKS) as ranks:
        for rank, outputs in enumerate(ranks.play(body)):
            assert all(torch.equal(output, tensor_of(source, rank)) for source, output in enumerate(outputs))


@pytest.mark.parametrize("width", [1, 9_000], ids=["small", "large"])
@pytest.mark.parametrize("splits", [[[0, 1, 2], [3, 0, 1], [1, 1, 1]], [[2, 2, 2]] * 3, []], ids=str)
def test_all_to_all_cuts_a_tensor_into_parts(open_ranks: OpenRanks, width: int, splits: list[list[int]]) -> None:
    """splits[i][j] rows go from rank i to rank j; without splits, as many to each."""
    rows = splits or [[2, 2, 2]] * 3

    def body(group: ProcessGroup, rank: int) -> Tensor:
        received = [row[rank] for row in rows]
        output = torch.empty(sum(received), width)
        sent = values_of(rank, [sum(rows[rank]), width])
        group.all_to_all_single(output, sent, received if splits else [], rows[rank] if splits else []).wait()
        return output

    with open_ranks(NUM_RANKS) as ranks:
        outputs = ranks.play(body)
    for rank, output in enumerate(outputs):
        parts = [torch.split(values_of(r, [sum(rows[r]), width]), rows[r])[rank] for r in range(NUM_RANKS)]
        assert torch.equal(output, torch.cat(parts))


def test_a_barrier_holds_until_everyone_has_come(open_ranks: OpenRanks) -> None:
    with open_ranks(NUM_RANKS) as ranks:
        early = [group.barrier() for group in ranks.groups[:2]]
        until(lambda: ranks.groups[1].counter.read().num_messages_received == 1)
        assert not any(work.is_completed() for work in early)
        ranks.groups[2].barrier().wait()
        assert all(work.wait() for work in early)


def test_calls_that_overlap_are_matched_in_call_order(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> list[float]:
        tensors = [
            torch.full((size,), float(10**call * (rank + 1))) for call, size in enumerate([3, 40_000, 3, 40_000])
        ]
        works = [group.allreduce([tensor]) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        return [value_of(tensor) for tensor in tensors]

    with open_ranks(NUM_RANKS) as ranks:
        assert ranks.play(body) == [[6.0, 60.0, 600.0, 6000.0]] * NUM_RANKS


def test_a_slow_reader_still_gets_every_broadcast(open_ranks: OpenRanks) -> None:
    """The root does not wait for its readers, so that it must not delete what they have yet to read."""
    num_calls = 100
    options = rooted(dist.BroadcastOptions, 0)
    with open_ranks(2) as ranks:
        root, reader = ranks.groups
        for call in range(num_calls):
            root.broadcast([torch.full((2,), float(call))], options).wait()
        tensors = [torch.full((2,), -1.0) for _ in range(num_calls)]
        for tensor in tensors:
            reader.broadcast([tensor], options).wait()
        assert [float(tensor[0]) for tensor in tensors] == [float(call) for call in range(num_calls)]


def test_calls_inside_a_coalescing_manager_end_together(open_ranks: OpenRanks) -> None:
    device = torch.device("cpu")

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        tensors = [values_of(rank, size) for size in SIZES]
        group._start_coalescing(device)
        group.allreduce([tensors[0]])
        group.broadcast([tensors[1]], rooted(dist.BroadcastOptions, 0))
        work = group._end_coalescing(device)
        assert work.wait()
        return tensors

    with open_ranks(NUM_RANKS) as ranks:
        for summed, told in ranks.play(body):
            assert torch.equal(summed, total_of(SIZES[0]))
            assert torch.equal(told, values_of(0, SIZES[1]))


Start = Callable[[ProcessGroup, Tensor], Any]
CALLS: dict[str, Start] = {
    "all_reduce": lambda group, tensor: group.allreduce([tensor]),
    "max": lambda group, tensor: group.allreduce([tensor], reducing("MAX")),
    "broadcast": lambda group, tensor: group.broadcast([tensor], rooted(dist.BroadcastOptions, 1)),
    "reduce": lambda group, tensor: group.reduce([tensor], rooted(dist.ReduceOptions, 2)),
    "gather": lambda group, tensor: group.all_gather_single(tensor, tensor[: len(tensor) // NUM_RANKS].clone()),
    "barrier": lambda group, tensor: group.barrier(),
}


def plain(name: str, tensors: list[Tensor]) -> list[Tensor]:
    """What the call makes of all ranks' tensors."""
    match name:
        case "all_reduce":
            return [tensors[0] + tensors[1] + tensors[2]] * NUM_RANKS
        case "max":
            return [torch.stack(tensors).amax(0)] * NUM_RANKS
        case "broadcast":
            return [tensors[1]] * NUM_RANKS
        case "reduce":
            return [*tensors[:2], tensors[0] + tensors[1] + tensors[2]]
        case "gather":
            return [torch.cat([tensor.view(NUM_RANKS, -1)[0] for tensor in tensors])] * NUM_RANKS
        case _:
            return tensors


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CALLS)),
            st.sampled_from([3, 30, 30_000, 150_000]),
            st.sampled_from([torch.float32, torch.int64, torch.bfloat16]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_any_calls_may_overlap_and_be_waited_for_in_any_order(
    open_ranks: OpenRanks, calls: list[tuple[str, int, torch.dtype]], random: Any
) -> None:
    orders = [random.sample(range(len(calls)), len(calls)) for _ in range(NUM_RANKS)]

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        tensors = [values_of(rank, size, dtype) for _, size, dtype in calls]
        works = [CALLS[name](group, tensor) for (name, _, _), tensor in zip(calls, tensors, strict=True)]
        for at in orders[rank]:
            works[at].wait()
        return tensors

    with open_ranks(NUM_RANKS) as ranks:
        results = ranks.play(body)
    for at, (name, size, dtype) in enumerate(calls):
        wanted = plain(name, [values_of(rank, size, dtype) for rank in range(NUM_RANKS)])
        for rank in range(NUM_RANKS):
            assert torch.equal(results[rank][at], wanted[rank]), f"call {at}, {name}, on rank {rank}"


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@pytest.mark.parametrize("num_elements", [0, 1, 3, 40_001])
def test_all_reduce_works_for_any_number_of_ranks_and_elements(
    open_ranks: OpenRanks, num_ranks: int, num_elements: int
) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = torch.full((num_elements,), float(rank + 1))
        group.allreduce([tensor]).wait()
        return tensor

    with open_ranks(num_ranks) as ranks:
        results = ranks.play(body)
    assert_same_bits(results)
    assert torch.equal(results[0], torch.full((num_elements,), num_ranks * (num_ranks + 1) / 2))


@pytest.mark.parametrize("side", [4, 200], ids=["small", "large"])
def test_a_tensor_that_is_not_contiguous_is_reduced_in_place(open_ranks: OpenRanks, side: int) -> None:
    def body(group: ProcessGroup, rank: int) -> tuple[Tensor, Tensor]:
        whole = torch.arange(2.0 * side * side).view(side, 2 * side) * (rank + 1)
        tensor = whole[:, ::2].t()
        group.allreduce([tensor]).wait()
        return tensor, whole[:, 1::2]

    with open_ranks(2) as ranks:
        results = ranks.play(body)
    before = torch.arange(2.0 * side * side).view(side, 2 * side)
    for rank, (tensor, neighbours) in enumerate(results):
        assert torch.equal(tensor, before[:, ::2].t() * 3)
        assert torch.equal(neighbours, before[:, 1::2] * (rank + 1)), "what lies between was not touched"


DEALS = {
    "one node each": ((0, 1), (2, 3), (4, 5)),
    "mixed": ((1, 4), (0, 3, 5), (2,)),
    "one without grains": ((0, 1), (), (2,)),
    "one has all": ((0, 1, 2), (), ()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deal", [*map(Deal, DEALS.values())], ids=list(DEALS))
def test_a_sum_along_the_tree_has_the_same_bits_whoever_has_which_grain(
    open_ranks: OpenRanks, deal: Deal, dtype: torch.dtype
) -> None:
    def node_sums(grains: tuple[int, ...]) -> list[Tensor]:
        tree = TreeSum(deal.num_grains, torch.Tensor.add_)
        for grain in grains:
            tree.put_grain(grain, values_of(grain, NUM_RANKS * 1000, dtype))
        return [values for _, values in tree.in_order()]

    def body(group: ProcessGroup, rank: int) -> Tensor:
        own = [values.view(NUM_RANKS, 1000) for values in node_sums(deal.grains[rank])]
        nodes = torch.stack(own, dim=1) if own else torch.zeros(NUM_RANKS, 0, 1000, dtype=dtype)
        is_in_place = len(own) == 1
        sums = nodes.view(-1) if is_in_place else torch.zeros(NUM_RANKS * 1000, dtype=dtype)
        group.tree_reduce(sums, nodes, deal).wait()
        return sums

    (wanted,) = node_sums(tuple(range(deal.num_grains)))
    with open_ranks(NUM_RANKS) as ranks:
        assert_same_bits([wanted, *ranks.play(body)])
