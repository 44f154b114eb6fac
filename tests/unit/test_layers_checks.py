"""A job whose parts do not fit together is refused before anything starts, with what to do about it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from tests.unit.layer_models import OwnLoss
from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.layers import Batch, Objective, check_job, collate, flatten_inputs
from zooid.layers.jobs.model_builder import build_model, build_model_on_meta

Sample = tuple[Any, Any]


class Samples(Dataset[Sample]):
    """So many samples, each made by its index."""

    def __init__(self, make: Callable[[int], Any], size: int = 8) -> None:
        self._make = make
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


class Stream(IterableDataset[Sample]):
    def __iter__(self) -> Iterator[Sample]:
        return iter(())


class Sizeless(Dataset[Sample]):
    def __getitem__(self, index: int) -> Sample:
        return torch.zeros(3), 0


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))  # type: ignore[no-any-return]


def sample(index: int) -> Sample:
    return torch.full((3,), float(index)), index % 2


def job_of(**changed: Any) -> Job:
    parts: dict[str, Any] = {
        "model": Classifier,
        "loss": F.cross_entropy,
        "data": lambda: Samples(sample),
        "optimizer": lambda named: torch.optim.SGD(named, lr=0.1),
        "batch_size": 4,
        "epochs": 1,
    }
    return Job(**(parts | changed))


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def second_fails(index: int) -> Sample:
    if index == 1:
        raise OSError("the disk is gone")
    return sample(index)


def given_samples(make: Callable[[int], Any]) -> dict[str, Any]:
    return {"data": lambda: Samples(make)}


class Wrapped(nn.Module):
    """Gives its output in a form that carries no loss."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"batch_size": 9},
            r"job.batch_size is 9, but job.data\(\) has only 8 samples; give a batch size of at most 8",
        ),
        ({"data": lambda: Samples(sample, 1), "batch_size": 1}, "has 1 samples; at least 2 are needed"),
        (
            {"data": Stream},
            r"returned a Stream, an iterable without a length; give job.num_samples, the",
        ),
        ({"data": Sizeless}, r"returned a Sizeless, which is not a data set; return one with __len__"),
        ({"data": failing(OSError("no such file"))}, r"job.data\(\) raised OSError: no such file"),
        (given_samples(second_fails), r"job.data\(\)\[1\] raised OSError: the disk is gone; correct or leave out this"),
        (given_samples(lambda at: 3), r"job.data\(\)\[0\] is a int; give a pair \(inputs, target\), a dict"),
        (given_samples(lambda at: (1, 2, 3)), r"job.data\(\)\[0\] is a tuple of 3 values; give a pair"),
        (given_samples(lambda at: (torch.zeros(4), 0)), r"the model fails on .* \(inputs of shape \[\(2, 4\)\]\)"),
        ({"model": failing(ValueError("no weights"))}, r"job.model\(\) raised ValueError: no weights"),
        ({"model": lambda: torch.relu}, r"job.model\(\) returned a builtin_function_or_method; .* an nn.Module"),
        (
            {"optimizer": failing(TypeError("no lr"))},
            "job.optimizer raised TypeError: no lr; .* for example lambda named",
        ),
        ({"optimizer": list}, "job.optimizer returned a list; it must return a torch.optim.Optimizer"),
        ({"loss": lambda output: output.mean()}, r"job.loss cannot take .*\(2, 2\).* called as loss\(output, target\)"),
        ({"loss": lambda output, target: 1.5}, "job.loss returned a float; a loss is .* -> scalar tensor"),
        ({"loss": lambda output, target: output}, r"a tensor of shape \(2, 2\); a loss is .*reduction='none' set some"),
        ({"loss": lambda output, target: target.sum()}, "a tensor of torch.int64; it must be a floating-point scalar"),
        ({"loss": lambda output, target: (output, 2)}, r"a tensor of shape \(2, 2\); a loss is .*\(sum, weight\)"),
        ({"loss": None}, "job.loss is None, but the model's output .Tensor. has no .loss; give a loss, or inputs"),
        (
            {"loss": None, "model": lambda: nn.Sequential(Classifier(), Wrapped())},
            "the model's output .dict. has no .loss; give a loss",
        ),
        (
            given_samples(lambda index: ("a film", index % 2)),
            r"the inputs of samples .* found text \('a film'\), but a model takes numbers; convert",
        ),
        (given_samples(lambda index: (torch.zeros(3), "good")), r"the targets of samples .* found text \('good'\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_job(job_of(**changed))


def test_samples_of_different_sizes_are_refused_as_input() -> None:
    with pytest.raises(JobError, match=r"job.data\(\)"):
        check_job(job_of(data=lambda: Samples(lambda index: (torch.zeros(3 + index), 0))))


def test_samples_that_cannot_be_stacked_are_refused_as_input() -> None:
    with pytest.raises(JobError, match=r"job.data\(\)"):
        check_job(job_of(data=lambda: Samples(lambda index: (object(), 0))))


def test_a_job_that_fits_is_returned_with_what_was_built() -> None:
    checked = check_job(job_of())
    assert checked.num_samples == 8
    assert checked.example.num_samples == 2
    assert isinstance(checked.model, Classifier)
    assert checked.model.training


def test_the_trial_leaves_no_trace_in_the_model() -> None:
    job = job_of(seed=3)
    untouched = build_model(job).state_dict()
    checked = check_job(job).model.state_dict()
    assert "norm.num_batches_tracked" in checked
    torch.testing.assert_close(checked, untouched, rtol=0, atol=0)


def test_initial_weights_follow_from_the_seed() -> None:
    weights = [build_model(job_of(seed=seed)).state_dict()["out.weight"] for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_compiled_model_is_trained_as_the_module_inside_it() -> None:
    """Compiling is put off until a first call, which never comes."""
    checked = check_job(job_of(model=lambda: torch.compile(Classifier(), backend=failing(AssertionError("compiled")))))
    assert isinstance(checked.model, Classifier)
    assert checked.model.state_dict().keys() == Classifier().state_dict().keys()


def test_a_model_on_meta_holds_no_weights() -> None:
    assert {tensor.device.type for tensor in build_model_on_meta(job_of()).state_dict().values()} == {"meta"}


OUTPUT = torch.tensor([[2.0, 0.5], [0.1, 1.0], [0.3, 0.2]])
TARGET = torch.tensor([0, 1, 1])


def weighted(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """As a language model with padding does it: only the tokens with a target count."""
    counts = target > 0
    return F.cross_entropy(output[counts], target[counts], reduction="sum"), counts.sum()


def test_a_mean_counts_every_sample() -> None:
    total, weight = Objective(job_of()).sum_and_weight(OUTPUT, TARGET, 3.0)
    assert weight == 3
    torch.testing.assert_close(total, F.cross_entropy(OUTPUT, TARGET, reduction="sum"))


def test_a_sum_with_its_weight_is_taken_as_it_is() -> None:
    total, weight = Objective(job_of(loss=weighted)).sum_and_weight(OUTPUT, TARGET, 3.0)
    assert (type(weight), weight) == (float, 2.0)
    torch.testing.assert_close(total, F.cross_entropy(OUTPUT[1:], TARGET[1:], reduction="sum"))
    assert check_job(job_of(loss=weighted)).num_samples == 8


def test_sums_and_weights_of_grains_add_up_to_those_of_the_batch() -> None:
    for loss in (F.cross_entropy, weighted):
        objective = Objective(job_of(loss=loss))
        first = objective.sum_and_weight(OUTPUT[:2], TARGET[:2], 2.0)
        second = objective.sum_and_weight(OUTPUT[2:], TARGET[2:], 1.0)
        whole = objective.sum_and_weight(OUTPUT, TARGET, 3.0)
        torch.testing.assert_close(first[0] + second[0], whole[0])
        assert first[1] + second[1] == whole[1]


def test_a_model_that_computes_its_own_loss_needs_none() -> None:
    def labelled(index: int) -> Sample:
        return {"x": torch.full((5,), float(index)), "labels": index % 3}, None

    checked = check_job(job_of(model=OwnLoss, loss=None, data=lambda: Samples(labelled)))
    output = checked.model(**checked.example.kwargs)
    total, weight = Objective(checked.job).sum_and_weight(output, None, 2.0)
    torch.testing.assert_close(total / weight, output.loss)


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        (torch.ones(3), [(2, 3)], {}),
        ((torch.ones(3), torch.ones(4)), [(2, 3), (2, 4)], {}),
        ([torch.ones(3), 1.0], [(2, 3), (2,)], {}),
        ({"b": torch.ones(3), "a": torch.ones(4)}, [], {"b": (2, 3), "a": (2, 4)}),
    ],
    ids=["tensor", "tuple", "list", "dict"],
)
def test_inputs_become_the_arguments_of_the_model(
    inputs: Any, args: list[tuple[int, ...]], kwargs: dict[str, tuple[int, ...]]
) -> None:
    batch = collate(Samples(lambda index: (inputs, index)), [5, 7], job_of())
    assert [tuple(value.shape) for value in batch.args] == args
    assert {name: tuple(value.shape) for name, value in batch.kwargs.items()} == kwargs
    assert [tuple(value.shape) for value in flatten_inputs(batch)] == [*args, *kwargs.values()]
    assert (batch.target.tolist(), batch.num_samples) == ([5, 7], 2)


def test_a_batch_moves_as_a_whole() -> None:
    batch = Batch((torch.ones(2),), {"mask": torch.ones(2)}, torch.ones(2), 2).to("meta")
    assert {value.device.type for value in (*batch.args, *batch.kwargs.values(), batch.target)} == {"meta"}
    assert batch.num_samples == 2


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"data": lambda: Samples(lambda index: (torch.full((3,), float("nan")), 0))}, "the model's output"),
        ({"loss": lambda output, target: output.sum() * float("nan")}, "job.loss"),
    ],
)
def test_what_is_not_a_number_is_refused_before_anything_starts(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(JobError, match=rf"{what} is not a number \(NaN\) on the first 2 samples"):
        check_job(job_of(**changed))
