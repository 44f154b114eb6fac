"""What a scaling policy will want later, if nothing unforeseen happens, so that members can be started ahead."""

from dataclasses import replace

from zooid.core.jobs.scaling import History, Policy
from zooid.core.runs.batch_history import changed_from
from zooid.schedule.samples import SamplePlan

_MAX_QUESTIONS = 100
"""A policy is asked about so many later steps at most."""


def next_due_step(policy: Policy, samples: SamplePlan, step: int) -> int:
    """The first step after this one for which the policy is asked, if the batch size stays."""
    return (step // policy.every_steps + 1) * policy.every_steps if policy.every_steps else samples.next_epoch(step)


def foreseen_replicas(policy: Policy, samples: SamplePlan, history: History) -> tuple[int, int] | None:
    """The first later step for which the policy wants another number of replicas, and that number.

    The policy must be foreseeable. Batch sizes that it wants before that step change as it wants. None is returned if
    the number of replicas stays.
    """
    step, (first, *later) = history.step, history.batches
    batches = tuple(later)
    for _ in range(_MAX_QUESTIONS):
        samples = replace(samples, batches=batches)
        step = next_due_step(policy, samples, step)
        if step >= samples.num_steps:
            return None
        asked = replace(history, step=step, epoch=samples.epoch_of(step), batches=(first, *batches))
        wanted = policy.ask(asked)
        if wanted.num_replicas not in (None, history.num_replicas):
            assert wanted.num_replicas is not None
            return step, wanted.num_replicas
        batch = (wanted.batch_size or asked.batch_size, wanted.rate_factor or asked.rate_factor)
        if batch != (asked.batch_size, asked.rate_factor):
            batches = changed_from(batches, step, batch)
    return None
