"""Gradients of replicas become one: in order, as early as possible, and None where no loss reached a parameter."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zooid
from tests.contract.groups import Opener, Ranks
from zooid.schedule.buckets import LEAST_BUCKET_BYTES
from zooid.worker.gradients.bucket_gradients import BucketGradients, ReplicaReduction
from zooid.worker.gradients.tied_gradients import TiedParameters, TiedSum
from zooid.worker.state.training_state import TrainedStage, TrainingState

pytestmark = pytest.mark.timeout(30)

WIDTH = 4
NUM_LAYERS = 4


class Reached(nn.Module):
    """Parameters of two types: used always, by nobody, and where the input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.single = nn.Parameter(torch.linspace(-1, 1, 6).view(3, 2))
        self.unused = nn.Parameter(torch.ones(5))
        self.precise = nn.Parameter(torch.linspace(0.5, 0.9, 2, dtype=torch.float64))
        self.sometimes = nn.Parameter(torch.linspace(0.3, 0.7, 2))

    def forward(self, x: Tensor, *, whole: bool) -> Tensor:
        h = x @ self.single
        return ((h * self.sometimes if whole else h) * self.precise).square().sum()


class Chain(nn.Module):
    """Layers that tell when the backward comes to them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
        self._tell = tell

    def forward(self, x: Tensor, *, without: Sequence[int] = ()) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(x if number in without else layer(x))
            if x.requires_grad:
                x.register_hook(lambda _, number=number: self._tell(f"backward {number}"))  # type: ignore[no-untyped-call]
        return x.square().sum()

    @property
    def completed(self) -> list[nn.Parameter]:
        """As a backward completes them."""
        return list(self.parameters())[::-1]


class Calls:
    """In the place of a group: notes what is reduced, in order, and what else happens."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.reduced: list[Tensor] = []

    def allreduce(self, tensors: list[Tensor]) -> "Calls":
        [tensor] = tensors
        self.noted.append("reduce")
        self.reduced.append(tensor.clone())
        return self

    def wait(self) -> None:
        """What is noted has ended."""


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter is worth a message."""
    for is_direct in LEAST_BUCKET_BYTES:
        monkeypatch.setitem(LEAST_BUCKET_BYTES, is_direct, 1)


@pytest.fixture
def calls(small_buckets: None) -> Calls:
    return Calls()


@pytest.fixture(params=["memory", "tcp"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    with Opener(request.param, tmp_path)(2) as opened:
        yield opened


def reduced_over(group: Any, **changed: Any) -> ReplicaReduction:
    return ReplicaReduction(group=group, **changed)


def finish(gradients: BucketGradients, changes: Sequence[Tensor] = ()) -> list[Tensor | None]:
    """What the REDUCE actions and their ends do."""
    for number in range(gradients.num_buckets):
        for work in gradients.reduce(number, lambda: changes):
            work.wait()
    return gradients.held()


class TestTwoReplicas:
    """Each a thread with its own samples, connected by a real group."""

    def test_hold_the_same_sums(self, ranks: Ranks, small_buckets: None) -> None:
        """Only the second one's loss reaches a third parameter; nobody's reaches the fourth."""

        def replica(group: Any, rank: int) -> tuple[list[Tensor | None], list[Tensor]]:
            model = Reached()
            statistics = [torch.zeros(2), torch.zeros(3, dtype=torch.float64)]
            gradients = BucketGradients(list(model.parameters()), statistics, reduced_over(group))
            assert gradients.num_buckets == 4
            gradients.begin()
            for grain in range(2):
                if grain == 1:
                    gradients.begin_last_backward()
                model(inputs(rank, grain), whole=rank == 1).backward()
            held = finish(gradients, [torch.full((2,), rank + 1.0), torch.full((3,), 0.5, dtype=torch.float64)])
            assert all(parameter.grad is None for parameter in model.parameters()), "one copy is enough"
            return held, gradients.statistics()

        def inputs(rank: int, grain: int) -> Tensor:
            return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * rank + grain))

        (held, statistics), (other, _) = ranks.play(replica)
        plain = Reached()
        for rank in (0, 1):
            for grain in (0, 1):
                plain(inputs(rank, grain), whole=rank == 1).backward()
        for (name, parameter), own, same in zip(plain.named_parameters(), held, other, strict=True):
            if name == "unused":
                assert own is None
                assert same is None
                continue
            assert own is not None
            assert same is not None
            assert parameter.grad is not None
            assert own.dtype == parameter.dtype
            torch.testing.assert_close(own, parameter.grad)
            assert torch.equal(own, same), "bit for bit, or replicas would drift apart"
        assert torch.equal(statistics[0], torch.full((2,), 3.0))
        assert torch.equal(statistics[1], torch.full((3,), 1.0, dtype=torch.float64))

    def test_one_without_samples_takes_part(self, ranks: Ranks) -> None:
        """As in the short last step of an epoch."""

        def replica(group: Any, rank: int) -> list[Tensor | None]:
            model = Reached()
            gradients = BucketGradients(list(model.parameters()), [], reduced_over(group))
            gradients.begin()
            if rank == 0:
                gradients.begin_last_backward()
                model(torch.ones(1, 3), whole=True).backward()
            return finish(gradients)

        plain = Reached()
        plain(torch.ones(1, 3), whole=True).backward()
        for held in ranks.play(replica):
            for parameter, own in zip(plain.parameters(), held, strict=True):
                if parameter.grad is None:
                    assert own is None
                else:
                    assert own is not None
                    assert torch.equal(own, parameter.grad)

    def test_take_the_mean_of_statistics_and_a_drop_takes_them_back(self, ranks: Ranks) -> None:
        job = zooid.Job(
            model=nn.Module,
            loss=None,
            data=list,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            batch_size=1,
            epochs=1,
        )

        def norm() -> nn.Module:
            return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()

        def inputs(grain: int) -> Tensor:
            return torch.randn(6, 3, generator=torch.Generator().manual_seed(grain), dtype=torch.float64)

        def run_grain(state: TrainingState, module: nn.Module, number: int) -> None:
            state.begin_grain()
            output = module(inputs(number))
            state.end_grain(number)
            output.sum().backward()

        def replica(group: Any, rank: int) -> tuple[Tensor, Tensor]:
            module = norm()
            module.load_state_dict(initial)
            names = tuple(name for name, _ in module.named_parameters())[::-1]
            stage = TrainedStage(module, names, frozenset(module.state_dict()))
            state = TrainingState(stage, job, reduction=reduced_over(group))
            state.begin([(0,), (1,)])
            run_grain(state, module, 5)
            state.drop()
            assert all(torch.equal(value, initial[name]) for name, value in module.state_dict().items())
            state.begin([(0,), (1,)])
            state.begin_backward(rank, is_last=True)
            run_grain(state, module, rank)
            for number in range(state.num_buckets):
                for work in state.reduce(number, torch.zeros(2, 2, dtype=torch.float64)):
                    work.wait()
            assert float(state.square_sum()) > 0
            state.apply(1.0)
            found = module.state_dict()
            assert int(found["1.num_batches_tracked"]) == 2, "counts are added up"
            return found["1.running_mean"], found["1.running_var"]

        initial = {name: value.clone() for name, value in norm().state_dict().items()}
        expected = []
        for rank in (0, 1):
            alone = norm()
            alone.load_state_dict(initial)
            alone(inputs(rank))
            expected.append((alone.state_dict()["1.running_mean"], alone.state_dict()["1.running_var"]))
        for found in ranks.play(replica):
            for number in (0, 1):
                torch.testing.assert_close(found[number], (expected[0][number] + expected[1][number]) / 2)


class TestEarlyStart:
    """A bucket for every layer of a chain, and a group that only notes."""

    def test_a_bucket_goes_when_the_last_backward_has_completed_it(self, calls: Calls) -> None:
        """All but the last, which waits for the statistics."""
        chain = Chain(calls.noted.append)
        gradients = BucketGradients(chain.completed, [], reduced_over(calls))
        assert gradients.num_buckets == NUM_LAYERS
        gradients.begin()
        x = torch.randn(3, WIDTH)
        chain(x).backward()
        assert "reduce" not in calls.noted, "a gradient that is still to be added to is not complete"
        calls.noted.clear()
        gradients.begin_last_backward()
        chain(x).backward()
        assert calls.noted == [
            "backward 3", "reduce", "backward 2", "reduce", "backward 1", "reduce", "backward 0",
        ]  # fmt: skip
        finish(gradients)
        assert len(calls.reduced) == NUM_LAYERS
        plain = Chain(lambda _: None)
        (2 * plain(x)).backward()
        for parameter, flat in zip(plain.completed, calls.reduced, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(flat[:-1].view(WIDTH, WIDTH), parameter.grad, msg="of all grains")
            assert float(flat[-1]) == 1

    def test_nothing_goes_early_where_others_wait_for_the_links(self, calls: Calls) -> None:
        chain = Chain(calls.noted.append)
        gradients = BucketGradients(chain.completed, [], reduced_over(calls, is_early=False))
        gradients.begin()
        gradients.begin_last_backward()
        chain(torch.randn(3, WIDTH)).backward()
        assert "reduce" not in calls.noted
        finish(gradients)
        assert calls.noted.count("reduce") == NUM_LAYERS

    def test_buckets_go_in_order_even_if_one_is_never_completed(self, calls: Calls) -> None:
        """Another replica's loss may reach what this one's does not; all must make the same calls."""
        chain = Chain(calls.noted.append)
        gradients = BucketGradients(chain.completed, [], reduced_over(calls))
        gradients.begin()
        gradients.begin_last_backward()
        chain(torch.randn(3, WIDTH), without=[2]).backward()
        assert calls.noted == ["backward 3", "reduce", "backward 2", "backward 1", "backward 0"]
        held = finish(gradients)
        assert calls.noted.count("reduce") == NUM_LAYERS
        assert [own is not None for own in held] == [True, False, True, True]

    def test_a_step_that_was_dropped_leaves_nothing_to_the_next(self, calls: Calls) -> None:
        chain = Chain(lambda _: None)
        gradients = BucketGradients(chain.completed, [], reduced_over(calls))
        x = torch.randn(3, WIDTH)
        for _ in range(2):
            gradients.begin()
            gradients.begin_last_backward()
            chain(x).backward()
        held = finish(gradients)
        plain = Chain(lambda _: None)
        plain(x).backward()
        for parameter, own in zip(plain.completed, held, strict=True):
            assert own is not None
            assert parameter.grad is not None
            assert torch.equal(own, parameter.grad)


def test_a_single_replica_reduces_and_copies_nothing(calls: Calls) -> None:
    chain = Chain(lambda _: None)
    gradients = BucketGradients(chain.completed, [], ReplicaReduction())
    gradients.begin()
    gradients.begin_last_backward()
    chain(torch.randn(3, WIDTH), without=[2]).backward()
    held = finish(gradients)
    assert calls.noted == []
    assert all(own is parameter.grad for own, parameter in zip(held, chain.completed, strict=True))
    assert [own is not None for own in held] == [True, False, True, True]


class TestTreeOverGrains:
    """Sums that follow the tree over grains: one replica and two of them hold the same bits."""

    NUM_GRAINS = 7

    @staticmethod
    def run_grains(state: TrainingState, module: Reached, grains: Sequence[int], *, is_end: bool = True) -> None:
        for grain in grains:
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(grain)) * 10.0 ** (grain % 4)
            state.begin_grain()
            loss = module(x, whole=grain in (1, 5))
            state.end_grain(grain)
            state.begin_backward(grain, is_last=is_end and grain == grains[-1])
            loss.backward()
            state.end_backward(grain)

    @staticmethod
    def state_of(module: nn.Module, reduction: ReplicaReduction) -> TrainingState:
        names = tuple(name for name, _ in module.named_parameters())[::-1]
        job = zooid.Job(
            model=nn.Module,
            loss=None,
            data=list,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            batch_size=1,
            epochs=1,
        )
        return TrainingState(TrainedStage(module, names, frozenset()), job, reduction=reduction)

    def bits(self, state: TrainingState) -> list[bytes | None]:
        """What is held after a reduce, flags left out."""
        for number in range(state.num_buckets):
            for work in state.reduce(number, torch.zeros(self.NUM_GRAINS, 2, dtype=torch.float64)):
                work.wait()
        norm = float(state.square_sum())
        flags, *parts = state.held_parts()
        assert flags.tolist() == [1.0, 1.0, 0.0, 1.0], "nobody's loss reaches the third"
        return [*(part.numpy().tobytes() for part in parts), repr(norm).encode()]

    def alone(self) -> list[bytes | None]:
        module = Reached()
        state = self.state_of(module, ReplicaReduction(num_grains=self.NUM_GRAINS, is_reproducible=True))
        state.begin([range(self.NUM_GRAINS)])
        self.run_grains(state, module, range(self.NUM_GRAINS))
        return self.bits(state)

    def begun(self, group: Any, rank: int, deal: Sequence[Sequence[int]]) -> tuple[Reached, TrainingState]:
        """One of two replicas that has computed its own grains, and reduced nothing yet."""
        module = Reached()
        state = self.state_of(module, ReplicaReduction(group, rank, num_grains=self.NUM_GRAINS, is_reproducible=True))
        state.begin(deal)
        self.run_grains(state, module, deal[rank])
        return module, state

    @pytest.mark.parametrize("deal", [((0, 1, 2, 3), (4, 5, 6)), ((6, 1, 3), (0, 5, 2, 4)), (range(7), ())], ids=str)
    def test_any_deal_gives_the_same_bits(
        self, ranks: Ranks, small_buckets: None, deal: Sequence[Sequence[int]]
    ) -> None:
        def replica(group: Any, rank: int) -> list[bytes | None]:
            _, state = self.begun(group, rank, deal)
            return self.bits(state)

        assert ranks.play(replica) == [self.alone()] * 2

    def test_a_survivor_keeps_its_sums_and_reduces_again(self, ranks: Ranks, small_buckets: None) -> None:
        """After a reduce of both, the first one takes over the grains of the other and ends the step by itself."""
        deal = ((0, 1, 4), (2, 3, 5, 6))

        def replica(group: Any, rank: int) -> list[bytes | None]:
            module, state = self.begun(group, rank, deal)
            self.bits(state)
            if rank == 1:
                return []
            state.regroup(ReplicaReduction(num_grains=self.NUM_GRAINS, is_reproducible=True))
            self.run_grains(state, module, deal[1])
            state._held = {}  # what was reduced with the lost replica does not count
            return self.bits(state)

        assert ranks.play(replica)[0] == self.alone()


def test_three_stages_add_up_what_they_share_in_their_order(tmp_path: Path) -> None:
    """An all-reduce around a ring would begin each part elsewhere."""
    found = [torch.randn(999, generator=torch.Generator().manual_seed(n)) * 10.0**n for n in range(3)]
    expected = (found[0] + found[1]) + found[2]
    assert not torch.equal(expected, (found[1] + found[2]) + found[0])

    def stage(group: Any, rank: int) -> Tensor | None:
        own = found[rank].clone()
        held: dict[str, Tensor | None] = {"shared": own}
        sharing = TiedSum(
            TiedParameters(("shared",), group, counts_here=rank == 0),
            held,
            [("shared", nn.Parameter(own))],
            in_order=True,
        )
        for work in sharing.works:
            work.wait()
        sharing.finish()
        assert torch.equal(own, found[rank]), "the own sum is kept"
        return held["shared"]

    with Opener("tcp", tmp_path)(3) as opened:
        for total in opened.play(stage):
            assert total is not None
            assert torch.equal(total, expected)
