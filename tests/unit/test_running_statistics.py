"""Buffers after a step do not depend on who computed which grain, and a step of one grain is plain PyTorch."""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import zooid
from zooid.worker.state.running_statistics import RunningStatistics
from zooid.worker.state.training_state import TrainedStage, TrainingState

WIDTH = 3
NUM_GRAINS = 5


class Follows(nn.Module):
    """Multiplies by an average that it has just brought up to date."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(WIDTH))
        self.is_followed = True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_followed:
            with torch.no_grad():
                self.average.mul_(0.5).add_(0.5 * x.abs().mean(0))
        return x * self.average


def normed() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).double()


def grain(number: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(number), dtype=dtype)


def statistics_of(source: nn.Module | Tensor) -> RunningStatistics:
    """Those of a module, or of one that has nothing but this buffer."""
    module = nn.Module() if isinstance(source, Tensor) else source
    if isinstance(source, Tensor):
        module.register_buffer("only", source)
    return RunningStatistics(module, frozenset(module.state_dict()), torch.float32)


def run_grains(statistics: RunningStatistics, forward: Callable[[int], object], numbers: Sequence[int]) -> None:
    for number in numbers:
        statistics.begin_grain()
        forward(number)
        statistics.end_grain()


def summed(replicas: Sequence[RunningStatistics]) -> list[Tensor]:
    """What an all-reduce makes of the changes of all replicas."""
    return [sum(changes[1:], changes[0]) for changes in zip(*(own.changes() for own in replicas), strict=True)]


def step_of(shares: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64) -> list[dict[str, Tensor]]:
    """The state of each replica's batch norm after two steps of which each replica computes a share."""

    def run(module: nn.Module, number: int) -> None:
        module(grain(number, dtype))

    modules = [normed().to(dtype) for _ in shares]
    replicas = [statistics_of(module) for module in modules]
    num_grains = sum(len(own) for own in shares)
    for _ in range(2):
        for module, own, statistics in zip(modules, shares, replicas, strict=True):
            statistics.begin(num_grains)
            run_grains(statistics, partial(run, module), own)
        total = summed(replicas) if len(replicas) > 1 else None
        for statistics in replicas:
            statistics.apply(total)
    return [dict(module.named_buffers()) for module in modules]


class TestShares:
    @pytest.mark.parametrize("shares", [((0, 1, 2), (3, 4)), ((0,), (), (1, 2, 3, 4)), ((3, 1), (4, 0, 2))])
    def test_it_does_not_matter_who_computes_a_grain(self, shares: Sequence[Sequence[int]]) -> None:
        [alone] = step_of([tuple(range(NUM_GRAINS))])
        for found in step_of(shares):
            assert int(found["1.num_batches_tracked"]) == 2 * NUM_GRAINS
            for name, wanted in alone.items():
                torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-14)

    def test_the_step_adds_the_mean_of_what_each_grain_alone_changes(self) -> None:
        [found] = step_of([tuple(range(NUM_GRAINS))])
        module = normed()
        for _ in range(2):
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            changes = []
            for number in range(NUM_GRAINS):
                module.load_state_dict(before, strict=False)
                module(grain(number))
                changes.append(module[1].running_var - before["1.running_var"])  # type: ignore[index]
            module.load_state_dict(before, strict=False)
            module[1].running_var += sum(changes) / NUM_GRAINS  # type: ignore[index]
        torch.testing.assert_close(found["1.running_var"], module[1].running_var, rtol=0, atol=1e-14)  # type: ignore[index]

    def test_one_grain_for_many_replicas_keeps_every_bit(self) -> None:
        """In float32, where a difference that is added again is rounded."""
        module = normed().float()
        for _ in range(2):
            module(grain(0, torch.float32))
        for shares in ([(0,)], [(), (0,), ()]):
            for found in step_of(shares, torch.float32):
                for name, wanted in module.named_buffers():
                    assert torch.equal(found[name], wanted), name

    def test_counts_larger_than_small_types_can_tell_arrive(self) -> None:
        """A model in 16 bits has counts that do not fit into 16 bits."""
        job = zooid.Job(
            model=nn.Module,
            loss=None,
            data=list,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            batch_size=1,
            epochs=1,
        )
        module = normed().to(torch.bfloat16)
        names = tuple(name for name, _ in module.named_parameters())
        state = TrainingState(TrainedStage(module, names, frozenset(module.state_dict())), job)
        travelling = state._statistics.like_changes()
        assert [value.dtype for value in travelling] == [torch.bfloat16, torch.float32]


class TestPlainPyTorch:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_steps_of_one_grain_keep_every_bit(self, dtype: torch.dtype) -> None:
        """Weights and statistics after ten steps, beside the loop that everybody writes."""
        job = zooid.Job(
            model=nn.Module,
            loss=None,
            data=list,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9),
            batch_size=1,
            epochs=1,
        )
        module, plain = normed().to(dtype), normed().to(dtype)
        names = tuple(name for name, _ in module.named_parameters())[::-1]
        state = TrainingState(TrainedStage(module, names, frozenset(module.state_dict())), job)
        optimizer = job.optimizer(list(plain.named_parameters()))
        for step in range(10):
            state.begin([(0,)])
            state.begin_grain()
            output = module(grain(step, dtype))
            state.end_grain(0)
            output.square().mean().backward()
            state.apply(1.0)
            optimizer.zero_grad()
            plain(grain(step, dtype)).square().mean().backward()
            optimizer.step()
        for (name, found), wanted in zip(module.state_dict().items(), plain.state_dict().values(), strict=True):
            assert torch.equal(found, wanted), name

    @pytest.mark.parametrize("num_replicas", [1, 2])
    def test_a_forward_that_is_run_again_in_backward_counts_again(self, num_replicas: int) -> None:
        module, plain = normed(), normed()
        replicas = [statistics_of(module), statistics_of(normed())][:num_replicas]
        for statistics in replicas:
            statistics.begin(1)
        x = grain(0).requires_grad_()
        replicas[0].begin_grain()
        output = checkpoint(module, x, use_reentrant=False)
        replicas[0].end_grain()
        output.sum().backward()
        replicas[0].apply(summed(replicas) if num_replicas > 1 else None)
        checkpoint(plain, x, use_reentrant=False).sum().backward()
        assert int(plain[1].num_batches_tracked) == 2  # type: ignore[index]
        for found, wanted in zip(module.buffers(), plain.buffers(), strict=True):
            assert torch.equal(found, wanted)


def test_what_a_backward_changes_does_not_count_where_there_are_more_grains() -> None:
    """The order of forwards and backwards depends on the number of stages."""
    found = []
    for order in ("F0 B0 F1 B1", "F0 F1 B0 B1"):
        module = normed()
        statistics = statistics_of(module)
        statistics.begin(2)
        outputs: list[Tensor] = []
        for action in order.split():
            number = int(action[1])
            if action[0] == "B":
                outputs[number].sum().backward()
                continue
            statistics.begin_grain()
            outputs.append(checkpoint(module, grain(number).requires_grad_(), use_reentrant=False))
            statistics.end_grain()
        statistics.apply(None)
        found.append([buffer.clone() for buffer in module.buffers()])
    assert int(found[0][-1]) == 2
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class TestBackward:
    """Several grains are forward before the first is backward."""

    def test_batch_norm_has_the_gradients_of_grains_on_their_own(self) -> None:
        module, plain = normed(), normed()
        statistics = statistics_of(module)
        statistics.begin(NUM_GRAINS)
        losses: list[Tensor] = []
        run_grains(statistics, lambda number: losses.append(module(grain(number)).square().mean()), range(NUM_GRAINS))
        for number, loss in enumerate(losses):
            loss.backward()
            plain(grain(number)).square().mean().backward()
        for parameter, wanted in zip(module.parameters(), plain.parameters(), strict=True):
            assert parameter.grad is not None
            assert wanted.grad is not None
            torch.testing.assert_close(parameter.grad, wanted.grad, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("follows_again", [True, False])
    def test_one_that_needs_what_a_forward_wrote_fails_rather_than_find_something_else(
        self, follows_again: bool
    ) -> None:
        module = Follows()
        statistics = statistics_of(module)
        statistics.begin(2)
        x, losses = torch.ones(2, WIDTH, requires_grad=True), []

        def forward(number: int) -> None:
            module.is_followed = number == 0 or follows_again
            losses.append(module(x * (number + 2)).sum())

        run_grains(statistics, forward, range(2))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            losses[0].backward()

    def test_it_finds_what_the_forward_wrote_where_no_other_grain_is_between(self) -> None:
        module = Follows()
        statistics = statistics_of(module)
        statistics.begin(2)
        for number in (2.0, 4.0):
            x = torch.full((2, WIDTH), number, requires_grad=True)
            statistics.begin_grain()
            loss = module(x).sum()
            statistics.end_grain()
            loss.backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full((2, WIDTH), (1 + number) / 2)), "from 1 on, for every grain"
        statistics.apply(None)
        assert torch.equal(module.average, torch.full((WIDTH,), 2.0)), "the mean of 1.5 and 2.5"


class Replaces(nn.Module):
    """Puts a new average in the place of the one that it has used."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        result = x * self.average
        self.average = 0.5 * self.average + 0.5 * x.detach().mean(0)
        return result


class TestReplacedBuffers:
    def test_every_grain_finds_the_average_that_the_step_began_with(self) -> None:
        """All forwards come before the first backward, which still finds the average that its forward used."""
        module = Replaces()
        average = module.average
        statistics = statistics_of(module)
        for first in (2.0, 4.0):
            before = average.clone()
            statistics.begin(2)
            inputs = [torch.full((2, WIDTH), first + 4 * number, requires_grad=True) for number in range(2)]
            losses: list[Tensor] = []
            run_grains(statistics, lambda number: losses.append(module(inputs[number]).sum()), range(2))  # noqa: B023
            for x, loss in zip(inputs, losses, strict=True):
                loss.backward()
                assert x.grad is not None
                assert torch.equal(x.grad, before.expand(2, WIDTH))
            statistics.apply(None)
            assert module.average is average, "evaluation and checkpoints know this one"
            assert torch.equal(average, 0.5 * before + 0.5 * (first + 2.0))

    def test_one_grain_leaves_what_it_has_put_there(self) -> None:
        module, plain = Replaces(), Replaces()
        average = module.average
        statistics = statistics_of(module)
        for step in range(3):
            statistics.begin(1)
            run_grains(statistics, lambda number: module(grain(number, torch.float32)), [step])
            statistics.apply(None)
            plain(grain(step, torch.float32))
            assert module.average is average
            assert torch.equal(average, plain.average)

    @pytest.mark.parametrize("num_grains", [1, 2])
    def test_a_drop_takes_it_away_again(self, num_grains: int) -> None:
        module = Replaces()
        average = module.average
        statistics = statistics_of(module)
        statistics.begin(num_grains)
        statistics.begin_grain()
        module(grain(0, torch.float32))
        statistics.drop()
        assert module.average is average
        assert torch.equal(average, torch.ones(WIDTH))


class TestOtherBuffers:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
    def test_constants_keep_every_bit(self, dtype: torch.dtype) -> None:
        constant = torch.tensor([-0.0, 0.0, 0.1, float("inf"), -float("inf"), 1e-7, 3e4, float("nan")], dtype=dtype)
        wanted = constant.clone()
        statistics = statistics_of(constant)
        for is_reduced in (True, False):
            statistics.begin(3)
            run_grains(statistics, lambda number: None, range(3))
            statistics.apply(summed([statistics]) if is_reduced else None)
        assert torch.equal(constant[:-1].view(torch.uint8), wanted[:-1].view(torch.uint8))
        assert constant[-1].isnan()

    def test_a_minimum_that_begins_at_infinity_becomes_a_number(self) -> None:
        least = torch.full((2,), float("inf"))
        statistics = statistics_of(least)
        statistics.begin(2)

        def forward(number: int) -> None:
            least.copy_(torch.minimum(least, torch.tensor([0.0, number])))

        run_grains(statistics, forward, (2, 3))
        statistics.apply(None)
        assert least.tolist() == [0.0, 2.5]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
    def test_counts_are_added_up_in_every_integer_type(self, dtype: torch.dtype) -> None:
        counts = torch.tensor([3, 100], dtype=dtype)

        def forward(number: int) -> None:
            counts.add_(torch.tensor([number, 0], dtype=dtype))

        for is_reduced in (False, True):
            statistics = statistics_of(counts)
            counts.copy_(torch.tensor([3, 100]))
            statistics.begin(4)
            run_grains(statistics, forward, range(4))
            statistics.apply(summed([statistics]) if is_reduced else None)
            assert counts.tolist() == [9, 100]

    def test_booleans_and_quantized_types_are_left_alone(self) -> None:
        module, flag = nn.Module(), torch.tensor([False])
        module.register_buffer("flag", flag)
        module.register_buffer("weights", torch.zeros(2).to(torch.float8_e4m3fn))
        statistics = statistics_of(module)
        statistics.begin(2)
        run_grains(statistics, lambda number: flag.fill_(True), range(2))
        statistics.apply(None)
        assert flag.tolist() == [True]
        assert statistics.like_changes() == []


@pytest.mark.parametrize("num_grains", [1, 2])
def test_a_drop_brings_back_the_buffers_of_the_step_before(num_grains: int) -> None:
    module = normed()
    statistics = statistics_of(module)
    for is_dropped in (False, True):
        before = [buffer.clone() for buffer in module.buffers()]
        statistics.begin(num_grains)
        run_grains(statistics, lambda number: module(grain(number)), range(num_grains))
        changed = statistics.changes()
        if is_dropped:
            statistics.drop()
        else:
            statistics.apply(changed)
        assert all(torch.equal(*pair) == is_dropped for pair in zip(module.buffers(), before, strict=True))
