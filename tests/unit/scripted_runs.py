"""Runs by hand: a folder as a run leaves it, and a platform whose members only do what is asked of them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.platforms import PretendedPlatform
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.first_roster import roster_for
from zooid.core.plans.plan import Plan, Prediction, StagePlan
from zooid.core.records import decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, CheckpointRule, SampleFacts, Shard
from zooid.core.runs.events import CheckpointSaved, StepCommitted
from zooid.core.runs.spec import Failure, RunClaim, WorkerSpec
from zooid.platforms import Exit, Launch
from zooid.store import EventWriter, ObjectStore, open_store

NUM_STEPS = 20
SAMPLES = SampleFacts(num_samples=40, batch_size=8, grain_size=2, epochs=4, seed=0)
FINGERPRINT = "f"


def a_plan(num_replicas: int = 1, num_stages: int = 2, **changed: Any) -> Plan:
    offer = resolve_offer("local")
    fields: dict[str, Any] = {
        "job": "job",
        "model_fingerprint": FINGERPRINT,
        "batch_size": SAMPLES.batch_size,
        "grain_size": SAMPLES.grain_size,
        "num_replicas": num_replicas,
        "stages": tuple(
            StagePlan(first_layer=at, end_layer=at + 1, offer=offer.name, memory_bytes=1) for at in range(num_stages)
        ),
        "schedule": "gpipe",
        "transport": "store",
        "all_reduce": "auto",
        "offers": (offer,),
        "predicted": Prediction(step_s=1.0, num_steps=NUM_STEPS, startup_s=2.0, run_s=22.0, run_usd=0.0, cost_terms=()),
    }
    return Plan(**fields | changed)


def write_checkpoint(store: ObjectStore, step: int, *, is_complete: bool = True) -> None:
    shard = Shard(key=keys.shard(step, "model", 0, 1, 0), names=("weight",))
    store.put(shard.key, b"")
    manifest = CheckpointManifest(
        step=step,
        model_fingerprint=FINGERPRINT,
        samples=SAMPLES,
        optimizer_class="SGD",
        shards=(shard,),
        constants=(),
        aliases={},
    )
    if is_complete:
        store.put(keys.checkpoint_manifest(step), encode_record(manifest))


def write_run(folder: Path, *, steps: tuple[int, ...] = (0, 8)) -> ObjectStore:
    """What a run of two stages leaves that has ended after its checkpoint of the last of these steps."""
    job = folder / "job.py"
    job.write_text("job = None\n")
    store = open_store((folder / "run").as_uri())
    claim = RunClaim(run="7", job_file=str(job), checkpoints=CheckpointRule(every_steps=4, keep=3))
    store.put(keys.CLAIM, encode_record(claim))
    plan = a_plan()
    store.put(keys.PLAN, encode_record(plan))
    store.put(keys.roster(0), encode_record(roster_for(plan, "7", 0, 0)))
    for step in steps:
        write_checkpoint(store, step)
    with EventWriter(store, "r0s0", 0) as events:
        for step in range(steps[-1]):
            events.write(committed(step))
    return store


def committed(step: int) -> StepCommitted:
    return StepCommitted(at_s=time.time(), step=step, epoch=0, loss=float(step), num_samples=8, step_s=0.1)


class ScriptedPlatform(PretendedPlatform):
    """Members that end at once; the first one of a roster reports its steps."""

    def __init__(self, refuses: str = "", on_launch: Callable[[WorkerSpec], None] = lambda spec: None) -> None:
        """`refuses` is what the member that checks says about the job."""
        super().__init__()
        self.refuses = refuses
        self.on_launch = on_launch
        self.specs: list[WorkerSpec] = []

    def begin(self, launch: Launch) -> Exit | None:
        store_url, key = keys.split_spec_url(launch.ticket.spec_url)
        store = open_store(store_url)
        spec = decode_record(bytes(store.get(key)), WorkerSpec, key)
        self.specs.append(spec)
        self.on_launch(spec)
        if spec.task == "check" and self.refuses:
            failure = Failure(
                member=spec.member,
                error="JobError",
                message=self.refuses,
                traceback="",
                is_input_error=True,
                is_consequence=False,
            )
            store.put(keys.failure(spec.member, spec.roster), encode_record(failure))
            return Exit(1)
        if spec.task == "train" and spec.member == "r0s0":
            with EventWriter(store, spec.member, spec.roster) as events:
                for step in range(8, NUM_STEPS):
                    events.write(committed(step))
                url = f"{store_url}/{keys.checkpoint(NUM_STEPS)}"
                events.write(CheckpointSaved(at_s=time.time(), step=NUM_STEPS, url=url))
        return Exit(0)
