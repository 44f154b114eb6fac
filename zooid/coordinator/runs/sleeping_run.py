"""A run whose members have no job: they take seats, vote and exchange zeros, and sleep when others compute."""

import secrets

from msgspec import structs

from zooid.coordinator.runs.relay import OnEvent
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.supervision import Run
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, CheckpointRule, SampleFacts
from zooid.core.runs.spec import RunClaim
from zooid.platforms import Platform
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import last_step
from zooid.store.claims import last_claim


class SleepingRun:
    """The folder of such a run, from which it is started and resumed. Its checkpoints have no tensors."""

    def __init__(self, store: ObjectStore, plan: Plan, pace: RehearsalPace, checkpoints: CheckpointRule) -> None:
        """Write all that members need into an empty folder."""
        self.plan = _of_steps(plan.emulated(), pace.num_steps)
        self._store = store
        self._claim = RunClaim(run=secrets.token_hex(4), checkpoints=checkpoints, nonce=secrets.token_hex(8))
        store.create(keys.CLAIM, encode_record(self._claim))
        store.put(keys.plan(0), encode_record(self.plan))
        store.put(keys.PACE, encode_record(pace))
        store.put(keys.checkpoint_manifest(0), encode_record(_empty_checkpoint(self.plan)))

    def start(self, platform: Platform, on_event: OnEvent) -> RunResult:
        """Run from the first step on."""
        with Run(self._store, self._claim, 0, platform, on_event) as run:
            return run.train(self.plan)

    def resume(self, platform: Platform, on_event: OnEvent) -> RunResult:
        """Run from the last checkpoint on, at the cost of what was before."""
        number = last_claim(self._store)[0] + 1
        with Run(self._store, self._claim, number, platform, on_event) as run:
            self._store.put(keys.plan(number), encode_record(self.plan))
            run.carry_over_costs(self.plan)
            return run.train(self.plan, last_step(self._store))


def _of_steps(plan: Plan, num_steps: int) -> Plan:
    """Return the plan of a run that has so many steps."""
    if plan.predicted is None:
        return structs.replace(plan, unpredicted_steps=num_steps)
    return structs.replace(plan, predicted=structs.replace(plan.predicted, num_steps=num_steps))


def _empty_checkpoint(plan: Plan) -> CheckpointManifest:
    samples = SampleFacts(
        num_samples=plan.batch_size * plan.num_steps,
        batch_size=plan.batch_size,
        grain_size=plan.grain_size,
        epochs=1,
        seed=0,
        is_in_order=True,
    )
    return CheckpointManifest(
        step=0,
        model_fingerprint=plan.model_fingerprint,
        samples=samples,
        optimizer_class="",
        shards=(),
        constants=(),
        aliases={},
    )
