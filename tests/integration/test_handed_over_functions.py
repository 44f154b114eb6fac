"""Runs on functions that live for twenty seconds, and hand over to successors again and again.

Digits train on four functions with a limit of just twenty seconds. A member of GPT-2 imports transformers, which takes
three seconds of a core. So where four members share two cores, its functions live longer, and the test says how long.
"""

import math
from pathlib import Path

import pytest

import zooid
from lab.endpoints.function_scene import function_scene
from lab.waiting import wait_until
from tests.integration.reference import train_composed_layers
from tests.integration.rented_run import slowness
from tests.integration.travelling_jobs import TOLERANCE, travelling_jobs
from tests.scenes import or_skip
from zooid.core.plans.plan import Limits
from zooid.core.runs.events import Event, MemberExited, RosterChanged, RunStarted

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

LIFETIME_S, STARTUP_S = 20.0, 6.5
"""The time limit of functions, and what they need to start."""
LAYOUTS = [("digits", 2, 2), ("gpt2", 4, 1), ("digits", 1, 2), ("gpt2", 2, 1)]
"""Jobs with their replicas and stages."""
IMPORTING = {"gpt2"}
"""Jobs whose packages take seconds of processor time to import, in every member. Functions live longer where members
share cores for that."""
EPOCHS, EPOCH_STEPS = {"digits": 12, "gpt2": 24}, {"digits": 4, "gpt2": 3}
ENOUGH_FACTOR = 3.0
"""So many epochs are long enough for functions that live this many times longer."""
PACED = """
import dataclasses
import os
import time

from torch.utils.data import Dataset

samples_of = job.data


class Paced(Dataset):
    def __init__(self):
        self.samples = samples_of()

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            time.sleep(PAUSE_S)
        return self.samples[index]


job = dataclasses.replace(job, data=Paced, epochs=EPOCHS)
"""
"""The same job for longer, at a pace that leaves the cores of this machine to those who start.

All members pause at the same time, as if they computed. Members that wait for one that pauses would look for its
messages."""
PAUSES_S = {"digits": 0.5 / 60, "gpt2": 0.5 / 16}
"""Pauses after each sample, which make half a second for each step and replica."""


def paced_job(job_file: Path, epochs: int, pause_s: float) -> Path:
    paced = job_file.with_name("paced.py")
    values = {"EPOCHS": epochs, "PAUSE_S": pause_s}
    text = PACED
    for constant, value in values.items():
        text = text.replace(constant, str(value))
    paced.write_text(job_file.read_text() + text)
    return paced


@pytest.mark.parametrize(("job", "num_replicas", "num_stages"), LAYOUTS)
def test_a_run_outlives_its_functions(
    job: str,
    num_replicas: int,
    num_stages: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Functions of 2048 MB train for longer than any of them lives."""
    factor = slowness(num_replicas * num_stages) if job in IMPORTING else 1.0
    lifetime_s = LIFETIME_S * factor
    epochs = math.ceil(EPOCHS[job] * max(1.0, factor / ENOUGH_FACTOR))
    job_file, _ = travelling_jobs(tmp_path_factory.mktemp)[job]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(job_file.parent)
        paced = paced_job(job_file, epochs, num_replicas * PAUSES_S[job])
        expected = train_composed_layers(paced)
    events: list[Event] = []
    with or_skip(function_scene(lifetime=f"{lifetime_s:.0f} s", startup=f"{STARTUP_S * factor:.0f} s")) as scene:
        assert scene.url is not None
        result = zooid.train(
            paced,
            store=scene.url(f"{job}-handed-over"),
            on="aws.lambda.2048",
            limits=Limits(num_replicas=num_replicas, num_stages=num_stages),
            profile=False,
            on_event=events.append,
        )
        weight_difference = expected.weight_difference(result.store)
        [run] = [event.run for event in events if isinstance(event, RunStarted)]
        wait_until(lambda: not scene.leftovers(run))
    assert len(result.losses) == epochs * EPOCH_STEPS[job]
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert weight_difference <= TOLERANCE
    assert not [event for event in events if isinstance(event, MemberExited)], "nobody was lost"
    changes = [event for event in events if isinstance(event, RosterChanged)]
    assert {event.ruling for event in changes} == {"planned"}
    first = {f"r{replica}s{stage}" for replica in range(num_replicas) for stage in range(num_stages)}
    seated = [set(event.members) for event in changes if len(event.members) == len(first)]
    assert not first & seated[-1], "none of the first members lives so long"
    num_successors = len(set().union(*seated) - first)
    print(f"{num_successors} hand-overs of functions that live for {lifetime_s:.0f} s, in {result.wall_s:.0f} s")
    assert num_successors >= 2 * len(first), "every seat was handed over more than once"
