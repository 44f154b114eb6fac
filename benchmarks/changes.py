"""The pause of every kind of planned change, beside the time of a step: over TCP, and through a store.

Members have 10 MB of weights and 10 MB of optimizer state, and sleep while they would compute, since this machine may
have fewer cores. A pause is the time between the commits around a change, beyond the median time of a step in the
layout that computed it. A change with new members has two such commits: the one of the step in which they receive
their state, and the one of their first step. Each line is JSON; `pause_s` and `pause_steps` are medians.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zooid
from lab.load import ForeignLoad
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.runs.events import Event, RosterChanged, StepCommitted
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.processes import LocalHandle

NUM_GRAINS = 8
GRAIN_S = 0.06
"""What the last stage sleeps for a grain, so that a step of one replica takes about half a second."""
NUM_STEPS = 60
FIRST_STEP = 12
"""Steps before the first change, whose times are the base."""
CALM_STEPS = 12
"""Steps after a change before the next."""

_JOB = f"""import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def build_model():
    sizes = [768, 896, 896, 896, 768]
    return nn.Sequential(*(nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in zip(sizes, sizes[1:])))


def loss(output, target):
    time.sleep({GRAIN_S})
    return nn.functional.mse_loss(output, target)


job = zooid.Job(
    model=build_model,
    loss=loss,
    data=lambda: TensorDataset(torch.rand({NUM_STEPS * NUM_GRAINS}, 768), torch.zeros({NUM_STEPS * NUM_GRAINS}, 768)),
    optimizer=lambda named: torch.optim.SGD(named, lr=1e-4, momentum=0.9),
    batch_size={NUM_GRAINS},
    grain_size=1,
    epochs=1,
)
"""

Layout = tuple[int, int]
Ask = Layout | str
"""A layout, or the name of a member that gets a notice."""


@dataclass(frozen=True)
class Kind:
    """A kind of change: the layout in which a run begins, and what it is asked for in turn."""

    name: str
    layout: Layout
    asks: tuple[Ask, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


KINDS = (
    Kind("join", (1, 1), ((2, 1),)),
    Kind("leave with notice", (2, 1), ("r1s0",), {"ZOOID_NOTICE_SECONDS": "1"}),
    Kind("successor", (1, 1), ("r0s0", "r0s0-1")),
    Kind("successors of a pipeline", (1, 2), ("r0s0", "r0s1")),
    Kind("scale 2 to 4 to 2", (2, 1), ((4, 1), (2, 1))),
    Kind("new cuts", (1, 2), ((1, 3),)),
    Kind("2x2 to 1x4", (2, 2), ((1, 4),)),
)


class _Platform(LocalPlatform):
    """The local platform, with the process of each member."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: dict[str, LocalHandle] = {}

    def launch(self, launch: Launch) -> LocalHandle:
        handle = self.handles[launch.member] = super().launch(launch)
        return handle


def pauses_s(kind: Kind, transport: TransportName, folder: Path) -> tuple[list[float], float]:
    """The pause of each change of one run, and the median time of its steps."""
    url = (folder / "run").as_uri()
    (folder / "job.py").write_text(_JOB)
    platform = _Platform()
    left = list(kind.asks)
    seen: list[StepCommitted | RosterChanged] = []
    next_ask = FIRST_STEP

    def watch(event: Event) -> None:
        nonlocal next_ask
        if isinstance(event, StepCommitted | RosterChanged):
            seen.append(event)
        if isinstance(event, RosterChanged):
            next_ask = event.step + CALM_STEPS
        elif isinstance(event, StepCommitted) and left and event.step >= next_ask:
            ask = left.pop(0)
            next_ask = NUM_STEPS
            if isinstance(ask, str):
                pid = platform.handles[ask].process.pid
                assert pid is not None
                os.kill(pid, signal.SIGUSR1)
            else:
                zooid.scale(url, *ask)

    before = {name: os.environ.get(name) for name in kind.environment}
    os.environ.update(kind.environment)
    try:
        limits = Limits(num_replicas=kind.layout[0], num_stages=kind.layout[1], transport=transport, max_members=8)
        zooid.train(folder / "job.py", store=url, limits=limits, profile=False, on_event=watch, platform=platform)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    if left:
        raise SystemExit(f"{kind.name}: the run ended before it was asked for {left}")
    return _pauses_s(seen)


def _pauses_s(seen: list[StepCommitted | RosterChanged]) -> tuple[list[float], float]:
    """The time between two commits around each change, beyond a step's time in the layout that computed it."""
    commits = {event.step: event.at_s for event in seen if isinstance(event, StepCommitted)}
    changes = sorted((event.step, len(event.members)) for event in seen if isinstance(event, RosterChanged))
    firsts = {step for step, _ in changes}
    sections: dict[int, list[float]] = {}
    """Times of ordinary steps, by the number of changes before them."""
    for step in range(2, max(commits) + 1):
        if step in commits and step - 1 in commits and step not in firsts:
            number = sum(first <= step for first, _ in changes)
            sections.setdefault(number, []).append(commits[step] - commits[step - 1])
    ordinary_s = {number: statistics.median(times) for number, times in sections.items()}
    pauses: list[float] = []
    for number, (step, _) in enumerate(changes, start=1):
        took_s = commits[step] - commits[step - 1]
        is_hosted = number not in ordinary_s  # a step with guests, which the members before have computed
        base_s = ordinary_s[number - 1] if is_hosted else ordinary_s[number]
        if is_hosted or number - 1 in ordinary_s:
            pauses.append(took_s - base_s)
        else:
            pauses[-1] += took_s - base_s
    return pauses, statistics.median(time for times in sections.values() for time in times)


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the pauses of planned changes")
    parser.add_argument("--quick", action="store_true", help="a short form: one run of each kind, over TCP")
    quick = parser.parse_args().quick
    transports: tuple[TransportName, ...] = ("tcp",) if quick else ("tcp", "store")
    with ForeignLoad() as foreign:
        for transport in transports:
            for kind in KINDS:
                found: list[tuple[float, float]] = []
                for _ in range(1 if quick else 3):
                    with tempfile.TemporaryDirectory(prefix="zooid-changes-") as folder:
                        pauses, step_s = pauses_s(kind, transport, Path(folder))
                    found += [(pause_s, step_s) for pause_s in pauses]
                    print(f"{kind.name} over {transport}: {pauses}", file=sys.stderr, flush=True)
                row = {
                    "change": kind.name,
                    "transport": transport,
                    "pause_s": round(statistics.median(pause_s for pause_s, _ in found), 4),
                    "step_s": round(statistics.median(step_s for _, step_s in found), 4),
                    "pause_steps": round(statistics.median(pause_s / step_s for pause_s, step_s in found), 3),
                }
                print(json.dumps(row), flush=True)
    print(json.dumps({"foreign_cores": round(foreign.num_cores, 3)}))


if __name__ == "__main__":
    main()
