"""Runs on a GPU against the composed layers in one process: `python -m tests.integration.gpu_training`.

Members share the GPU where there is only one; NCCL, which wants a GPU for each rank, is tried with a single member.
There is dropout: random numbers follow from step, grain and layer on a GPU, too.
"""

import sys
import tempfile
from pathlib import Path

import torch

import zooid
from tests.integration.jobs import plan_by_hand
from tests.integration.model_jobs import write_model_job
from tests.integration.reference import train_composed_layers
from zooid.core.plans.plan import ScheduleName, TransportName

TOLERANCE = 1e-9
CASES: tuple[tuple[str, tuple[int, int], ScheduleName, TransportName], ...] = (
    ("gpt2", (1, 1), "1f1b", "nccl"),
    ("gpt2", (2, 2), "1f1b", "tcp"),
    ("unet", (1, 3), "1f1b", "tcp"),
    ("resnet", (2, 1), "gpipe", "store"),
)


def main() -> int:
    """How many cases differ by more than rounding."""
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (num_replicas, num_stages), schedule, transport in CASES:
            job_file = write_model_job(Path(folder) / f"{name}_{transport}.py", name)
            plan = plan_by_hand(
                job_file, num_replicas=num_replicas, cuts=num_stages, schedule=schedule, transport=transport
            )
            url = (Path(folder) / f"{name}-{transport}").as_uri()
            result = zooid.train(job_file, store=url, plan=plan)
            wanted = train_composed_layers(job_file, "cuda")
            in_loss, in_weights = wanted.loss_difference(result.losses), wanted.weight_difference(result.checkpoint)
            print(
                f"{name} {num_replicas}x{num_stages} {schedule} {transport} on {torch.cuda.get_device_name()}: "
                f"loss {in_loss:.1e}, weights {in_weights:.1e}",
                flush=True,
            )
            num_wrong += max(in_loss, in_weights) > TOLERANCE
    return num_wrong


if __name__ == "__main__":
    sys.exit(main())
