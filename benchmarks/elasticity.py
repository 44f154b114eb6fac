"""What it costs that members may be lost: steps of runs with and without it in turn, by four members over TCP.

Without it, members send no signs of life, keep no sums of their own, and could not go on after a loss. Everything else
is the same. Members have 12 MB of gradients, and sleep while they would compute, since this machine may have fewer
cores. The last line is JSON: medians over all runs, and what a day of signs of life costs in a store.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import zooid
from lab.load import ForeignLoad
from zooid.catalog.price_lookup import Location, storage_price
from zooid.core.plans.plan import Limits
from zooid.core.runs.events import Event, StepCommitted
from zooid.schedule.heartbeats import requests_per_s

NUM_MEMBERS = 4
BATCH_SIZE = 16
COMPUTE_S = 0.4
"""What a member sleeps for its samples of one step."""
NUM_STEPS = 30
NUM_WARM_UP = 5
NUM_TURNS = 6
STORES = ("aws.us-east-1", "gcp.us-central1")

_JOB = f"""import time

import torch
from torch import nn
from torch.utils.data import Dataset

import zooid


class Samples(Dataset):
    def __len__(self):
        return {NUM_STEPS * BATCH_SIZE}

    def __getitem__(self, index):
        time.sleep({COMPUTE_S} / {BATCH_SIZE // NUM_MEMBERS})
        return torch.full((768,), index / 500), torch.zeros(768)


def build_model():
    return nn.Sequential(nn.Linear(768, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 768))


job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=Samples,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
    batch_size={BATCH_SIZE},
    grain_size=1,
    epochs=1,
)
"""

_RIGID = """
from zooid.comm.tcp.heartbeat import Heartbeats
from zooid.core.plans.plan import Plan

Plan.survives_losses = property(lambda plan: False)
Heartbeats.start = lambda heartbeats: None
"""
"""Takes elasticity away from every process that loads the job."""


def steps_s(job_file: Path, folder: Path) -> list[float]:
    """How long each step of one run took, without those that warm up."""
    found: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, StepCommitted):
            found.append(event.step_s)

    limits = Limits(num_replicas=NUM_MEMBERS, num_stages=1, transport="tcp")
    zooid.train(job_file, store=folder.as_uri(), limits=limits, profile=False, on_event=watch)
    return found[NUM_WARM_UP:]


def compare(folder: Path, num_turns: int) -> dict[str, float]:
    """Medians of both sides, and what elasticity adds as a part of a step."""
    files = {"rigid": folder / "rigid.py", "elastic": folder / "elastic.py"}
    files["rigid"].write_text(_JOB + _RIGID)
    files["elastic"].write_text(_JOB)
    times: dict[str, list[float]] = {name: [] for name in files}
    for turn in range(num_turns):
        for name in files if turn % 2 else reversed(files):
            times[name] += steps_s(files[name], folder / f"{name}-{turn}")
            print(f"{name}: {statistics.median(times[name]):.4f} s a step", file=sys.stderr, flush=True)
    rigid_s, elastic_s = statistics.median(times["rigid"]), statistics.median(times["elastic"])
    return {"rigid_step_s": rigid_s, "elastic_step_s": elastic_s, "overhead": elastic_s / rigid_s - 1}


def daily_usd(store_at: str) -> float:
    """What the signs of life of one member cost a day, if they go through a store there."""
    price = storage_price(Location.parse(store_at))
    puts, gets = requests_per_s(NUM_MEMBERS)
    return 24 * 3600 * (puts * price.usd_per_put + gets * price.usd_per_get)


def main() -> None:
    parser = argparse.ArgumentParser(description="measure what it costs that members may be lost")
    parser.add_argument("--quick", action="store_true", help="a short form: fewer runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zooid-elasticity-") as folder, ForeignLoad() as load:
        found = compare(Path(folder), 1 if given.quick else NUM_TURNS)
    costs = {f"signs_usd_per_member_day_{at}": round(daily_usd(at), 3) for at in STORES}
    print(json.dumps({**found, **costs, "signs_usd_per_member_day_tcp": 0.0, "foreign_cores": load.num_cores}))


if __name__ == "__main__":
    main()
