"""A job with all that a job may ask for, every call of whose loss a test can get hold of; and runs without a crew."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs
from torch import distributed as dist

from lab.runs import run_by_hand
from tests.integration.jobs import AUGMENTED, write_job
from zooid.core.abort import Abort
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.store import EventWriter, ObjectStore
from zooid.worker.checkpoints.keeper import CheckpointKeeper
from zooid.worker.member import train_task
from zooid.worker.member.training_loop import Trainer

NUM_SAMPLES = 52
NUM_EVALUATED = 31
BATCH_SIZE = 20
GRAIN_SIZE = 4
STEPS_PER_EPOCH = 3
"""Of 5, 5 and 3 grains."""

_CODE = (
    AUGMENTED
    + f"""
class Normed(nn.Module):
    \"\"\"Statistics in both halves, which follow fast enough for a few steps to train to something, a skip across the
    middle, and a value that only evaluation uses.\"\"\"

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=0.4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.last_norm = nn.BatchNorm1d(64, momentum=0.4)
        self.hidden = nn.Linear(64, 16)
        self.out = nn.Linear(16, 10)
        self.register_buffer("temperature", torch.full((1,), 1.5))

    def forward(self, images):
        values = F.relu(self.norm(self.first(images)))
        values = F.max_pool2d(values + F.dropout(self.second(values), 0.2, self.training), 2).flatten(1)
        values = self.out(torch.tanh(self.hidden(self.last_norm(values))))
        return values if self.training else values / self.temperature


on_loss = lambda: None
\"\"\"A test may replace it.\"\"\"


def hooked_loss(output, target):
    on_loss()
    return F.cross_entropy(output, target)


def build_evaluation():
    generator = torch.Generator().manual_seed(6)
    images = torch.rand({NUM_EVALUATED}, 1, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(images, torch.randint(10, ({NUM_EVALUATED},), generator=generator))


def accuracy(output, target):
    return (output.argmax(1) == target).double().mean()


def weighted_margin(output, target):
    \"\"\"Samples of a high class weigh more.\"\"\"
    weights = 1.0 + target
    margins = output.gather(1, target[:, None])[:, 0] - output.mean(1)
    return (margins * weights).sum(), weights.sum()

"""
)

FIELDS = {
    "model": "lambda: Normed().double()",
    "data": "lambda: Augmented(*build_data().tensors)",
    "loss": "hooked_loss",
    "optimizer": "lambda named: torch.optim.AdamW(named, lr=1e-2)",
    "scheduler": "lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)",
    "clip_norm": "0.5",
    "batch_size": str(BATCH_SIZE),
    "grain_size": str(GRAIN_SIZE),
    "epochs": "3",
}
EVALUATION = {
    "evaluation": "build_evaluation",
    "metrics": "{'accuracy': accuracy, 'margin': weighted_margin}",
}


def write_hooked_job(file: Path, *, extra: str = "", fields: Mapping[str, str] | None = None) -> Path:
    """A job file; `extra` is code that `fields` may name."""
    return write_job(file, num_samples=NUM_SAMPLES, extra=_CODE + extra, fields={**FIELDS, **(fields or {})})


@contextmanager
def at_work_alone(
    job_file: Path, rule: CheckpointRule | None = None, abort: Abort | None = None
) -> Iterator[tuple[Trainer, CheckpointKeeper, EventWriter, ObjectStore]]:
    """One member that trains the whole model, in this process."""
    with run_by_hand(job_file, 1) as (store, specs):
        spec = specs[0]
        if rule is not None:
            spec = structs.replace(spec, checkpoints=rule)
        try:
            with (
                train_task.open_member(spec, store, abort or Abort()) as member,
                member.under(member.first_roster) as (trainer, keeper),
            ):
                yield trainer, keeper, member.events, store
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def hook_loss(job_file: Path, hook: Callable[[], None]) -> None:
    """Call this whenever the job that was loaded last computes a loss."""
    vars(sys.modules[f"zooid_job_{job_file.stem}"])["on_loss"] = hook
