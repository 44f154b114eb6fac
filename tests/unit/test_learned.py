"""What is learned of a library's all-reduces: from samples whose truth is known, and where it refuses to answer."""

import math
import random
import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from rich.console import Console

from zooid.core.errors import PlanError, RecordError
from zooid.core.plans.all_reduce_samples import AllReduceSample, AllReduceSamples
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.spec import ProbeMember, SweepSpec
from zooid.predictor.learned.all_reduce_model import LearnedAllReduce, MemberKind, fit_all_reduce
from zooid.predictor.learned.hull import Hull
from zooid.report import all_reduce_table

NOW_S = 1.7e9
DAY_S = 24 * 3600.0
KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
UNSEEN_SIZES = (96 * KIB, 600 * KIB, 3 * MIB, 11 * MIB)


def a_sample(**changed: Any) -> AllReduceSample:
    valid: dict[str, Any] = {"library": "gloo", "offer": "local", "site": "home", "num_bytes": MIB, "num_members": 2}
    return AllReduceSample(**valid | {"concurrency": 1, "took_s": 0.1, "at_s": NOW_S} | changed)


def truth_s(num_bytes: int, num_members: int, concurrency: int = 1, rate: float = 100e6) -> float:
    """Latency and bandwidth, and something that no law foresees: between 1 and 8 MiB it is slower by a third."""
    rounds_s = 2 * (num_members - 1) * 150e-6
    extra = 4 / 3 if MIB < num_bytes < 8 * MIB else 1.0
    return rounds_s + extra * 2 * (num_members - 1) / num_members * num_bytes * concurrency / rate


def samples_of(
    sizes: Sequence[int] = SIZES,
    crowds: Sequence[int] = (2, 4, 8),
    at_once: Sequence[int] = (1, 4),
    *,
    repeats: int = 5,
    noise: float = 0.05,
    rate: float = 100e6,
    **changed: Any,
) -> list[AllReduceSample]:
    """Repeats of the truth, each with some noise of its own."""
    dice = random.Random(7)
    return [
        a_sample(
            num_bytes=num_bytes,
            num_members=num_members,
            concurrency=concurrency,
            took_s=truth_s(num_bytes, num_members, concurrency, rate) * math.exp(dice.gauss(0, noise)),
            **changed,
        )
        for _ in range(repeats)
        for num_bytes, num_members, concurrency in product(sizes, crowds, at_once)
    ]


@pytest.fixture(scope="module")
def model() -> LearnedAllReduce:
    return fit_all_reduce(samples_of(), NOW_S)


class TestLearning:
    def test_what_was_not_measured_is_found_between_what_was(self, model: LearnedAllReduce) -> None:
        errors = {
            setting: model.predict(*setting).median_s / truth_s(*setting) - 1
            for setting in product(UNSEEN_SIZES, (2, 3, 6, 8), (1, 2, 4))
        }
        print(errors)
        assert statistics.fmean(map(abs, errors.values())) < 0.06
        assert max(map(abs, errors.values())) < 0.2

    def test_trees_learn_what_the_law_does_not_know(self, model: LearnedAllReduce) -> None:
        bus_rates = {size: 1.5 * size / model.predict(size, 4).median_s for size in (2 * MIB, 4 * MIB, 16 * MIB)}
        assert bus_rates[16 * MIB] / bus_rates[4 * MIB] > 1.2
        assert bus_rates[16 * MIB] / bus_rates[2 * MIB] > 1.2

    def test_quantiles_hold_most_of_what_is_measured_later(self, model: LearnedAllReduce) -> None:
        dice = random.Random(11)
        inside = []
        for setting in product(UNSEEN_SIZES, (2, 3, 6, 8), (1, 4)):
            estimate = model.predict(*setting)
            assert estimate.low_s < estimate.median_s < estimate.high_s
            later_s = [truth_s(*setting) * math.exp(dice.gauss(0, 0.05)) for _ in range(20)]
            inside += [estimate.low_s <= time_s <= estimate.high_s for time_s in later_s]
        assert 0.7 < statistics.fmean(inside) < 0.97

    def test_larger_noise_is_a_larger_spread(self, model: LearnedAllReduce) -> None:
        noisy = fit_all_reduce(samples_of(noise=0.2), NOW_S).predict(4 * MIB, 4)
        calm = model.predict(4 * MIB, 4)
        assert noisy.high_s / noisy.low_s > 1.5 * calm.high_s / calm.low_s

    def test_new_samples_count_more_than_old_ones(self) -> None:
        """A network that has become twice as fast."""
        old = samples_of(crowds=(2, 4), at_once=(1,), at_s=NOW_S - 21 * DAY_S)
        new = samples_of(crowds=(2, 4), at_once=(1,), rate=200e6, at_s=NOW_S)
        after = truth_s(16 * MIB, 4, rate=200e6)
        assert fit_all_reduce(old + new, NOW_S).predict(16 * MIB, 4).median_s == pytest.approx(after, rel=0.1)
        undecided = fit_all_reduce(old + new, NOW_S, half_life_s=10_000 * DAY_S).predict(16 * MIB, 4)
        assert undecided.high_s > 1.5 * after, "without decay both are as good"

    def test_samples_of_long_ago_are_no_samples(self) -> None:
        with pytest.raises(
            PlanError, match=r"0 sample\(s\) in 0 setting\(s\) of gloo on local at home of the last 42d"
        ):
            fit_all_reduce(samples_of(at_s=NOW_S - 43 * DAY_S), NOW_S)

    def test_the_same_samples_in_any_order_give_the_same_model(self) -> None:
        samples = samples_of(crowds=(2, 4), at_once=(1,))
        shuffled = random.Random(3).sample(samples, len(samples))
        one, other = (fit_all_reduce(given, NOW_S) for given in (samples, shuffled))
        for size in UNSEEN_SIZES:
            assert one.predict(size, 3) == other.predict(size, 3)

    def test_one_member_has_nothing_to_do(self, model: LearnedAllReduce) -> None:
        assert model.predict(MIB, 1).high_s == 0.0

    def test_the_slowest_of_a_mixed_fleet_governs(self) -> None:
        slow = samples_of(crowds=(2, 4), at_once=(1,), rate=20e6, site="away")
        fleet = fit_all_reduce(samples_of(crowds=(2, 4), at_once=(1,)) + slow, NOW_S)
        home, away = MemberKind("local", "home"), MemberKind("local", "away")
        assert fleet.predict(4 * MIB, 4, kinds=[home, away, home]) == fleet.predict(4 * MIB, 4, kinds=[away])
        assert fleet.predict(4 * MIB, 4, kinds=[home]).median_s < 0.5 * fleet.predict(4 * MIB, 4, kinds=[away]).median_s
        with pytest.raises(PlanError, match="samples are of local at away, local at home; say on which"):
            fleet.predict(4 * MIB, 4)
        with pytest.raises(PlanError, match="no samples of gloo on local at moon, only on local at away, local"):
            fleet.predict(4 * MIB, 4, kinds=[MemberKind("local", "moon")])


class TestRefusals:
    def test_between_samples_nothing_is_extrapolated(self, model: LearnedAllReduce) -> None:
        assert not any(model.predict(*setting).is_extrapolated for setting in product(UNSEEN_SIZES, (3, 7), (1, 3)))

    @pytest.mark.parametrize(
        ("setting", "reason"),
        [
            ((24 * MIB, 4, 1), "4 members with 1 at once had 4.096 kB to 16.78 MB"),
            ((2 * KIB, 4, 1), "4 members with 1 at once had 4.096 kB to 16.78 MB"),
            ((MIB, 12, 1), "members were 2 to 8"),
            ((MIB, 4, 6), "all-reduces at once were 1 to 4"),
        ],
    )
    def test_a_little_outside_is_said_to_be(
        self, model: LearnedAllReduce, setting: tuple[int, int, int], reason: str
    ) -> None:
        estimate = model.predict(*setting)
        assert estimate.is_extrapolated
        assert estimate.beyond.endswith(f"is outside the measured range: {reason}")
        assert estimate.median_s == pytest.approx(truth_s(*setting), rel=0.3)

    @pytest.mark.parametrize("setting", [(40 * MIB, 4, 1), (KIB, 4, 1), (MIB, 17, 1), (MIB, 4, 9)])
    def test_far_outside_is_refused(self, model: LearnedAllReduce, setting: tuple[int, int, int]) -> None:
        with pytest.raises(PlanError, match=r"is outside the measured range: .*; measure this setting"):
            model.predict(*setting)

    def test_a_corner_that_no_file_has_is_not_between(self) -> None:
        """Large messages among two members and small ones among eight say nothing of large ones among five."""
        hull = Hull([(KIB, 2, 1), (16 * MIB, 2, 1), (KIB, 8, 1), (MIB, 8, 1), (MIB, 2, 4)])
        assert hull.beyond(MIB, 5, 1).reason == ""
        assert hull.beyond(2 * MIB, 5, 1) == ("8 members with 1 at once had 1.024 kB to 1.049 MB", False)
        assert hull.beyond(8 * MIB, 5, 1).is_far
        assert hull.beyond(MIB, 8, 4) == ("8 members with 4 at once were not measured", False)

    @pytest.mark.parametrize("setting", [(0, 2, 1), (MIB, 0, 1), (MIB, 2, 0)])
    def test_what_makes_no_sense_is_refused(self, model: LearnedAllReduce, setting: tuple[int, int, int]) -> None:
        with pytest.raises(PlanError, match="give numbers from 1 on"):
            model.predict(*setting)

    @pytest.mark.parametrize(
        ("samples", "message"),
        [
            ([], "there are no samples of a library; run zooid probe --only all-reduce"),
            (samples_of(repeats=1, crowds=(2,), at_once=(1,)), r"9 sample\(s\) in 9 setting\(s\) .*; at least 20 in 5"),
            (
                samples_of(SIZES[:2], crowds=(2,), repeats=20),
                r"80 sample\(s\) in 4 setting\(s\) of gloo on local at home",
            ),
            ([*samples_of(), a_sample(library="nccl")], "samples are of gloo and nccl; name the one"),
        ],
        ids=["none", "few", "few settings", "two libraries"],
    )
    def test_too_few_samples_are_refused(self, samples: list[AllReduceSample], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            fit_all_reduce(samples, NOW_S)

    def test_samples_of_another_library_are_left_out(self) -> None:
        model = fit_all_reduce([*samples_of(), a_sample(library="nccl")], NOW_S, library="gloo")
        assert model.library == "gloo"
        with pytest.raises(PlanError, match=r"1 sample\(s\) in 1 setting\(s\) of nccl"):
            fit_all_reduce([*samples_of(), a_sample(library="nccl")], NOW_S, library="nccl")


class TestRecords:
    def test_samples_come_back_as_they_were_written(self) -> None:
        written = AllReduceSamples(zooid_version="0.1.0", samples=(a_sample(), a_sample(took_s=0.2)))
        assert decode_record(encode_record(written), AllReduceSamples, "all-reduces.json") == written

    def test_joined_files_are_in_order_and_count_nothing_twice(self) -> None:
        old, new = a_sample(at_s=NOW_S - DAY_S), a_sample()
        earlier = AllReduceSamples(zooid_version="0.1.0", samples=(old,))
        both = AllReduceSamples(zooid_version="0.1.0", samples=(new,)).joined([earlier, earlier])
        assert both.samples == (old, new)
        assert both.joined([earlier]) == both

    @pytest.mark.parametrize(
        "changed",
        [
            {"num_bytes": 0},
            {"num_members": 1},
            {"concurrency": 0},
            {"took_s": 0.0},
            {"took_s": math.nan},
            {"at_s": -1.0},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_a_sample_that_cannot_be_is_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(RecordError, match=f"`{next(iter(changed))}` is"):
            a_sample(**changed)

    def test_bus_bandwidth_is_what_a_link_carries(self) -> None:
        assert a_sample(num_bytes=1000, num_members=4, took_s=0.5).bus_bytes_per_s == 3000.0

    @pytest.mark.parametrize(
        "changed",
        [{"num_bytes": (6,)}, {"num_bytes": ()}, {"num_members": (3,)}, {"num_members": (1,)}, {"concurrency": (0,)}],
    )
    def test_a_sweep_that_cannot_be_made_is_refused(self, changed: dict[str, Any]) -> None:
        valid: dict[str, Any] = {
            "run": "7",
            "member": "m0",
            "store": "file:///somewhere",
            "num_threads": 1,
            "members": (ProbeMember(name="m0", site="home"), ProbeMember(name="m1", site="home")),
            "num_repeats": 1,
            "timeout_s": 5.0,
            "library": "gloo",
            "offer": "local",
            "num_bytes": (1024,),
            "num_members": (2,),
            "concurrency": (1,),
        }
        SweepSpec(**valid)
        with pytest.raises(RecordError, match=f"`{next(iter(changed))}` is"):
            SweepSpec(**valid | changed)


def test_the_table_shows_medians_by_members_bytes_and_how_many_at_once() -> None:
    samples = tuple(
        a_sample(num_bytes=10**6, num_members=4, concurrency=1, took_s=took_s) for took_s in (0.1, 0.15, 0.2)
    )
    table = all_reduce_table(AllReduceSamples(zooid_version="0.1.0", samples=(*samples, a_sample(concurrency=4))))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in captured.get().splitlines() if "│" in line]
    assert rows == [
        ["2", "1.049 MB", "–", "100ms"],
        ["", "", "", "10.49 MB/s, 0.0 %"],
        ["4", "1 MB", "150ms", "–"],
        ["", "", "10 MB/s, 66.7 %", ""],
    ]
