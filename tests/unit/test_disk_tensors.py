"""Models on disk: the same numbers, the same ties, nothing left behind, and memory only where there is enough."""

import copy
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from zooid.core.errors import InputError
from zooid.core.jobs.job import Job
from zooid.core.resources.process_memory import anonymous_bytes
from zooid.layers import build_model, check_job, disk_tensors, faithful_layers, trace
from zooid.layers.disk_tensors import gradients_on_disk, is_on_disk, release_pages, to_disk
from zooid.layers.stages.comparison import find_difference, run_model

WIDTH = 64


class Tied(nn.Module):
    """Two layers of the same weight, a copied one, one that is converted, and one that is a view of another."""

    scale: torch.Tensor
    row: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).double()
        self.same = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.same.weight = self.first.weight
        self.copied = copy.deepcopy(self.first)
        self.convolution = nn.Conv2d(WIDTH, WIDTH, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.register_buffer("scale", torch.rand(WIDTH, WIDTH, dtype=torch.float64))
        self.register_buffer("row", self.scale[3])
        self.list = [self.copied.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.copied(self.same(torch.tanh(self.first(x) * self.row)))
        return result


def job() -> Job:
    samples = torch.utils.data.TensorDataset(*torch.rand(2, 8, WIDTH, dtype=torch.float64))
    return Job(
        model=Tied,
        loss=nn.functional.mse_loss,
        data=lambda: samples,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        batch_size=4,
        epochs=1,
    )


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no model fits."""
    monkeypatch.setattr(disk_tensors, "memory_bytes", lambda: 0)
    monkeypatch.setattr(disk_tensors, "MIN_BYTES", 2**10)


def of(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.usefixtures("no_memory")
class TestModelsThatDoNotFit:
    def test_weights_are_on_disk_and_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build_model(job())
        assert isinstance(model, Tied)
        large = {name for name, tensor in of(model).items() if is_on_disk(tensor)}
        assert {"first.weight", "copied.weight", "convolution.weight", "scale", "row"} == large
        assert model.same.weight is model.first.weight
        assert model.list[0] is model.copied.weight
        model.scale[3, 5] = 7.0
        assert model.row[5] == 7.0, "a view is still a view"

        monkeypatch.undo()
        plain = build_model(job())
        plain.get_buffer("scale")[3, 5] = 7.0
        for name, tensor in of(plain).items():
            assert not is_on_disk(tensor)
            assert torch.equal(tensor, of(model)[name]), name
            assert tensor.stride() == of(model)[name].stride(), name

    def test_gradients_are_on_disk_and_compared(self) -> None:
        checked = check_job(job())
        layered = faithful_layers(checked)
        assert layered.num_layers > 1
        gradients = run_model(checked.job, checked.model, checked.example).gradients
        assert {name for name, gradient in gradients.items() if is_on_disk(gradient)} == {
            "first.weight",
            "copied.weight",
        }
        assert not any(parameter._post_accumulate_grad_hooks for parameter in checked.model.parameters())

    def test_a_difference_is_found(self) -> None:
        checked = check_job(job())
        layered = trace(checked.model, checked.example)
        weight = checked.model.get_parameter("copied.weight")
        weight.register_hook(lambda gradient: gradient * 1.001)  # type: ignore[no-untyped-call]
        difference = find_difference(checked.job, checked.model, layered, [checked.example])
        assert difference is not None
        assert "copied.weight" in difference.what

    def test_no_file_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        model = build_model(job())
        assert is_on_disk(model.get_parameter("first.weight"))
        assert list(tmp_path.iterdir()) == []

    def test_a_full_disk_is_an_error_that_names_the_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
        with pytest.raises(InputError, match=r"has no room for 32\.77 kB of a model .* TMPDIR"):
            to_disk(torch.zeros(2**12, dtype=torch.float64))


def test_a_model_that_fits_comes_back_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building fills the share that stays in memory; only then is it known that all of it fits."""
    monkeypatch.setattr(disk_tensors, "MIN_BYTES", 2**10)
    monkeypatch.setattr(disk_tensors, "_BUILD_FRACTION", 0.0)
    model = build_model(job())
    assert isinstance(model, Tied)
    assert not any(is_on_disk(tensor) for tensor in of(model).values())
    model.scale[3, 5] = 7.0
    assert model.row[5] == 7.0
    assert model.list[0] is model.copied.weight


def test_released_pages_keep_their_values() -> None:
    values = torch.rand(2**18)
    copied = to_disk(values)
    assert is_on_disk(copied)
    release_pages([copied, values])
    assert torch.equal(copied, values)


def test_gradients_that_moved_to_disk_leave_no_memory_behind() -> None:
    """glibc would keep what it has freed, and give the next gradient something else."""
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(8)]
    before_bytes = anonymous_bytes()
    with gradients_on_disk(nn.Sequential(*layers).parameters()):
        nn.Sequential(*layers)(torch.rand(4, 2048)).sum().backward()
    assert anonymous_bytes() - before_bytes < 3 * layers[0].weight.nbytes
