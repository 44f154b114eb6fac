"""Samples of every usual form become the arguments of the model and the target of the loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.layers import Batch, check_job, collate, varying_sizes
from zooid.worker.samples.sample_reader import GrainReader

TEXTS = [[5, 6, 7], [8, 9], [1, 2, 3, 4], [7]]
SAMPLES = [{"input_ids": tokens, "labels": number % 2} for number, tokens in enumerate(TEXTS)]


def job_of(data: Any = (), **fields: Any) -> Job:
    settings: dict[str, Any] = {
        "model": lambda: nn.Linear(3, 2),
        "loss": F.cross_entropy,
        "optimizer": lambda named: torch.optim.SGD(named, lr=0.1),
        "batch_size": 2,
        "epochs": 1,
    } | fields
    return Job(data=lambda: data, **settings)


def in_lists(batch: Batch) -> tuple[Any, Any, Any]:
    kwargs = {name: value.tolist() for name, value in batch.kwargs.items()}
    target = batch.target.tolist() if isinstance(batch.target, Tensor) else batch.target
    return [value.tolist() for value in batch.args], kwargs, target


@pytest.mark.parametrize(
    ("sample", "args", "kwargs", "target"),
    [
        ((torch.ones(2), 3), [[[1, 1]] * 2], {}, [3, 3]),
        (([1, 2], [3, 4]), [[[1, 2]] * 2], {}, [[3, 4]] * 2),
        (((torch.ones(2), 5), 3), [[[1, 1]] * 2, [5, 5]], {}, [3, 3]),
        (({"x": [1, 2]}, 3), [], {"x": [[1, 2]] * 2}, [3, 3]),
        ({"x": [1, 2], "labels": 3}, [], {"x": [[1, 2]] * 2}, [3, 3]),
        ({"x": [[1, 2], [3, 4]]}, [], {"x": [[[1, 2], [3, 4]]] * 2}, None),
        (torch.ones(2), [[[1, 1]] * 2], {}, None),
        ((torch.ones(2),), [[[1, 1]] * 2], {}, None),
        ((torch.ones(2), None), [[[1, 1]] * 2], {}, None),
    ],
)
def test_a_sample_of_any_form_is_inputs_and_target(sample: Any, args: Any, kwargs: Any, target: Any) -> None:
    assert in_lists(collate([sample] * 4, [1, 2], job_of())) == (args, kwargs, target)


def test_labels_are_an_input_where_the_model_computes_the_loss() -> None:
    batch = collate([{"x": [1, 2], "labels": 3}] * 2, range(2), job_of(loss=None))
    assert in_lists(batch) == ([], {"x": [[1, 2]] * 2, "labels": [3, 3]}, None)


def test_a_loss_may_do_without_a_target() -> None:
    def size(output: Tensor, target: None) -> Tensor:
        assert target is None
        return output.square().mean()

    assert check_job(job_of([torch.ones(3), torch.zeros(3)], loss=size)).example.target is None


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """To the longest of the batch."""
    tokens = [torch.tensor(sample["input_ids"]) for sample in samples]
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": nn.utils.rnn.pad_sequence(tokens, batch_first=True), "labels": labels}


def padded_to_4(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = padded(samples)
    return batch | {"input_ids": F.pad(batch["input_ids"], (0, 4 - batch["input_ids"].shape[1]))}


def test_collate_makes_the_batch() -> None:
    job = job_of(SAMPLES, collate=padded)
    assert in_lists(collate(SAMPLES, [0, 1], job)) == ([], {"input_ids": [[5, 6, 7], [8, 9, 0]]}, [0, 1])
    assert collate(SAMPLES, [3], job).num_samples == 1


def test_collate_may_return_pairs_and_arrays() -> None:
    def paired(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        batch = padded_to_4(samples)
        return batch["input_ids"].numpy(), batch["labels"].numpy()

    batch = collate(SAMPLES, [3], job_of(collate=paired))
    assert in_lists(batch) == ([[[7, 0, 0, 0]]], {}, [1])


def test_the_collators_of_transformers_are_taken(tmp_path: Any) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]))
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    collator = transformers.DataCollatorWithPadding(tokenizer, padding="max_length", max_length=6)
    samples = [{**tokenizer(text), "label": number} for number, text in enumerate(("a b", "c d e", "f"))]
    batch = collate(samples, range(3), job_of(collate=collator))
    assert {name: tuple(value.shape) for name, value in batch.kwargs.items()} == dict.fromkeys(
        ("input_ids", "token_type_ids", "attention_mask"), (3, 6)
    )
    assert batch.target.tolist() == [0, 1, 2]


def test_processes_that_read_ahead_collate_as_well() -> None:
    job = job_of(SAMPLES, collate=padded)
    reader = GrainReader(job, SAMPLES, lambda step: iter([(0, 0, [0, 1])]), lambda step, grain: [0, 1], num_workers=1)
    try:
        assert in_lists(reader.read(0, 0)) == ([], {"input_ids": [[5, 6, 7], [8, 9, 0]]}, [0, 1])
    finally:
        reader.close()


def test_sizes_that_depend_on_the_samples_are_noticed() -> None:
    reason = "inputs have different sizes: 3 for the first two samples of job.data(), and 2 for sample 1 of job.data();"
    assert varying_sizes(job_of(SAMPLES, collate=padded), SAMPLES).startswith(reason)
    assert varying_sizes(job_of(SAMPLES, collate=padded_to_4), SAMPLES, SAMPLES[:1]) == ""
    short, long = [(torch.ones(2), 0)] * 4, [(torch.ones(2, 3), 0)] * 4
    assert varying_sizes(job_of(), short) == ""
    assert "2×3 for sample 0 of job.evaluation(); pad all" in varying_sizes(job_of(), short, long)


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        (["some text"] * 4, {}, r"job.data\(\)\[0\]: found text \('some text'\), but"),
        (
            [("some text", 1)] * 4,
            {},
            r"the inputs of samples of job.data\(\): found text \('some text'\), but a model takes numbers; convert",
        ),
        (
            [{"text": "some text"}] * 4,
            {},
            r"found text \('text': 'some text'\), but a model takes numbers; convert it",
        ),
        (SAMPLES, {}, "cannot be stacked into a batch: .* or a job.collate that turns a list of samples into a batch"),
        (SAMPLES, {"collate": lambda samples: samples[0]["text"]}, "job.collate raised KeyError: 'text'; it is called"),
        (SAMPLES, {"collate": lambda samples: "text"}, "what job.collate returns: found text"),
        (SAMPLES, {"collate": lambda samples: {"x": "text"}}, "the inputs that job.collate returns: found text"),
        (SAMPLES, {"collate": lambda samples: torch.ones(5, 3)}, r"input of shape \(5, 3\) for 2 samples; dimension 0"),
    ],
)
def test_what_cannot_become_a_batch_is_refused_with_what_to_do(data: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_job(job_of(data, **fields))


def test_collate_is_a_function() -> None:
    with pytest.raises(JobError, match=r"job.collate is 3; it must be a callable: \(list of samples\) -> batch"):
        job_of(collate=3)
