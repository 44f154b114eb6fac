"""All-reduce over every transport: each operation on each type, each algorithm, each codec."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.contract.groups import OpenRanks, Ranks, assert_same_bits, reducing, values_of
from zooid.comm import Options, ProcessGroup
from zooid.core.errors import CommError
from zooid.core.plans.codec_sizes import CodecName, wire_bytes
from zooid.core.plans.plan import AllReduceName
from zooid.core.runs.store_rules import TRAILER_BYTES
from zooid.schedule.all_reduce_choice import EXCHANGE_MAX_BYTES, AllReduceChoice, choose_all_reduce
from zooid.schedule.site_hierarchy import hierarchical
from zooid.schedule.transfer_lists import TransferList

pytestmark = pytest.mark.timeout(30)

NUM_RANKS = 3
ORDERED = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
BITWISE = ("BAND", "BOR", "BXOR")
OPERATIONS: dict[torch.dtype, tuple[str, ...]] = {
    torch.float32: ORDERED,
    torch.float64: ORDERED,
    torch.bfloat16: ORDERED,
    torch.float16: ORDERED,
    torch.complex64: ("SUM", "AVG", "PRODUCT"),
    torch.complex128: ("SUM", "AVG", "PRODUCT"),
    torch.uint8: ("SUM", "MIN", "MAX", "PRODUCT", *BITWISE),
    torch.int32: ("SUM", "MIN", "MAX", "PRODUCT", *BITWISE),
    torch.int64: ("SUM", "MIN", "MAX", "PRODUCT", *BITWISE),
    torch.bool: ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"),
}
PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
ALGORITHMS: tuple[AllReduceName, ...] = ("auto", "exchange", "three_phase", "pipelined", "streaming", "ring")
CODECS: tuple[CodecName, ...] = ("fp16", "bf16", "int8")


def options_of(open_ranks: OpenRanks, all_reduce: AllReduceName = "auto", codec: CodecName = "none") -> Options:
    return Options(transport="tcp" if open_ranks.kind == "tcp" else "store", all_reduce=all_reduce, codec=codec)


def in_rank_order(tensors: list[Tensor], operation: str) -> Tensor:
    """What one process computes, in the very type of the tensors."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = PLAIN[operation](total, tensor)
    return total / len(tensors) if operation == "AVG" else total


@pytest.mark.parametrize(("num_ranks", "size"), [(2, "small"), (3, "small"), (3, "large")])
@pytest.mark.parametrize("dtype", OPERATIONS, ids=str)
def test_every_operation_gives_the_numbers_of_one_process(
    open_ranks: OpenRanks, dtype: torch.dtype, num_ranks: int, size: str
) -> None:
    num_elements = 17 if size == "small" else EXCHANGE_MAX_BYTES // dtype.itemsize + 5

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        tensors = [values_of(rank, num_elements, dtype) for _ in OPERATIONS[dtype]]
        pairs = zip(OPERATIONS[dtype], tensors, strict=True)
        works = [group.allreduce([tensor], reducing(operation)) for operation, tensor in pairs]
        assert all(work.wait() for work in works)
        return tensors

    with open_ranks(num_ranks, options=options_of(open_ranks, "streaming")) as ranks:
        results = ranks.play(body)
    before = [values_of(rank, num_elements, dtype) for rank in range(num_ranks)]
    for at, operation in enumerate(OPERATIONS[dtype]):
        assert_same_bits([of_rank[at] for of_rank in results])
        wanted = in_rank_order(before, operation)
        if dtype.is_complex and operation == "PRODUCT":  # torch rounds it by where in a tensor a number stands
            torch.testing.assert_close(results[0][at], wanted)
        else:
            assert torch.equal(results[0][at], wanted), operation


@pytest.mark.parametrize(
    ("operation", "dtype", "why"),
    [
        ("AVG", torch.int64, "torch.int64 cannot be averaged; reduce with SUM"),
        ("AVG", torch.bool, "torch.bool cannot be averaged"),
        ("BAND", torch.float32, "torch.float32 has no bitwise reductions; those are for integers and booleans"),
        ("BXOR", torch.complex64, "torch.complex64 has no bitwise reductions"),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_the_group_goes_on(
    open_ranks: OpenRanks, operation: str, dtype: torch.dtype, why: str
) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        with pytest.raises(CommError, match=why):
            group.allreduce([torch.ones(3, dtype=dtype)], reducing(operation))
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        return tensor

    with open_ranks(2) as ranks:
        assert [result.tolist() for result in ranks.play(body)] == [[2.0] * 3] * 2


def test_several_tensors_are_reduced_in_one_call(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        tensors = [values_of(rank, [4, 3]).t(), values_of(rank, 30_000), values_of(rank, 0)]
        group.allreduce_coalesced(tensors, reducing("SUM")).wait()
        return tensors

    with open_ranks(NUM_RANKS, options=options_of(open_ranks, "streaming")) as ranks:
        results = ranks.play(body)
    for at, shape in enumerate(([4, 3], 30_000, 0)):
        wanted = in_rank_order([values_of(rank, shape) for rank in range(NUM_RANKS)], "SUM")  # type: ignore[arg-type]
        assert all(torch.equal(of_rank[at], wanted.t() if at == 0 else wanted) for of_rank in results)


def test_sparse_tensors_are_summed(open_ranks: OpenRanks) -> None:
    def tensor_of(rank: int) -> Tensor:
        indices = torch.tensor([[0, rank, rank]])
        return torch.sparse_coo_tensor(indices, values_of(rank, [3, 2]), (NUM_RANKS, 2), check_invariants=True)

    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = tensor_of(rank)
        group.allreduce([tensor]).wait()
        return tensor.to_dense()

    with open_ranks(NUM_RANKS) as ranks:
        results = ranks.play(body)
    assert_same_bits(results)
    wanted = torch.stack([tensor_of(rank).to_dense() for rank in range(NUM_RANKS)]).sum(0)
    torch.testing.assert_close(results[0], wanted)


def bytes_of(
    transfers: TransferList, rank: int, codec: CodecName, element_bytes: int, is_store: bool
) -> tuple[int, int]:
    """Messages and bytes that a rank sends: an object once for all readers, a message over sockets to each."""
    own = [transfer for transfer in transfers if transfer.source == rank]
    copies = [1 if is_store else len(transfer.readers) for transfer in own]
    sizes = [wire_bytes(codec, each.num_elements, element_bytes) + (TRAILER_BYTES if is_store else 0) for each in own]
    return sum(copies), sum(count * size for count, size in zip(copies, sizes, strict=True))


def assert_sent(ranks: Ranks, transfers: TransferList, codec: CodecName = "none", element_bytes: int = 4) -> None:
    """Every rank has sent what the list says, to the byte."""
    for rank, group in enumerate(ranks.groups):
        counted = group.counter.read()
        wanted = bytes_of(transfers, rank, codec, element_bytes, ranks.store is not None)
        assert (counted.num_messages_sent, counted.sent_bytes) == wanted


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_gives_the_sum_for_exactly_its_messages(
    open_ranks: OpenRanks, algorithm: AllReduceName, num_ranks: int
) -> None:
    num_elements = 200_001  # large, and one chunk for each rank

    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = values_of(rank, num_elements)
        group.allreduce([tensor]).wait()
        return tensor

    with open_ranks(num_ranks, options=options_of(open_ranks, algorithm)) as ranks:
        results = ranks.play(body)
        if algorithm == "auto" and open_ranks.kind == "tcp":
            algorithm = "exchange" if num_ranks == 2 else "ring"
        assert_sent(ranks, choose_all_reduce(num_elements, 4, num_ranks, algorithm))
    assert_same_bits(results)
    wanted = in_rank_order([values_of(rank, num_elements) for rank in range(num_ranks)], "SUM")
    if algorithm == "ring":  # it adds up each part from another rank on
        torch.testing.assert_close(results[0], wanted)
    else:
        assert torch.equal(results[0], wanted)


@pytest.mark.parametrize("algorithm", ["auto", "streaming", "ring"])
def test_parts_may_be_cut_into_chunks(open_ranks: OpenRanks, algorithm: AllReduceName) -> None:
    num_elements = 6_000_001

    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = torch.arange(rank, rank + num_elements, dtype=torch.int32)
        group.allreduce([tensor]).wait()
        return tensor

    with open_ranks(2, options=options_of(open_ranks, algorithm)) as ranks:
        for result in ranks.play(body):
            assert torch.equal(result, 2 * torch.arange(num_elements, dtype=torch.int32) + 1)
        assert all(group.counter.read().num_messages_sent > 2 for group in ranks.groups)


@pytest.mark.parametrize("sites", ["aabb", "abcba"])
def test_a_list_by_site_gives_the_sum_for_exactly_its_messages(
    open_ranks: OpenRanks, sites: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_elements = 200_001
    transfers = hierarchical(num_elements, sites, 3)
    monkeypatch.setattr(AllReduceChoice, "transfers", lambda *_, **__: transfers)

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        floats, numbers = values_of(rank, num_elements), torch.arange(rank, rank + num_elements, dtype=torch.int32)
        group.allreduce([floats]).wait()
        group.allreduce([numbers]).wait()
        return [floats, numbers]

    with open_ranks(len(sites), options=options_of(open_ranks)) as ranks:
        results = ranks.play(body)
        assert_sent(ranks, (*transfers, *transfers))
    assert_same_bits([floats for floats, _ in results])
    wanted = in_rank_order([values_of(rank, num_elements) for rank in range(len(sites))], "SUM")
    torch.testing.assert_close(results[0][0], wanted)
    first = len(sites) * torch.arange(num_elements, dtype=torch.int32)
    for _, numbers in results:
        assert torch.equal(numbers, first + sum(range(len(sites))))


def loss_of(codec: CodecName, values: Tensor) -> float:
    """The most that one encoding takes from any of these values."""
    largest = values.abs().max().item() * (1 + 1e-5)
    return largest * {"fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 0.5 / 127, "none": 0.0}[codec]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", ["exchange", "streaming", "pipelined", "ring"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_loses_little_and_sends_the_bytes_it_says(
    open_ranks: OpenRanks, codec: CodecName, algorithm: AllReduceName, dtype: torch.dtype
) -> None:
    num_elements = 40_003

    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = values_of(rank, num_elements, dtype)
        group.allreduce([tensor], reducing("AVG")).wait()
        return tensor

    with open_ranks(NUM_RANKS, options=options_of(open_ranks, algorithm, codec)) as ranks:
        results = ranks.play(body)
        listed: AllReduceName = (
            "streaming" if algorithm == "ring" else algorithm
        )  # around a ring, every hop would lose digits
        transfers = choose_all_reduce(num_elements, dtype.itemsize, NUM_RANKS, listed)
        assert_sent(ranks, transfers, codec, dtype.itemsize)
    assert_same_bits(results)
    before = [values_of(rank, num_elements, dtype).double() for rank in range(NUM_RANKS)]
    exact = torch.stack(before).sum(0)
    bound = sum(loss_of(codec, values) for values in before) + loss_of(codec, exact)
    lost = (results[0].double() * NUM_RANKS - exact).abs().max().item()
    assert bound / 100 < lost <= bound


def test_what_eight_bits_lose_comes_with_later_calls(open_ranks: OpenRanks) -> None:
    """Error feedback: the mean of many all-reduces of the same values goes to the exact one; two tensors of one size
    are kept apart, even if one is a million times the other."""
    num_calls, scales = 40, (1.0, 1e6)

    def body(group: ProcessGroup, rank: int) -> list[list[Tensor]]:
        before = [values_of(rank, 3000) * scale for scale in scales]
        tensors = [torch.empty(3000) for _ in scales]
        results: list[list[Tensor]] = [[] for _ in scales]
        for _ in range(num_calls):
            for tensor, values, kept in zip(tensors, before, results, strict=True):
                tensor.copy_(values)
                group.allreduce([tensor]).wait()
                kept.append(tensor.double())
        return results

    with open_ranks(NUM_RANKS, options=options_of(open_ranks, codec="int8")) as ranks:
        results = ranks.play(body)
    for at, scale in enumerate(scales):
        exact = torch.stack([(values_of(rank, 3000) * scale).double() for rank in range(NUM_RANKS)]).sum(0)
        first = (results[0][at][0] - exact).abs().max()
        mean = (torch.stack(results[0][at]).mean(0) - exact).abs().max()
        assert 0 < first < scale * 0.05
        assert mean < first * 3 / num_calls


def test_one_value_that_is_not_finite_does_not_spoil_later_calls(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> tuple[bool, bool]:
        tensor = torch.ones(2000)
        tensor[rank] = float("inf")
        group.allreduce([tensor]).wait()
        is_noticed = not bool(tensor.isfinite().all())
        tensor.fill_(1.0)
        group.allreduce([tensor]).wait()
        return is_noticed, bool(tensor.isfinite().all())

    with open_ranks(2, options=options_of(open_ranks, codec="int8")) as ranks:
        assert ranks.play(body) == [(True, True)] * 2


@pytest.mark.parametrize("codec", CODECS)
def test_numbers_that_deserve_their_digits_are_not_encoded(open_ranks: OpenRanks, codec: CodecName) -> None:
    """Few of them, whole numbers, and what is not a sum."""

    def tensors_of(rank: int) -> list[Tensor]:
        return [values_of(rank, 1000), values_of(rank, 3000, torch.int64) * 1_000_003, values_of(rank, 3000)]

    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        tensors = tensors_of(rank)
        for tensor, operation in zip(tensors, ("SUM", "SUM", "MAX"), strict=True):
            group.allreduce([tensor], reducing(operation)).wait()
        return tensors

    with open_ranks(2, options=options_of(open_ranks, codec=codec)) as ranks:
        results = ranks.play(body)
    pairs = list(zip(tensors_of(0), tensors_of(1), strict=True))
    for few, whole, largest in results:
        assert torch.equal(few, pairs[0][0] + pairs[0][1])
        assert torch.equal(whole, pairs[1][0] + pairs[1][1])
        assert torch.equal(largest, torch.maximum(*pairs[2]))
