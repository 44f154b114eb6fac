"""A job of two minutes on members that live for 20 seconds, beside the same job on members without a limit.

Members are processes that are killed after their lifetime, as functions are. They compute a small model for real, and
sleep for most of a step. The last line is JSON: both times and their ratio, the number of hand-overs, and the largest
difference between the weights of both runs.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from unittest import mock

from msgspec import structs

import zooid
from lab.load import ForeignLoad
from zooid.coordinator.plans import offer_names
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.plans.plan import Limits
from zooid.core.resources.offer import Offer
from zooid.core.runs.events import Event, RosterChanged, StepCommitted

LIFETIME_S = 20.0
STEP_S = 0.4
NUM_GRAINS = 8

_JOB = """import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 16))


def loss(output, target):
    time.sleep(GRAIN_S)
    return nn.functional.mse_loss(output, target)


def build_data():
    chance = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(NUM_SAMPLES, 256, generator=chance), torch.rand(NUM_SAMPLES, 16, generator=chance))


job = zooid.Job(
    model=build_model,
    loss=loss,
    data=build_data,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3),
    batch_size=NUM_GRAINS,
    grain_size=1,
    epochs=1,
)
"""


def trained(folder: Path, num_steps: int, lifetime_s: float | None) -> tuple[float, int, str]:
    """How long the steps of one run took in all, how many hand-overs it had, and its URL."""
    folder.mkdir()
    job = _JOB.replace("NUM_SAMPLES", str(num_steps * NUM_GRAINS)).replace("NUM_GRAINS", str(NUM_GRAINS))
    (folder / "job.py").write_text(job.replace("GRAIN_S", str(STEP_S / NUM_GRAINS)))
    commits_s: list[float] = []
    num_changes = 0

    def watch(event: Event) -> None:
        nonlocal num_changes
        if isinstance(event, StepCommitted):
            commits_s.append(event.at_s)
        num_changes += isinstance(event, RosterChanged)

    def offer(on: str) -> Offer:
        return structs.replace(resolve_offer(on), lifetime_s=lifetime_s)

    url = (folder / "run").as_uri()
    began_s = time.monotonic()
    limits = Limits(num_replicas=1, num_stages=2, transport="tcp")
    with mock.patch.object(offer_names, "resolve_offer", offer):
        zooid.train(folder / "job.py", store=url, limits=limits, profile=False, on_event=watch)
    print(f"lifetime {lifetime_s}: {time.monotonic() - began_s:.1f} s in all, {num_changes} changes of the roster")
    return commits_s[-1] - commits_s[0], num_changes // 2, url


def main() -> None:
    parser = argparse.ArgumentParser(description="train on members that live for 20 seconds")
    parser.add_argument("--quick", action="store_true", help="a short form: a job of 40 seconds")
    num_steps = round((40 if parser.parse_args().quick else 120) / STEP_S)
    with ForeignLoad() as foreign, tempfile.TemporaryDirectory(prefix="zooid-lifetimes-") as name:
        whole_s, _, whole_url = trained(Path(name) / "whole", num_steps, None)
        limited_s, num_hand_overs, limited_url = trained(Path(name) / "limited", num_steps, LIFETIME_S)
        whole, limited = zooid.load_checkpoint(whole_url), zooid.load_checkpoint(limited_url)
        difference = max(float((whole[key] - limited[key]).abs().max()) for key in whole)
    row = {
        "lifetime_s": LIFETIME_S,
        "whole_s": round(whole_s, 2),
        "limited_s": round(limited_s, 2),
        "ratio": round(limited_s / whole_s, 4),
        "hand_overs": num_hand_overs,
        "weight_difference": difference,
        "foreign_cores": round(foreign.num_cores, 3),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
