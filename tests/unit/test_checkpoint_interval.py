"""Checkpoints are as frequent as their pause and the expected rollbacks ask for."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.profiles import layer, offer, picked, profile, store_links
from zooid.cli.options import interruptions_from
from zooid.coordinator.plans.checkpoint_rules import rule_for, rule_in_words
from zooid.coordinator.plans.interruption_rates import with_interruptions
from zooid.core.abort import Abort
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule, Division, Ledger
from zooid.core.runs.events import CheckpointSaved
from zooid.schedule.checkpoint_interval import MAX_INTERVAL_S, MIN_INTERVAL_S, best_interval_s, interval_of
from zooid.store import EventWriter, open_store
from zooid.store.event_log import EventReader
from zooid.worker.checkpoints import keeper as keeping
from zooid.worker.state.loss_scaling import LossScale


@settings(derandomize=True)
@given(st.floats(0.001, 60.0), st.floats(60.0, 1e6))
def test_no_other_interval_takes_less_time(pause_s: float, between_s: float) -> None:
    """By Daly's time of w s of work with its checkpoint, for each second of work."""

    def time_s(interval_s: float) -> float:
        return math.expm1((interval_s + pause_s) / between_s) / interval_s

    best_s = best_interval_s(pause_s, between_s)
    assert MIN_INTERVAL_S <= best_s <= MAX_INTERVAL_S
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        other_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, factor * best_s))
        assert time_s(best_s) <= time_s(other_s) * (1 + 1e-9)


def test_rare_rollbacks_and_short_pauses_are_youngs() -> None:
    assert best_interval_s(0.5, 1e5) == pytest.approx(math.sqrt(2 * 0.5 * 1e5), rel=0.01)


class TestRules:
    RATED = offer(1.0, interruptions_per_hour=0.5, startup_s=60.0)

    def plan(self, on: Any, num_replicas: int = 1) -> Plan:
        limits = Limits(num_replicas=num_replicas, num_stages=1, max_members=num_replicas)
        return picked(profile([layer(1.0, parameter_bytes=4000)], store_links(1e6), epochs=50), on, limits)

    def test_an_automatic_rule_learns_from_the_plan(self) -> None:
        plan = self.plan(self.RATED)
        rule = rule_for(DEFAULT_RULE, plan)
        assert rule.between_rollbacks_s == pytest.approx(7200.0)
        assert rule.pause_s is not None
        assert interval_of(rule) == best_interval_s(rule.pause_s, 7200.0)
        assert interval_of(rule, 2.0) == best_interval_s(2.0, 7200.0), "what is measured counts more"
        said = rule_in_words(rule, plan)
        assert said.startswith("every 10s, because a rollback is expected every 2h and a checkpoint stops members for ")

    def test_replicas_need_fewer_checkpoints(self) -> None:
        alone, doubled = (rule_for(DEFAULT_RULE, self.plan(self.RATED, count)) for count in (1, 2))
        assert alone.between_rollbacks_s is not None
        assert doubled.between_rollbacks_s is not None
        assert doubled.between_rollbacks_s > 10 * alone.between_rollbacks_s

    def test_a_rule_that_is_given_stays(self) -> None:
        plan = self.plan(self.RATED)
        for rule, said in (
            (CheckpointRule(every_s=60.0), "every 1m, as given"),
            (CheckpointRule(every_steps=5), "every 5 steps, as given"),
            (CheckpointRule(every_steps=1), "every step, as given"),
            (CheckpointRule(), "only the first and the last, as given"),
        ):
            assert rule_for(rule, plan) == rule
            assert rule_in_words(rule, plan) == said

    def test_where_nothing_is_known_it_is_ten_minutes(self) -> None:
        for on, why in (
            (offer(1.0), "how often members are lost is unknown"),
            (offer(1.0, market="spot"), "how often members are lost is unknown"),
            (offer(1.0, interruptions_per_hour=0.0), "no rollback is expected"),
        ):
            plan = self.plan(on)
            rule = rule_for(DEFAULT_RULE, plan)
            assert interval_of(rule, 2.0) == 600.0
            assert rule_in_words(rule, plan) == f"every 10m, because {why}"

    def test_a_plan_without_a_profile_waits_for_a_measured_pause(self) -> None:
        plan = structs.replace(self.plan(self.RATED), predicted=None, unpredicted_steps=10)
        rule = rule_for(DEFAULT_RULE, plan)
        assert rule.between_rollbacks_s == pytest.approx(7200.0)
        assert rule.pause_s is None
        assert interval_of(rule) == 360.0, "a twentieth of the time between two rollbacks"
        assert rule_in_words(rule, plan).startswith(
            "every 6m until a checkpoint's pause is measured, because a rollback"
        )

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"is_automatic": True}, "`is_automatic` is true without `every_s`"),
            ({"between_rollbacks_s": 0.0}, "`between_rollbacks_s` is 0.0; it must be above 0"),
            ({"pause_s": -1.0}, "`pause_s` is -1.0; it must be at least 0"),
        ],
    )
    def test_others_are_rejected(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            CheckpointRule(**fields)


class TestKeeper:
    """The first member follows the pause that it measures."""

    def test_slower_copies_make_checkpoints_rarer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeping, "write_manifest", lambda *_: "url")
        store = open_store(tmp_path.as_uri())
        clock = SimpleNamespace(now_s=1000.0)
        monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: clock.now_s, time=time.time))
        rule = CheckpointRule(every_s=600.0, is_automatic=True, between_rollbacks_s=7200.0, pause_s=0.1)
        state: Any = SimpleNamespace(
            manifest=SimpleNamespace(step=0),
            saved=(0, 1000.0),
            pause_s=None,
            training=SimpleNamespace(optimizer=None),
            model_tensors=dict,
        )
        seat: Any = SimpleNamespace(rank=0, stage=0, replica=0)
        division = Division(stages=({},), parameters=frozenset(), roster=0)
        with EventWriter(store, "r0s0") as events:
            keeper = keeping.CheckpointKeeper(store, rule, division, state, seat, events, Abort())

            def slow_copy(*_: object) -> None:
                clock.now_s += 2.0

            monkeypatch.setattr(keeper._writer, "begin", slow_copy)
            predicted_s, measured_s = best_interval_s(0.1, 7200.0), best_interval_s(2.0, 7200.0)
            clock.now_s += predicted_s - 0.01
            assert not keeper.is_due(1)
            clock.now_s += 0.02
            assert keeper.is_due(1)
            keeper.begin(1, LossScale.for_job(None), Ledger())
            assert state.pause_s == pytest.approx(2.0)
            keeper.complete()
            clock.now_s += measured_s - 0.01
            assert not keeper.is_due(2)
            clock.now_s += 0.02
            assert keeper.is_due(2)
            assert keeper._written is not None
            keeper._written.result()
        [saved] = [event for event in EventReader(store).read_new() if isinstance(event, CheckpointSaved)]
        assert saved.pause_s == pytest.approx(2.0)
        assert saved.next_in_s == pytest.approx(measured_s)


class TestRates:
    OFFERS = (offer(name="aws.ec2.p3.2xlarge"), offer(name="local:aws.ec2.p3.8xlarge"), offer(name="gcp.t4"))

    def test_the_longest_name_decides(self) -> None:
        rated = with_interruptions(self.OFFERS, {"aws": 1.0, "aws.ec2.p3.8xlarge": 0.25})
        assert [each.interruptions_per_hour for each in rated] == [1.0, 0.25, None]
        assert with_interruptions(self.OFFERS, None) == self.OFFERS

    def test_names_of_no_offer_are_rejected(self) -> None:
        with pytest.raises(InputError, match="a rate of interruptions is given for 'azure', but the offers are aws"):
            with_interruptions(self.OFFERS, {"azure": 1.0})

    def test_texts_become_rates(self) -> None:
        assert interruptions_from(["aws.ec2=0.5", "gcp = 2"]) == {"aws.ec2": 0.5, "gcp": 2.0}
        assert interruptions_from(None) is None

    @pytest.mark.parametrize("text", ["aws", "aws=", "=1", "aws=-1", "aws=nan", "aws=1e9", "aws=often"])
    def test_other_texts_are_rejected(self, text: str) -> None:
        with pytest.raises(InputError, match="write an offer and its losses of a member per hour"):
            interruptions_from([text])
