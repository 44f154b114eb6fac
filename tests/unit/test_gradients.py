"""Gradients of replicas become one: in order, as early as possible, and None where no loss reached a parameter."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

import zooid
from tests.contract.groups import Opener, Ranks
from zooid.schedule.buckets import LEAST_BUCKET_BYTES
from zooid.worker.gradients import Gradients, Reducing
from zooid.worker.state import Trainee, TrainingState

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

    def all_reduce(self, tensor: Tensor, *, group: object, async_op: bool) -> None:
        assert group is self
        assert async_op
        self.noted.append("reduce")
        self.reduced.append(tensor.clone())


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter is worth a message."""
    for is_direct in LEAST_BUCKET_BYTES:
        monkeypatch.setitem(LEAST_BUCKET_BYTES, is_direct, 1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, small_buckets: None) -> Calls:
    noted = Calls()
    monkeypatch.setattr(dist, "all_reduce", noted.all_reduce)
    return noted


@pytest.fixture(params=["memory", "tcp"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    with Opener(request.param, tmp_path)(2) as opened:
        yield opened


def reduced_over(group: Any, **changed: Any) -> Reducing:
    return Reducing(group=group, **changed)


def finish(gradients: Gradients, changes: Sequence[Tensor] = ()) -> list[Tensor | None]:
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
            gradients = Gradients(list(model.parameters()), statistics, reduced_over(group))
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
            gradients = Gradients(list(model.parameters()), [], reduced_over(group))
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
            state.end_grain()
            output.sum().backward()

        def replica(group: Any, rank: int) -> tuple[Tensor, Tensor]:
            module = norm()
            module.load_state_dict(initial)
            names = tuple(name for name, _ in module.named_parameters())[::-1]
            trainee = Trainee(module, names, frozenset(module.state_dict()))
            state = TrainingState(trainee, job, reducing=reduced_over(group))
            state.begin(num_grains=2)
            run_grain(state, module, 5)
            state.drop()
            assert all(torch.equal(value, initial[name]) for name, value in module.state_dict().items())
            state.begin(num_grains=2)
            state.begin_last_backward()
            run_grain(state, module, rank)
            for number in range(state.num_buckets):
                for work in state.reduce(number, torch.zeros(2, dtype=torch.float64)):
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
        gradients = Gradients(chain.completed, [], reduced_over(calls))
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
        gradients = Gradients(chain.completed, [], reduced_over(calls, is_early=False))
        gradients.begin()
        gradients.begin_last_backward()
        chain(torch.randn(3, WIDTH)).backward()
        assert "reduce" not in calls.noted
        finish(gradients)
        assert calls.noted.count("reduce") == NUM_LAYERS

    def test_buckets_go_in_order_even_if_one_is_never_completed(self, calls: Calls) -> None:
        """Another replica's loss may reach what this one's does not; all must make the same calls."""
        chain = Chain(calls.noted.append)
        gradients = Gradients(chain.completed, [], reduced_over(calls))
        gradients.begin()
        gradients.begin_last_backward()
        chain(torch.randn(3, WIDTH), without=[2]).backward()
        assert calls.noted == ["backward 3", "reduce", "backward 2", "backward 1", "backward 0"]
        held = finish(gradients)
        assert calls.noted.count("reduce") == NUM_LAYERS
        assert [own is not None for own in held] == [True, False, True, True]

    def test_a_step_that_was_dropped_leaves_nothing_to_the_next(self, calls: Calls) -> None:
        chain = Chain(lambda _: None)
        gradients = Gradients(chain.completed, [], reduced_over(calls))
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
    gradients = Gradients(chain.completed, [], Reducing())
    gradients.begin()
    gradients.begin_last_backward()
    chain(torch.randn(3, WIDTH), without=[2]).backward()
    held = finish(gradients)
    assert calls.noted == []
    assert all(own is parameter.grad for own, parameter in zip(held, chain.completed, strict=True))
    assert [own is not None for own in held] == [True, False, True, True]
