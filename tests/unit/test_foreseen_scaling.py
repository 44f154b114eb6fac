"""Replicas that a scaling policy will want: foreseen by members, and started in time by the coordinator."""

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_roster_changes import Scene, poll, replicas
from zooid.coordinator.runs.policy_scaling import PolicyScaling
from zooid.coordinator.runs.roster_changes import RosterChanges
from zooid.coordinator.runs.startup_times import StartUpTimes
from zooid.core.jobs.scaling import History, Policy, Wanted, adabatch, fixed, noise_scale, schedule
from zooid.core.runs import keys
from zooid.core.runs.batch_history import BatchPiece, changed_from
from zooid.core.runs.events import ScalingExpected, ScalingWanted, StepCommitted
from zooid.core.runs.planned_change import PlannedChange
from zooid.schedule.foreseen_scaling import foreseen_replicas
from zooid.schedule.samples import SamplePlan
from zooid.store import open_store
from zooid.store.planned_changes import find_newest_change

POLICIES = {
    "doubled every epoch": adabatch(every=1, max_batch=64),
    "doubled every third epoch": adabatch(every=3, max_batch=32),
    "a replica for some samples": adabatch(every=2, max_batch=40, per_replica=16),
    "rates alone": adabatch(every=1, max_batch=10),
    "a schedule": schedule({1: 20, 3: Wanted(batch_size=7, rate_factor=0.5), 4: Wanted(num_replicas=3)}),
    "every few steps": Policy(
        lambda history: Wanted(batch_size=13, num_replicas=2 if history.step > 20 else None),
        every_steps=7,
        is_foreseeable=True,
    ),
    "nothing": fixed(),
}


def first_change(policy: Policy, samples: SamplePlan, num_replicas: int) -> tuple[int, int] | None:
    """The same step by step: the policy is asked whenever it is due, as while a run trains."""
    first, pieces = BatchPiece(first_step=0, batch_size=samples.batch_size), tuple[BatchPiece, ...]()
    step = 1
    while step < samples.num_steps:
        is_due = step % policy.every_steps == 0 if policy.every_steps else samples.ends_epoch(step)
        if is_due:
            history = History(
                step=step, epoch=samples.epoch_of(step), batches=(first, *pieces), num_replicas=num_replicas
            )
            wanted = policy.ask(history)
            if wanted.num_replicas not in (None, num_replicas):
                assert wanted.num_replicas is not None
                return step, wanted.num_replicas
            batch = (wanted.batch_size or history.batch_size, wanted.rate_factor or history.rate_factor)
            pieces = changed_from(pieces, step, batch)
            samples.follow(pieces)
        step += 1
    return None


@pytest.mark.parametrize("name", POLICIES)
@given(num_samples=st.integers(20, 200), num_replicas=st.integers(1, 3))
def test_what_is_foreseen_is_what_a_run_comes_to(name: str, num_samples: int, num_replicas: int) -> None:
    policy = POLICIES[name]
    samples = SamplePlan(num_samples=num_samples, batch_size=10, grain_size=5, epochs=7, seed=0)
    history = History(step=0, epoch=0, batches=(BatchPiece(first_step=0, batch_size=10),), num_replicas=num_replicas)
    foreseen = foreseen_replicas(policy, samples, history)
    assert samples.batches == (), "nothing changes by looking ahead"
    assert foreseen == first_change(policy, samples, num_replicas)


def test_a_policy_that_learns_from_training_is_not_asked_ahead() -> None:
    assert not noise_scale(max_batch=64).is_foreseeable
    assert not Policy(lambda history: None).is_foreseeable


def test_joiners_are_guests_in_the_step_before_their_first_one() -> None:
    roster, wider = replicas("r0s0"), replicas("r0s0", "r1s0-1")

    def change(members: tuple[str, ...]) -> PlannedChange:
        seats = replicas(*members)
        return PlannedChange(
            run="run",
            number=0,
            change=0,
            attempt=1,
            cause="a policy wants it",
            members=seats.members,
            shares=seats.shares,
            first_step=10,
        )

    joining, leaving = change(("r0s0", "r1s0-1")), change(("r0s0",))
    assert [joining.is_early(roster, step) for step in (6, 7, 8, 9)] == [True, True, False, False]
    assert [leaving.is_early(wider, step) for step in (6, 7, 8, 9)] == [True, True, True, False]


class TestStartUpTimes:
    def test_larger_start_ups_are_expected_to_take_longer_only_if_they_did(self) -> None:
        times = StartUpTimes()
        assert times.expected_s(3) == times.longest_s == 0.0
        for num_processes in (1, 2, 4):
            times.note(num_processes, 20.0)
        assert times.expected_s(8) == pytest.approx(20.0), "rented members start on machines of their own"
        shared = StartUpTimes()
        for num_processes in (1, 2, 4):
            shared.note(num_processes, 1.0 + 2.0 * num_processes)
        assert shared.expected_s(8) == pytest.approx(17.0)
        assert shared.expected_s(2) == pytest.approx(5.0)

    def test_the_longest_of_each_size_counts(self) -> None:
        times = StartUpTimes()
        times.note(2, 3.0)
        times.note(2, 1.0)
        assert times.expected_s(2) == times.longest_s == 3.0


@dataclass
class Wishes(RosterChanges):
    """Planned changes that only note what was wanted, and when."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    def follow_policy(self, num_replicas: int, first_step: int = 0) -> None:
        self.asked.append((num_replicas, first_step))


def test_members_are_asked_for_when_their_start_up_fits_into_the_time_that_is_left() -> None:
    """Steps take 1 s, one process 7 s and two 10 s. So four need 16 s, and further steps to join."""
    changes = Wishes(open_store("memory://foreseen"), 0, lambda seats, plan: None, lambda name: False)
    began_s = time.time() - 1000.0
    scaling = PolicyScaling(changes, num_stages=2, started_s=began_s - 10.0, num_members=2)
    scaling.take(ScalingExpected(at_s=began_s, step=100, num_replicas=3))
    due: list[int] = []
    for step in range(100):
        scaling.take(StepCommitted(at_s=began_s + step + 1, step=step, epoch=0, loss=1.0, num_samples=4, step_s=1.0))
        if step == 1:
            assert changes.startups.expected_s(4) == pytest.approx(10.0), "all that the first members tell"
            changes.startups.note(1, 7.0)
            changes.startups.note(2, 10.0)
        scaling.poll()
        if changes.asked and not due:
            due.append(100 - step - 1)
    assert changes.asked == [(3, 100)], "once"
    assert 1.0 + 1.3 * 16.0 + 4.0 <= due[0] + 1.0 <= 1.0 + 1.3 * 16.0 + 6.0, "seconds before they are needed"
    scaling.take(ScalingWanted(at_s=began_s + 100, step=100, batch_size=8, num_replicas=3))
    assert changes.asked == [(3, 100), (3, 0)]


def test_a_newer_wish_of_the_policy_replaces_one_that_is_not_done() -> None:
    """Those that wait already get seats, and one that is not needed any more is told that it need not wait."""
    scene = Scene(open_store("memory://newer-wish"))
    first = scene.write(replicas("r0s0"))
    changes = scene.changes()
    changes.follow_policy(2, 50)
    poll(changes)
    planned = find_newest_change(scene.store, first)
    assert planned is not None
    assert planned.first_step == 50
    changes.follow_policy(2)
    poll(changes)
    assert find_newest_change(scene.store, first) == planned, "the policy wants what is planned already"
    changes.follow_policy(4)
    poll(changes)
    assert scene.started == ["r1s0-1", "r2s0-1", "r3s0-1"]
    larger = find_newest_change(scene.store, first)
    assert larger is not None
    assert (len(larger.members), larger.first_step, larger.attempt) == (4, 0, 2)
    changes.follow_policy(2)
    poll(changes)
    scene.write(replicas("r0s0", "r1s0-1", change=1))
    poll(changes)
    assert not changes.wanted
    assert scene.store.list(keys.joining_under(0)) == [keys.joining("r1s0-1", 0)]
