"""The tasks of one member before all others start: `prepare` a new run, or `check` the job of a resumed run.

Both trace the model, so that no other member has to. They also compare the job with its plan or its last checkpoint:
the samples of a step, and what is done with them, must not change within a run.
"""

import time

from zooid.core.errors import JobError, ObjectNotFound
from zooid.core.jobs.job import load_job
from zooid.core.plans.profile import Profile
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import OptimizerChanged
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import CheckedJob, LayeredModel, check_data, check_job, faithful_layers, trace_job
from zooid.store import EventWriter, ObjectStore
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.stored_records import read_plan, read_record
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.optimizer_state import optimizer_settings
from zooid.worker.member.even_plan import even_plan
from zooid.worker.member.job_fit import changes_since, check_plan
from zooid.worker.member.stored_trace import layers_of, write_trace


def prepare(spec: WorkerSpec, store: ObjectStore) -> str:
    """Check the job and its plan, write the model's trace and checkpoint 0, and return the digest of the trace.

    If only a layout is given, the plan is made here. Other members may start when the model is traced.
    """
    checked = check_job(load_job(spec.job_file))
    layered = _compared_layers(checked, store)
    num_stages = spec.layout.num_stages if spec.layout else len(read_plan(store, spec.roster).stages)
    if layered.why_whole and num_stages > 1:
        raise JobError(f"the model cannot be trained in {num_stages} stages: {layered.why_whole}; plan again")
    if spec.layout is not None:
        made = even_plan(checked.job, checked.num_samples, layered, spec.layout, spec.job_file)
        store.put(keys.plan(spec.roster), encode_record(made))
    plan = read_plan(store, spec.roster)
    check_plan(plan, layered, checked.job, checked.num_samples)
    with EventWriter(store, spec.member, spec.roster, reports_usage=True) as events:
        digest = write_trace(store, layered, events.write)
        contents.write_initial(store, checked, layered, plan)
    return digest


def plan_layout(spec: WorkerSpec, store: ObjectStore) -> None:
    """Make a plan in another layout for members that train already; its grains stay the same."""
    assert spec.layout is not None
    before = read_plan(store, spec.roster)
    job = load_job(spec.job_file)
    data = check_data(job)
    layered = layers_of(store, spec.trace, job, data, why_whole=before.why_whole)
    plan = even_plan(job, len(data), layered, spec.layout, spec.job_file, before.grain_size)
    store.put(keys.changed_plan(spec.plan), encode_record(plan))


def check(spec: WorkerSpec, store: ObjectStore) -> None:
    """Check the job as for a new run, and compare it with the checkpoint. Only the optimizer's settings may change."""
    manifest = read_manifest(store, last_step(store))
    checked = check_job(load_job(spec.job_file))
    plan = read_plan(store, spec.roster)
    layered = trace_job(checked.job, checked.example, why_whole=plan.why_whole)
    facts = contents.sample_facts(checked.job, checked.data, checked.job.grain_size or manifest.samples.grain_size)
    changes = changes_since(manifest, facts, checked.data, layered.fingerprint)
    optimizer = contents.whole_optimizer(checked)
    if (kind := type(optimizer).__name__) != manifest.optimizer_class:
        changes.append(f"its optimizer was {manifest.optimizer_class}, and is {kind}")
    if (meaning := checked.loss_form.meaning) != manifest.loss_form.meaning:
        changes.append(f"its loss was {manifest.loss_form.meaning}, and is {meaning}")
    if changes:
        raise JobError(
            f"{spec.job_file} has changed since the checkpoint of step {manifest.step} in {store.url}: "
            f"{'; '.join(changes)}. Put that back to resume the run, or train in another folder"
        )
    settings, before = optimizer_settings(optimizer), manifest.optimizer_settings
    with EventWriter(store, spec.member, spec.roster, reports_usage=True) as events:
        write_trace(store, layered, events.write)
        if before and settings != before:
            events.write(OptimizerChanged(at_s=time.time(), settings=settings, before=before))


def _compared_layers(checked: CheckedJob, store: ObjectStore) -> LayeredModel:
    """The layers of a new run's model, compared with the model unless a profile has done that already."""
    try:
        profile = read_record(store, keys.PROFILE, Profile)
    except ObjectNotFound:
        return faithful_layers(checked)
    layered = trace_job(checked.job, checked.example, why_whole=profile.why_whole)
    return layered if layered.fingerprint == profile.model_fingerprint else faithful_layers(checked)
