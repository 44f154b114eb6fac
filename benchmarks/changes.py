"""The pause of every kind of planned change, beside the time of a step: over TCP, and through a store.

Members have 4 MB of weights and 4 MB of optimizer state, and sleep while they would compute, since this machine may
have fewer cores. Where more processes run than there are cores, all of them sleep longer by that factor, so that a step
leaves each as much processor time as a core of its own would.

A pause is the excess of the times between commits over the median time of a calm step in the layout that computed the
step. It is summed from the first step under another roster to the second step after the last one. In `pause_steps`,
each excess is a fraction of such a calm step. Both are medians over all changes of a kind.

New members start and connect before a change. On a machine with few cores, that slows those that train:
`preparing_steps` is the excess of the steps from the request until the change. Each line is JSON.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zooid
from lab.load import ForeignLoad
from lab.sessions import session_of
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.runs.events import Event, RosterChanged, StepCommitted
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform

NUM_GRAINS = 8
GRAIN_S = 0.06
"""What the last stage sleeps for a grain on enough cores: a step of one replica takes about half a second."""
NUM_STEPS = 1000
"""More than any run needs, which is stopped after its last change."""
NUM_SAMPLES = 80
CALM_STEPS = 8
"""Steps before the first change and after each, whose times are the base."""
SETTLED_STEPS = 2
"""Steps after a change that belong to its pause."""

_JOB = f"""import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def build_model():
    sizes = [448, 512, 512, 512, 448]
    return nn.Sequential(*(nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in zip(sizes, sizes[1:])))


def loss(output, target):
    time.sleep(GRAIN_S)
    return nn.functional.mse_loss(output, target)


job = zooid.Job(
    model=build_model,
    loss=loss,
    data=lambda: TensorDataset(torch.rand({NUM_SAMPLES}, 448), torch.zeros({NUM_SAMPLES}, 448)),
    optimizer=lambda named: torch.optim.SGD(named, lr=1e-4, momentum=0.9),
    batch_size={NUM_GRAINS},
    grain_size=1,
    epochs={NUM_STEPS * NUM_GRAINS // NUM_SAMPLES},
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

    @property
    def grain_s(self) -> float:
        """What the last stage sleeps for a grain on this machine."""
        layouts = [self.layout, *(ask for ask in self.asks if not isinstance(ask, str))]
        sizes = [num_replicas * num_stages for num_replicas, num_stages in layouts]
        has_other_stages = len({num_stages for _, num_stages in layouts}) > 1
        num_processes = sum(sorted(sizes)[-2:]) if has_other_stages else max(sizes)  # all members are new with new cuts
        num_processes += any(isinstance(ask, str) for ask in self.asks)  # and a successor beside its predecessor
        return GRAIN_S * max(1.0, num_processes / len(os.sched_getaffinity(0)))


KINDS = (
    Kind("join", (1, 1), ((2, 1), (3, 1), (4, 1))),
    Kind("leave with notice", (4, 1), ("r3s0", "r2s0", "r1s0"), {"ZOOID_NOTICE_SECONDS": "1"}),
    Kind("successor", (1, 1), ("r0s0", "r0s0-1", "r0s0-2")),
    Kind("successors of a pipeline", (1, 2), ("r0s0", "r0s1", "r0s0-1")),
    Kind("scale 2 to 4 to 2", (2, 1), ((4, 1), (2, 1), (4, 1), (2, 1))),
    Kind("new cuts", (1, 2), ((1, 3), (1, 2), (1, 3))),
    Kind("2x2 to 1x4", (2, 2), ((1, 4), (2, 2), (1, 4))),
)


class _Platform(LocalPlatform):
    """The local platform, with the process of each member."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: dict[str, Launch] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        self.launches |= {launch.member: launch for launch in launches}
        super().create(launches)


@dataclass(frozen=True)
class Pause:
    """One change of a run."""

    seconds: float
    steps: float
    preparing_steps: float
    step_s: float
    """Median time of a calm step, in the faster of the two layouts."""


def pauses(kind: Kind, transport: TransportName, folder: Path) -> list[Pause]:
    """The pause of each change of one run."""
    url = (folder / "run").as_uri()
    (folder / "job.py").write_text(_JOB.replace("GRAIN_S", str(kind.grain_s)))
    platform = _Platform()
    left = list(kind.asks)
    asked: list[int] = []
    commits: dict[int, float] = {}
    changes: list[tuple[int, int]] = []
    """The first step under each roster, and the number of asks before."""
    next_ask = CALM_STEPS
    stopping: threading.Thread | None = None

    def watch(event: Event) -> None:
        nonlocal next_ask, stopping
        if isinstance(event, RosterChanged):
            changes.append((event.step, len(asked)))
            next_ask = event.step + SETTLED_STEPS + CALM_STEPS
        if not isinstance(event, StepCommitted):
            return
        commits[event.step] = event.at_s
        if event.step < next_ask or (stopping is not None):
            return
        if not left:
            stopping = threading.Thread(target=zooid.stop, args=(url,))
            stopping.start()
            return
        ask = left.pop(0)
        asked.append(event.step)
        next_ask = NUM_STEPS
        if isinstance(ask, str):
            os.kill(session_of(platform.launches[ask]), signal.SIGUSR1)
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
    if stopping is None:
        raise SystemExit(f"{kind.name}: the run ended before it was asked for {left}, or before that was done")
    stopping.join()
    return [_pause(number, asked, changes, commits) for number in range(len(asked))]


def _pause(number: int, asked: list[int], changes: list[tuple[int, int]], commits: Mapping[int, float]) -> Pause:
    """The pause of the change that was asked for by this number."""
    times = {step: commits[step] - commits[step - 1] for step in commits if step - 1 in commits}
    first, last = (pick(step for step, num_asks in changes if num_asks == number + 1) for pick in (min, max))
    last_before = max((step for step, num_asks in changes if num_asks <= number), default=1)
    end = asked[number + 1] if number + 1 < len(asked) else max(commits)
    before_s = statistics.median(times[step] for step in range(last_before + SETTLED_STEPS + 1, asked[number] + 1))
    after_s = statistics.median(times[step] for step in range(last + SETTLED_STEPS + 1, end + 1))
    prepared = range(asked[number] + 1, first)
    around = {step: before_s if step < last else after_s for step in range(first, last + SETTLED_STEPS + 1)}
    return Pause(
        seconds=sum(times[step] - calm_s for step, calm_s in around.items()),
        steps=sum(times[step] / calm_s - 1 for step, calm_s in around.items()),
        preparing_steps=sum(times[step] / before_s - 1 for step in prepared),
        step_s=min(before_s, after_s),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the pauses of planned changes")
    parser.add_argument("--quick", action="store_true", help="a short form: only over TCP")
    parser.add_argument("--transport", choices=("tcp", "store"), help="measure only over this transport")
    parser.add_argument("--change", choices=[kind.name for kind in KINDS], help="measure only this kind of change")
    options = parser.parse_args()
    transports: tuple[TransportName, ...] = ("tcp",) if options.quick else ("tcp", "store")
    with ForeignLoad() as foreign:
        for transport in transports if options.transport is None else (options.transport,):
            for kind in KINDS:
                if options.change in (None, kind.name):
                    print(json.dumps(_row(kind, transport)), flush=True)
    print(json.dumps({"foreign_cores": round(foreign.num_cores, 3)}))


def _row(kind: Kind, transport: TransportName) -> dict[str, str | int | float]:
    with tempfile.TemporaryDirectory(prefix="zooid-changes-") as folder:
        found = pauses(kind, transport, Path(folder))
    print(f"{kind.name} over {transport}: {found}", file=sys.stderr, flush=True)
    return {
        "change": kind.name,
        "transport": transport,
        "pause_steps": round(statistics.median(pause.steps for pause in found), 3),
        "pause_s": round(statistics.median(pause.seconds for pause in found), 4),
        "step_s": round(statistics.median(pause.step_s for pause in found), 4),
        "preparing_steps": round(statistics.median(pause.preparing_steps for pause in found), 3),
        "num_changes": len(found),
    }


if __name__ == "__main__":
    main()
