"""Records are read back exactly, or refused with the name of what is wrong; their values make sense together."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.core.errors import RecordError
from zooid.core.plans.plan import CostTerm, Limits, Plan, Prediction, StagePlan
from zooid.core.plans.profile import Bytes, DeviceKind, LayerProfile, Profile, Spread, TimePoint
from zooid.core.records import FileRecord, decode_record, encode_record
from zooid.core.resources.link import Link
from zooid.core.resources.offer import EgressPrice, Offer, StoragePrice
from zooid.core.runs.roster import Answer, Joining, Roster, RosterMember, RosterSeat, Ruling


def an_offer(**changed: Any) -> Offer:
    valid: dict[str, Any] = {
        "name": "local",
        "platform": "local",
        "kind": "owned",
        "market": "owned",
        "region": "local",
        "site": "local",
        "vcpus": 1.0,
        "memory_bytes": 10**9,
        "usd_per_hour": 0.0,
        "source": "this machine",
        "date": "2024-05-01",
    }
    return Offer(**valid | changed)


def a_stage(first: int, end: int, offer: str = "local") -> StagePlan:
    return StagePlan(first_layer=first, end_layer=end, offer=offer, memory_bytes=10**8)


def a_plan(**changed: Any) -> Plan:
    prediction = Prediction(
        step_s=0.5,
        num_steps=10,
        startup_s=2.0,
        run_s=7.0,
        run_usd=0.1,
        cost_terms=(CostTerm(kind="compute", usd=0.1),),
    )
    valid: dict[str, Any] = {
        "job": "job.py",
        "model_fingerprint": "abc",
        "batch_size": 64,
        "grain_size": 8,
        "num_replicas": 2,
        "stages": (a_stage(0, 3), a_stage(3, 7)),
        "schedule": "gpipe",
        "transport": "store",
        "all_reduce": "three_phase",
        "offers": (an_offer(),),
        "predicted": prediction,
    }
    return Plan(**valid | changed)


def a_link(**changed: Any) -> Link:
    valid: dict[str, Any] = {"from_site": "local", "to_site": "store", "bandwidth_bytes_per_s": 2e8, "rtt_s": 0.001}
    return Link(**valid | {"source": "measured", "date": "2024-05-01"} | changed)


def a_profile(**changed: Any) -> Profile:
    valid: dict[str, Any] = {
        "job": "job.py",
        "model_fingerprint": "abc",
        "zooid_version": "0.1.0",
        "torch_version": "2.12.0",
        "device": DeviceKind(kind="cpu", name="cpu", num_threads=1, num_cores=2.0, score=1e10),
        "num_samples": 1000,
        "batch_size": 64,
        "date": "2024-05-01",
        "largest_grain": 64,
        "inputs": Bytes(),
        "memory_overhead": 0.0,
        "knee": 4,
        "spread": Spread(of_steps=0.01, of_runs=0.02),
        "epochs": 3,
        "load_s_per_sample": 1e-6,
        "reduce_s_per_byte": 1e-10,
        "startup_cpu_s": 5.0,
        "runtime_bytes": 300_000_000,
        "optimizer_s_per_byte": 1e-10,
        "optimizer_bytes_per_parameter_byte": 2.0,
        "layers": (a_layer((1, 0.1)),),
        "links": (a_link(),),
    }
    return Profile(**valid | changed)


def a_layer(*points: tuple[int, float]) -> LayerProfile:
    return LayerProfile(
        name="fc",
        parameter_bytes=400,
        buffer_bytes=0,
        boundary=Bytes(per_sample=40.0),
        activations=Bytes(per_sample=80.0),
        forward_peak=Bytes(per_sample=100.0),
        backward_peak=Bytes(per_sample=120.0, fixed=10.0),
        points=tuple(TimePoint(num_samples=n, forward_s=t, backward_s=2 * t) for n, t in points),
    )


def a_roster(**changed: Any) -> Roster:
    seats = [(replica, stage) for replica in range(2) for stage in range(2)]
    members = tuple(RosterMember(name=f"m{i}", replica=a, stage=b) for i, (a, b) in enumerate(seats))
    valid: dict[str, Any] = {"run": "run-7", "number": 0, "resume_step": 0, "members": members, "shares": (4, 4)}
    return Roster(**valid | changed)


# Files


@pytest.mark.parametrize("record", [a_plan(), a_profile(), a_roster()], ids=["plan", "profile", "roster"])
def test_a_record_comes_back_as_it_was_written(record: FileRecord) -> None:
    data = encode_record(record)
    assert decode_record(data, type(record), "file.json") == record
    assert data.endswith(b"}\n")
    assert encode_record(decode_record(data, type(record), "file.json")) == data


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=0), st.text(), st.integers(1, 10**15))
def test_numbers_and_texts_come_back_exactly(usd: float, text: str, memory_bytes: int) -> None:
    plan = a_plan(job=text, offers=(an_offer(usd_per_hour=usd, memory_bytes=memory_bytes, source=text),))
    assert decode_record(encode_record(plan), Plan, "plan.json") == plan


def edited(record: FileRecord, old: str, new: str) -> bytes:
    text = encode_record(record).decode()
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "has version 2; this zooid reads up to 1: update zooid"),
        ('"version": 1', '"version": 0', "has version 0; this zooid reads 1: make it again"),
        ('"version": 1', '"version": "new"', "version"),
        ('"version": 1,', "", "missing required field `version`"),
        ('"record": "roster"', '"record": "plan"', "holds a 'plan'; expected a 'roster'"),
        ('"record": "roster",', "", "missing required field `record`"),
        ('"number": 0', '"number": 0, "colour": 1', "unknown field `colour`"),
        ('"stage": 0', '"stage": 0, "mood": 1', r"unknown field `mood` - at `\$.members\[0\]`"),
        ('"number": 0', '"number": "zero"', r"Expected `int`, got `str` - at `\$.number`"),
        ('"number": 0,', "", "missing required field `number`"),
        ('"number": 0', '"number": -1', "`number` is -1; it must be at least 0"),
        ('"name": "m1"', '"name": "m0"', "`members` names a member twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(old: str, new: str, message: str) -> None:
    with pytest.raises(RecordError, match=rf"^rosters/0.json .*{message}"):
        decode_record(edited(a_roster(), old, new), Roster, "rosters/0.json")


@pytest.mark.parametrize("kept", [0, 1, 20, 100])
def test_a_file_that_was_cut_short_is_refused(kept: int) -> None:
    with pytest.raises(RecordError, match=r"roster.json is not a zooid roster file .*was it cut short"):
        decode_record(encode_record(a_roster())[:kept], Roster, "roster.json")


@pytest.mark.parametrize("data", [b"[1, 2]", b"null", b"PK\x03\x04", b"{'record': 'roster'}"])
def test_a_file_of_another_program_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="is not a zooid roster file"):
        decode_record(data, Roster, "roster.json")


def test_a_file_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RecordError, match=r"roster.json is not a valid roster: .*utf-8"):
        decode_record(encode_record(a_roster()).replace(b"run-7", b"run-\xff"), Roster, "roster.json")


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        a_roster().number = 3  # type: ignore[misc]


# Offers, prices and links


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "`name` must not be empty"),
        ({"vcpus": 0}, "`vcpus` of local is 0"),
        ({"memory_bytes": 0}, "`memory_bytes` of local is 0"),
        ({"usd_per_hour": -1}, "`usd_per_hour` of local is -1"),
        ({"usd_per_start": -1}, "`usd_per_start`"),
        ({"billing_grain_s": 0}, "`billing_grain_s`"),
        ({"billing_minimum_s": -1}, "`billing_minimum_s`"),
        ({"lifetime_s": 0}, "`lifetime_s`"),
        ({"startup_s": -1}, "`startup_s`"),
        ({"bandwidth_bytes_per_s": 0}, "`bandwidth_bytes_per_s`"),
        ({"gpu": "T4"}, "`gpu` of local is .* give both or neither"),
        ({"num_gpus": 1}, "`gpu` of local is .* give both or neither"),
        ({"num_gpus": -1}, "`num_gpus` of local is -1"),
        ({"gpu_memory_bytes": -1}, "`gpu_memory_bytes`"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        an_offer(**changed)


def test_a_kind_of_offer_that_does_not_exist_is_refused_when_read() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Invalid enum value 'boat' - at `\$.kind`"):
        msgspec.json.decode(msgspec.json.encode(an_offer()).replace(b'"kind":"owned"', b'"kind":"boat"'), type=Offer)


@pytest.mark.parametrize(
    "changed", [{"bandwidth_bytes_per_s": 0}, {"rtt_s": -0.1}, {"stream_bytes_per_s": 0}], ids=lambda c: next(iter(c))
)
def test_a_link_that_makes_no_sense_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(changed))}` of local to store is"):
        a_link(**changed)


def test_a_price_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="`usd_per_gb` is -1"):
        EgressPrice(provider="p", source_zone="us", target_zone="eu", usd_per_gb=-1, source="s", date="2024-05")
    prices = {"usd_per_put": 0.0, "usd_per_get": -1.0, "usd_per_gb_month": 0.0}
    with pytest.raises(ValueError, match="`usd_per_get` is -1"):
        StoragePrice(provider="p", service="s", region="r", source="s", date="2024-05", **prices)


# Rosters


def test_a_roster_knows_its_seats() -> None:
    roster = a_roster()
    assert (roster.num_replicas, roster.num_stages) == (2, 2)
    assert roster.rank_of("m3") == roster.rank_at(replica=1, stage=1) == 3
    assert roster.ranks_of_stage(1) == [1, 3]


def test_copies_come_after_the_replicas() -> None:
    roster = a_roster(copies=(RosterSeat(name="c0", stage=1), RosterSeat(name="c1", stage=0)))
    assert [roster.ranks_of_stage(stage) for stage in range(2)] == [[0, 2, 5], [1, 3, 4]]
    assert [seat.name for seat in roster.seats] == ["m0", "m1", "m2", "m3", "c0", "c1"]
    assert (roster.rank_of("c1"), roster.num_voters) == (5, 6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"former": ("m1", "gone")}, "`former` names members that have a seat"),
        ({"newcomers": ("m1",)}, "read their state from a checkpoint"),
        ({"newcomers": ("m1",), "ruling": Ruling(kind="rolled_back")}, "read their state from a checkpoint"),
        ({"newcomers": ("m7",), "ruling": Ruling(kind="unfinished")}, "`newcomers` must have seats"),
        ({"newcomers": ("m1", "m3"), "ruling": Ruling(kind="unfinished")}, "each stage needs a member"),
        ({"num_planned_replicas": 1}, "`num_planned_replicas` is 1; the roster has 2"),
    ],
)
def test_a_roster_with_impossible_newcomers_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_roster(**changed)


def test_a_member_without_state_cannot_be_prepared() -> None:
    with pytest.raises(ValueError, match="`is_prepared` is true for a member without state"):
        Answer(member="m0", change=0, has_state=False, num_applied=0, is_prepared=True)


@pytest.mark.parametrize(("name", "change"), [("a/b", 0), ("m0", -1)])
def test_an_impossible_wish_to_join_is_refused(name: str, change: int) -> None:
    with pytest.raises(ValueError, match=r"`member` is|`change` is"):
        Joining(member=name, change=change)


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        ([], "`members` must not be empty"),
        ([(0, 0), (0, 0)], "every replica and stage exactly once"),
        ([(0, 0), (1, 1)], "every replica and stage exactly once"),
        ([(0, 0), (0, 2)], "every replica and stage exactly once"),
        ([(0, 0), (0, -1)], "every replica and stage exactly once"),
    ],
)
def test_a_roster_with_empty_or_double_seats_is_refused(seats: list[tuple[int, int]], message: str) -> None:
    members = tuple(RosterMember(name=f"m{i}", replica=a, stage=b) for i, (a, b) in enumerate(seats))
    with pytest.raises(ValueError, match=message):
        a_roster(members=members)


@pytest.mark.parametrize("shares", [(), (8,), (4, 4, 4), (0, 0), (9, -1)])
def test_shares_that_do_not_fit_the_replicas_are_refused(shares: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`shares` is .* each of 2 replicas a number of grains"):
        a_roster(shares=shares)


# Plans and limits


def test_a_plan_knows_its_layout() -> None:
    plan = a_plan(
        stages=(a_stage(0, 3), a_stage(3, 4, "big"), a_stage(4, 7)), offers=(an_offer(), an_offer(name="big"))
    )
    assert (plan.layout, plan.num_members) == ("2x3", 6)
    assert [plan.offer_of(stage).name for stage in range(3)] == ["local", "big", "local"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stages": ()}, "`stages` must not be empty"),
        ({"stages": (a_stage(1, 7),)}, "`stages` must begin with layer 0"),
        ({"stages": (a_stage(0, 3), a_stage(4, 7))}, "gap or overlap between layers 3 and 4"),
        ({"stages": (a_stage(0, 4), a_stage(3, 7))}, "gap or overlap between layers 4 and 3"),
        ({"stages": (a_stage(0, 7, "moon"),)}, "name the offer 'moon', which `offers` does not hold"),
        ({"num_replicas": 0}, "`num_replicas` is 0"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"grain_size": 0}, "`grain_size` is 0; it must be between 1 and the batch size 64"),
        ({"grain_size": 65}, "`grain_size` is 65; it must be between 1 and the batch size 64"),
    ],
)
def test_a_plan_that_cannot_be_launched_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_plan(**changed)


@pytest.mark.parametrize(("first", "end"), [(0, 0), (3, 2), (-1, 2)])
def test_a_stage_without_layers_is_refused(first: int, end: int) -> None:
    with pytest.raises(ValueError, match=f"stage {first}:{end} holds no layer"):
        a_stage(first, end)


@pytest.mark.parametrize("name", ["deadline_s", "budget_usd", "num_replicas", "num_stages", "max_members"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is 0; it must be above 0"):
        Limits(**{name: 0})  # type: ignore[arg-type]


def test_a_pinned_layout_must_fit_the_members_allowed() -> None:
    assert Limits(num_replicas=2, num_stages=2).max_members == 4
    with pytest.raises(ValueError, match="the layout needs 6 members, but `max_members` is 4; raise it"):
        Limits(num_replicas=3, num_stages=2)


# Profiles


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": ()}, "`layers` must not be empty"),
        ({"num_samples": 0}, "`num_samples` is 0"),
        ({"batch_size": 0}, "`batch_size` is 0"),
    ],
)
def test_a_profile_of_nothing_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_profile(**changed)


@pytest.mark.parametrize("points", [[(4, 0.1), (2, 0.2)], [(4, 0.1), (4, 0.2)]])
def test_points_must_ascend(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="`points` of layer fc must ascend in `num_samples`"):
        a_layer(*points)
    with pytest.raises(ValueError, match="`points` of layer fc must not be empty"):
        a_layer()


def test_a_point_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`(forward|backward)_s` is -0.1; it must be at least 0"):
        TimePoint(num_samples=1, forward_s=-0.1, backward_s=0.1)
    with pytest.raises(ValueError, match="`num_samples` is 0"):
        TimePoint(num_samples=0, forward_s=0.1, backward_s=0.1)


@pytest.mark.parametrize(
    ("num_samples", "forward_s"),
    [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0), (6, 5.0), (8, 8.0), (10, 11.0)],
)
def test_times_are_linear_between_the_measured_points_and_along_the_nearest_segment_outside(
    num_samples: int, forward_s: float
) -> None:
    layer = a_layer((2, 1.0), (4, 2.0), (8, 8.0))
    assert layer.forward_s(num_samples) == pytest.approx(forward_s)
    assert layer.backward_s(num_samples) == pytest.approx(2 * forward_s)


def test_a_single_point_scales_in_proportion() -> None:
    assert a_layer((4, 2.0)).forward_s(1) == pytest.approx(0.5)
    assert a_layer((4, 2.0)).backward_s(8) == pytest.approx(8.0)


def test_a_time_is_never_below_zero() -> None:
    assert a_layer((4, 0.1), (8, 1.0)).forward_s(1) == 0.0, "a steep first segment would reach below zero"
    assert a_layer((1, 1.0), (2, 0.5)).forward_s(64) == 0.0, "noise in the last segment would, too"


@given(st.dictionaries(st.integers(1, 64), st.floats(0, 10), min_size=1, max_size=6), st.integers(1, 128))
def test_times_go_through_the_points_and_stay_between_neighbours(times: dict[int, float], at: int) -> None:
    layer = a_layer(*sorted(times.items()))
    for num_samples, forward_s in times.items():
        assert layer.forward_s(num_samples) == pytest.approx(forward_s, abs=1e-9)
    assert layer.forward_s(at) >= 0
    if min(times) <= at <= max(times):
        below, above = max(n for n in times if n <= at), min(n for n in times if n >= at)
        low, high = sorted((times[below], times[above]))
        assert low - 1e-9 <= layer.forward_s(at) <= high + 1e-9
