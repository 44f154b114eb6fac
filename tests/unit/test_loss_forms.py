"""What a job's loss is a mean or a sum over is found by trying it, and what no form explains is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.loss_form import LossForm
from zooid.layers import Objective, check_job, collate

NUM_TOKENS, LENGTH, NUM_SAMPLES = 40, 8, 12
GENERATOR = torch.Generator().manual_seed(1)
FEATURES = torch.randn(NUM_SAMPLES, 5, generator=GENERATOR)
CLASSES = torch.randint(3, (NUM_SAMPLES,), generator=GENERATOR)
TOKENS = torch.randint(1, NUM_TOKENS, (NUM_SAMPLES, LENGTH), generator=GENERATOR)
LENGTHS = torch.randint(2, LENGTH + 1, (NUM_SAMPLES, 1), generator=GENERATOR)
LABELS = TOKENS.masked_fill(torch.arange(LENGTH) >= LENGTHS, -100)


def job_of(model: Callable[[], nn.Module], loss: Any, data: Any, **fields: Any) -> Job:
    settings: dict[str, Any] = {"batch_size": 4, "epochs": 1} | fields
    return Job(
        model=model, loss=loss, data=lambda: data, optimizer=lambda named: torch.optim.SGD(named, lr=0.1), **settings
    )


def classifier() -> nn.Module:
    return nn.Linear(5, 3)


def silent_classifier() -> nn.Module:
    """All its outputs are 0 at first, so that all losses are equal."""
    layer = nn.Linear(5, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def token_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(NUM_TOKENS, 8), nn.Linear(8, NUM_TOKENS))


class TimeFirst(nn.Module):
    """Dimension 0 of its output is time, so that samples cannot be taken out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, NUM_TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens).transpose(0, 1)  # type: ignore[no-any-return]


def token_mean(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def next_token_mean(output: Tensor, target: Tensor) -> Tensor:
    return token_mean(output[:, :-1], target[:, 1:])


def token_sum(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum"), (target != -100).sum()


def with_noise(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output + torch.randn_like(output), target)


def among_each_other(output: Tensor, target: Tensor) -> Tensor:
    """Contrastive: each sample is compared with all others."""
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


CLASSIFIED = TensorDataset(FEATURES, CLASSES)
SORTED = TensorDataset(FEATURES, CLASSES.sort().values)
REAL = TensorDataset(FEATURES, FEATURES[:, :3])
TAGGED = TensorDataset(TOKENS, LABELS)
FULL = TensorDataset(TOKENS, TOKENS)
PADDED_WITH_0 = TensorDataset(TOKENS, LABELS.clamp(min=0))


@pytest.mark.parametrize(
    ("model", "loss", "data", "kind", "ignored", "is_shifted"),
    [
        (classifier, F.mse_loss, REAL, "mean", None, False),
        (classifier, F.multi_margin_loss, CLASSIFIED, "mean", None, False),
        (classifier, lambda output, target: F.mse_loss(output, target, reduction="sum"), REAL, "sum", None, False),
        (classifier, nn.CrossEntropyLoss(reduction="sum"), CLASSIFIED, "sum", None, False),
        (silent_classifier, nn.CrossEntropyLoss(reduction="sum"), CLASSIFIED, "sum", None, False),
        (classifier, F.cross_entropy, CLASSIFIED, "label_mean", -100, False),
        (token_model, token_mean, TAGGED, "label_mean", -100, False),
        (token_model, token_mean, FULL, "label_mean", -100, False),
        (token_model, next_token_mean, TAGGED, "label_mean", -100, True),
        (TimeFirst, lambda output, target: token_mean(output.transpose(0, 1), target), TAGGED, "label_mean", -100, 0),
        (
            token_model,
            lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0),
            PADDED_WITH_0,
            "label_mean",
            0,
            False,
        ),
        (token_model, token_sum, TAGGED, "weighted", None, False),
        (classifier, with_noise, CLASSIFIED, "mean", None, False),
    ],
)
def test_a_loss_is_what_its_values_say(
    model: Callable[[], nn.Module], loss: Any, data: Any, kind: str, ignored: int | None, is_shifted: bool
) -> None:
    form = check_job(job_of(model, loss, data)).loss_form
    assert form.kind == kind
    assert form.is_shifted == is_shifted
    assert ignored is None or form.ignored == ignored


SMALL = {"vocab_size": NUM_TOKENS, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def causal() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_hidden_layers=1, num_key_value_heads=2, max_position_embeddings=32)
    return transformers.LlamaForCausalLM(config)


def masked() -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**SMALL, num_hidden_layers=1, max_position_embeddings=32)
    )


def encoder_decoder() -> Any:
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=NUM_TOKENS, decoder_start_token_id=0, **sizes)
    )


def sequence_classifier() -> Any:
    config = transformers.BertConfig(**SMALL, num_hidden_layers=1, max_position_embeddings=32, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def dicts(labels: Tensor) -> list[dict[str, Any]]:
    return [{"input_ids": tokens, "labels": own} for tokens, own in zip(TOKENS.tolist(), labels.tolist(), strict=True)]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of processors without bf16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model", "labels", "is_shifted", "weight_per_sample"),
    [
        (causal, TOKENS, True, LENGTH - 1),
        (causal, LABELS, True, None),
        (masked, LABELS, False, None),
        (encoder_decoder, LABELS, False, None),
        (sequence_classifier, CLASSES, False, 1),
    ],
)
def test_the_losses_of_transformers_are_weighed_by_their_labels(
    model: Callable[[], nn.Module],
    labels: Tensor,
    is_shifted: bool,
    weight_per_sample: float | None,
    dtype: torch.dtype,
) -> None:
    job = job_of(lambda: model().to(dtype), None, dicts(labels))
    checked = check_job(job)
    form = checked.loss_form
    assert (form.kind, form.labels, form.ignored) == ("label_mean", "labels", -100)
    assert form.is_shifted == is_shifted
    assert weight_per_sample is None or form.weight_per_sample == weight_per_sample
    assert {parameter.dtype for parameter in checked.model.parameters()} == {dtype}
    counted = (labels[:3, 1:] if is_shifted else labels[:3]) != -100
    assert Objective(job, form).weight(collate(checked.data, range(3), job), 100) == int(counted.sum())


def test_a_model_that_the_job_asks_for_its_loss_is_run_for_it() -> None:
    """No rows of its output tell what the loss is a mean over."""
    pairs = [({"input_ids": tokens, "labels": own}, 0.0) for tokens, own in zip(TOKENS, LABELS, strict=True)]
    form = check_job(job_of(causal, lambda output, target: output.loss, pairs)).loss_form
    assert (form.kind, form.labels, form.is_shifted) == ("label_mean", "labels", True)


def test_a_grain_without_any_label_counts_for_nothing() -> None:
    """Its mean is not a number, in the loss and maybe in gradients."""
    job = job_of(token_model, token_mean, TAGGED)
    output = torch.randn(2, 3, NUM_TOKENS, requires_grad=True)
    form = LossForm(kind="label_mean")
    total, weight = Objective(job, form).sum_and_weight(output, torch.full((2, 3), -100), 0.0)
    total.backward()  # type: ignore[no-untyped-call]
    assert (float(total.detach()), weight) == (0.0, 0.0)
    assert output.grad is not None
    assert torch.equal(output.grad, torch.zeros_like(output))


class TestRefused:
    @pytest.mark.parametrize(
        ("loss", "data"),
        [
            (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])), CLASSIFIED),
            (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])), SORTED),
            (among_each_other, CLASSIFIED),
        ],
        ids=["classes weigh", "classes weigh, and the first samples are of one", "samples compared"],
    )
    def test_what_would_depend_on_the_grain(self, loss: Any, data: Any) -> None:
        with pytest.raises(JobError, match=r"depend on how a step is cut into grains; give a job.loss that returns \("):
            check_job(job_of(classifier, loss, data))
        one_grain = job_of(classifier, loss, data, grain_size=4)
        assert check_job(one_grain).loss_form.kind == "mean", "with one grain a step, nothing depends on it"

    def test_a_mean_with_its_weight(self) -> None:
        def mean_and_weight(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
            return F.cross_entropy(output, target), len(target)

        with pytest.raises(JobError, match="does not add up; return the sum of the losses, not their mean"):
            check_job(job_of(classifier, mean_and_weight, CLASSIFIED))

    def test_a_loss_that_takes_no_other_number_of_samples(self) -> None:
        def loss_of_two(output: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(output.view(2, 3), target)

        with pytest.raises(JobError, match=r"job.loss fails on . samples, although not on two"):
            check_job(job_of(classifier, loss_of_two, CLASSIFIED))
