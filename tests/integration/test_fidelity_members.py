"""Models with something that a trace would lose, trained by real members: weights equal those of a plain loop."""

from pathlib import Path

import pytest

import zooid
from tests.fidelity.training import largest_difference, train_plainly
from tests.integration.jobs import plan_by_hand
from tests.integration.recording import RecordingPlatform
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import TransportName

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9

_JOB = """
from tests.fidelity.cases import CASES

job = next(case for case in CASES if case.name == "{name}").job()
"""


@pytest.mark.parametrize(
    ("name", "num_replicas", "num_stages", "transport"),
    [
        ("ReversedGradient", 1, 2, "tcp"),
        ("ClampingHook", 2, 1, "store"),
        ("BackwardHook", 2, 2, "tcp"),
        ("Recomputed", 1, 2, "store"),
        ("AccumulationHook", 2, 2, "store"),
        ("TensorHookOfModel", 2, 1, "tcp"),
    ],
)
def test_members_train_what_a_plain_loop_trains(
    tmp_path: Path, forking: RecordingPlatform, name: str, num_replicas: int, num_stages: int, transport: TransportName
) -> None:
    job_file = tmp_path / "faithful.py"
    job_file.write_text(_JOB.format(name=name))
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=num_stages, transport=transport)
    result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking)
    wanted = train_plainly(load_job(job_file), grain_by_grain=False)
    assert largest_difference(zooid.load_checkpoint(result.checkpoint), wanted) <= TOLERANCE
