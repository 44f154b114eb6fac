"""What a profile measures of layers: moments that add up, memory to the byte, and a model that is left as it was."""

import statistics

import pytest
import torch
from torch import nn

from tests.unit.layer_models import Skip
from zooid.core.jobs.job import Job
from zooid.layers import Batch, trace
from zooid.profiler.grain_times import relative_spread
from zooid.profiler.largest_grain import largest_that_fits, runs_within
from zooid.profiler.layer_times import LayerTimer
from zooid.profiler.tensor_memory import line_through, measure_layers

WIDTH = 256


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def batch_of(size: int, width: int = WIDTH) -> Batch:
    return Batch((torch.randn(size, width),), {}, None, size)


def timer_of(model: nn.Module, width: int = WIDTH) -> LayerTimer:
    job = Job(
        model=lambda: model,
        loss=lambda output, target: output.square().mean(),
        data=list,
        optimizer=torch.optim.SGD,
        batch_size=8,
        epochs=1,
    )
    return LayerTimer(job, trace(model, batch_of(2, width)), model, torch.device("cpu"))


def test_layers_add_up_to_the_step() -> None:
    timer = timer_of(perceptron())
    (measured,) = timer.measure([batch_of(64)], seconds=0.5, num_rounds=3)
    points = measured.points()
    assert len(points) == timer.num_layers == 3
    whole_s = statistics.median(forward for forward, _ in measured.bare_s)
    assert sum(point.forward_s for point in points) == pytest.approx(whole_s, rel=0.1)


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = perceptron()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    timer = timer_of(model)
    timer.measure([batch_of(4)], seconds=0.1, num_rounds=3)
    timer.gradients(batch_of(4))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    timer = timer_of(perceptron())
    ready = timer.gradients(batch_of(64))
    assert [sorted(gradient.name for gradient in layer) for layer in ready] == [
        ["0.bias", "0.weight"],
        ["2.bias", "2.weight"],
        ["4.bias", "4.weight"],
    ]
    assert all(0 <= gradient.at_share <= 1 for layer in ready for gradient in layer)


def test_large_grains_are_left_out_where_there_is_no_time_for_them() -> None:
    timer = timer_of(perceptron())
    sizes = (1, 2, 2**16)
    assert [
        measured.num_samples for measured in timer.measure([batch_of(n) for n in sizes], seconds=0.05, num_rounds=3)
    ] == [1, 2]


def test_memory_is_counted_to_the_byte() -> None:
    """Linear keeps its input, tanh its result; what a layer keeps is what the next one needs again."""
    model = perceptron()
    timer = timer_of(model)
    batch = batch_of(10)
    timer.run_once(batch)
    known = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), *batch.args]
    layers = measure_layers(timer.layers, known, lambda: timer.forward(batch))
    of_values = 10 * WIDTH * 4
    assert [layer.kept for layer in layers[:2]] == [of_values, of_values]
    assert layers[0].forward_peak == 2 * of_values, "the product, and then its tanh"
    assert all(layer.backward_peak >= 0 for layer in layers)


def test_skip_connections_are_marked_like_everything_else() -> None:
    timer = timer_of(Skip(), width=5)
    forward_s, backward_s = timer.run_marked(batch_of(4, 5))
    assert len(forward_s) == len(backward_s) == timer.num_layers == 4


def test_bytes_at_two_sizes_are_a_line() -> None:
    line = line_through((2, 30), (4, 50))
    assert (line.per_sample, line.fixed, line.at(10)) == (10, 10, 110)
    assert line_through((4, 40), (4, 40)).at(1) == 10


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 16, 63, 64])
def test_the_largest_grain_is_found_by_doubling_and_bisection(limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest_that_fits(64, fits) == limit
    assert len(tried) <= 13


def test_what_does_not_fit_harms_nobody() -> None:
    def take(num_bytes: int) -> None:
        torch.zeros(num_bytes, dtype=torch.uint8)

    assert runs_within(lambda: take(10_000_000), 2 * 2**30)
    assert not runs_within(lambda: take(4 * 2**30), 2 * 2**30)


def test_a_hiccup_is_no_spread() -> None:
    assert relative_spread([1.0, 1.01, 0.99, 1.0, 9.0]) == pytest.approx(0.0148, abs=0.001)
    assert relative_spread([1.0]) == 0
