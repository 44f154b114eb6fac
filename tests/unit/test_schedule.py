"""A step's action lists are complete, possible and readable, and every sample counts exactly once per epoch."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.action_texts import parse_action
from zooid.core.errors import ScheduleError
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, StepShape, most_kept
from zooid.schedule.samples import SamplePlan, derive_seed, even_shares, split_grains

quick = settings(deadline=None, max_examples=60)

WHOLE_STEP = (Kind.COMMIT,)

GPIPE_2X2 = """\
r0s0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE0 0COMMIT
r0s1: 1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1 1REDUCE0 1COMMIT
r1s0: 0F2 0SEND_F2 0F3 0SEND_F3 0RECV_B2 0B2 0RECV_B3 0B3 0REDUCE0 0COMMIT
r1s1: 1RECV_F2 1F2 1RECV_F3 1F3 1B2 1SEND_B2 1B3 1SEND_B3 1REDUCE0 1COMMIT"""

numbers = st.integers(0, 10**6)
actions = st.one_of(
    st.builds(Action, numbers, st.sampled_from([kind for kind in Kind if kind not in WHOLE_STEP]), numbers),
    st.builds(Action, numbers, st.sampled_from(WHOLE_STEP)),
)
Edit = Callable[[list[Action]], list[Action]]


ONE_F_ONE_B_1X3 = """\
r0s0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0F3 0SEND_F3 0RECV_B1 0B1 0RECV_B2 0B2 0RECV_B3 0B3 \
0REDUCE0 0SHARE0 0COMMIT
r0s1: 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 1B0 1SEND_B0 1RECV_F2 1F2 1SEND_F2 1RECV_B1 1B1 1SEND_B1 \
1RECV_F3 1F3 1SEND_F3 1RECV_B2 1B2 1SEND_B2 1RECV_B3 1B3 1SEND_B3 1REDUCE0 1REDUCE1 1COMMIT
r0s2: 2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1 2RECV_F2 2F2 2B2 2SEND_B2 2RECV_F3 2F3 2B3 2SEND_B3 \
2REDUCE0 2SHARE0 2COMMIT"""


def gpipe_step(num_stages: int, num_replicas: int, num_grains: int) -> StepSchedule:
    return StepShape("gpipe", num_stages).step(split_grains(num_grains, (1,) * num_replicas))


def edited(schedule: StepSchedule, replica: int, stage: int, edit: Edit) -> StepSchedule:
    """The same step with one member's list changed."""
    lists = [list(stages) for stages in schedule.lists]
    lists[replica][stage] = tuple(edit(list(lists[replica][stage])))
    return replace(schedule, lists=tuple(tuple(stages) for stages in lists))


def swap(first: str, second: str) -> Edit:
    """Let two actions of one list change places."""

    def edit(before: list[Action]) -> list[Action]:
        names = {parse_action(first): parse_action(second), parse_action(second): parse_action(first)}
        assert set(names) <= set(before)
        return [names.get(action, action) for action in before]

    return edit


@quick
@given(actions)
def test_an_action_survives_its_text(action: Action) -> None:
    assert parse_action(str(action)) == action


@pytest.mark.parametrize(("kind", "number"), [(Kind.FORWARD, None), (Kind.REDUCE, None), (Kind.COMMIT, 3)])
def test_everything_but_a_commit_has_a_number(kind: Kind, number: int | None) -> None:
    with pytest.raises(ScheduleError, match=f"{kind.value} of stage 2 cannot have the number {number}"):
        Action(2, kind, number)


def test_gpipe_lists_are_as_written_down() -> None:
    assert gpipe_step(2, 2, 4).text() == GPIPE_2X2


def test_1f1b_lists_are_as_written_down() -> None:
    shape = StepShape("1f1b", 3, buckets=(1, 2, 1), ties=((0, 2),))
    assert shape.step([range(4)]).text() == ONE_F_ONE_B_1X3


@pytest.mark.parametrize(("ahead", "kept"), [(0, [4, 3, 2, 1]), (1, [7, 5, 3, 1]), (2, [8, 7, 4, 1])])
def test_1f1b_keeps_a_grain_for_each_stage_behind_and_more_if_it_runs_ahead(ahead: int, kept: list[int]) -> None:
    schedule = StepShape("1f1b", 4, ahead).step([range(8)])
    assert [most_kept(actions) for actions in schedule.lists[0]] == kept
    gpipe = StepShape("gpipe", 4).step([range(8)])
    assert [most_kept(actions) for actions in gpipe.lists[0]] == [8] * 4


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_a_replica_that_takes_over_grains_keeps_no_more_of_them_than_before(name: str, num_stages: int) -> None:
    planned, after = StepShape(name, num_stages, 1), StepShape(name, num_stages, 1, most_kept=2)
    before = planned.step(split_grains(4, (1, 1))).lists
    step = after.step(split_grains(4, (1,)))
    check_schedule(step)
    assert [most_kept(own) for own in step.lists[0]] == [most_kept(own) for own in before[0]]


def test_messages_wait_for_data_and_for_room() -> None:
    needs = StepShape("gpipe", 3).step([range(8)]).needs[0][1]

    def names(text: str) -> set[str]:
        return {str(action) for action in needs[parse_action(text)]}

    assert names("1RECV_F0") == set()
    assert names("1RECV_F1") == set()
    assert names("1RECV_F2") == {"1F0"}, "two are taken ahead"
    assert names("1F2") == {"1RECV_F2"}
    assert names("1F4") == {"1RECV_F4", "1SEND_F0"}, "four may still be under way"
    assert names("1B0") == {"1F0", "1RECV_B0"}
    assert names("1SEND_B3") == {"1B3"}
    assert names("1COMMIT") == {"1REDUCE0"}
    assert {"1B7", "1SEND_B7"} <= names("1REDUCE0"), "what others wait for goes first"


def test_evaluation_goes_forward_only() -> None:
    schedule = StepShape("1f1b", 2).evaluation([(0, 1), ()])
    check_schedule(schedule)
    assert schedule.text() == "r0s0: 0F0 0SEND_F0 0F1 0SEND_F1\nr0s1: 1RECV_F0 1F0 1RECV_F1 1F1\nr1s0: \nr1s1: "


def test_buckets_must_be_given_for_all_stages() -> None:
    with pytest.raises(ScheduleError, match="buckets are given for 1 of 2 stages"):
        StepShape("gpipe", 2, buckets=(1,))


def test_an_unknown_schedule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ScheduleError, match="the schedule 'zigzag' is unknown; choose one of gpipe, 1f1b"):
        StepShape("zigzag", 2)


@pytest.mark.parametrize("num_stages", range(1, 6))
@pytest.mark.parametrize("num_replicas", range(1, 4))
@pytest.mark.parametrize(("name", "ahead"), [("gpipe", 0), ("1f1b", 0), ("1f1b", 1), ("1f1b", 3)])
def test_every_step_passes_the_check(num_stages: int, num_replicas: int, name: str, ahead: int) -> None:
    ties = ((0, num_stages - 1),) if num_stages > 1 else ()
    shape = StepShape(name, num_stages, ahead, tuple(range(1, num_stages + 1)), ties)
    for num_grains in range(10):
        schedule = shape.step(split_grains(num_grains, (1,) * num_replicas))
        check_schedule(schedule)
        computed = [a.number for stages in schedule.lists for a in stages[-1] if a.kind is Kind.BACKWARD]
        assert sorted(number for number in computed if number is not None) == list(range(num_grains))


def test_a_replica_without_grains_still_reduces_and_commits() -> None:
    idle = gpipe_step(2, 3, 1).lists[2]
    assert [[str(action) for action in stage] for stage in idle] == [["0REDUCE0", "0COMMIT"], ["1REDUCE0", "1COMMIT"]]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda before: before[1:], "member r1s1 lacks 1RECV_F2"),
        (lambda before: before[:-1], "member r1s1 lacks 1COMMIT"),
        (lambda before: [*before, before[1]], "member r1s1 has too often or by mistake 1F2"),
        (lambda before: [*before, parse_action("1F9")], "member r1s1 has too often or by mistake 1F9"),
        (lambda before: [parse_action("0F2") if str(a) == "1F2" else a for a in before], "member r1s1 lacks 1F2"),
    ],
    ids=["missing first", "missing commit", "duplicate", "unknown grain", "wrong stage"],
)
def test_an_incomplete_list_is_refused_with_the_place_and_the_grid(edit: Edit, message: str) -> None:
    schedule = edited(gpipe_step(2, 2, 4), 1, 1, edit)
    with pytest.raises(ScheduleError) as refusal:
        check_schedule(schedule)
    assert str(refusal.value) == f"{message}\n{schedule.text()}"


@pytest.mark.parametrize(
    ("stage", "edit", "stuck"),
    [
        (0, swap("0F0", "0B0"), ["r0s0 waits at 0B0", "r0s1 waits at 1RECV_F0"]),
        (2, swap("2F1", "2B1"), ["r0s2 waits at 2B1", "r0s1 waits at 1RECV_B0"]),
        (2, swap("2B1", "2COMMIT"), ["r0s2 waits at 2COMMIT", "r0s1 waits at 1RECV_B1"]),
    ],
    ids=["backward first", "backward before its forward", "commit early"],
)
def test_an_order_that_deadlocks_is_refused_with_all_who_wait(stage: int, edit: Edit, stuck: list[str]) -> None:
    schedule = edited(gpipe_step(3, 1, 2), 0, stage, edit)
    with pytest.raises(ScheduleError, match="the schedule deadlocks") as refusal:
        check_schedule(schedule)
    first, _, grid = str(refusal.value).partition("\n")
    assert grid == schedule.text()
    for place in stuck:
        assert place in first


def test_one_replica_that_cannot_reduce_stops_the_others() -> None:
    schedule = edited(gpipe_step(1, 2, 4), 1, 0, swap("0F2", "0B2"))
    with pytest.raises(ScheduleError, match="r0s0 waits at 0COMMIT; r0s0 waits at 0REDUCE0; r1s0 waits at 0B2"):
        check_schedule(schedule)


def test_stages_that_share_in_another_order_wait_for_one_another() -> None:
    shape = StepShape("gpipe", 2, ties=((0, 1), (0, 1)))
    schedule = edited(shape.step([(0,)]), 0, 1, swap("1SHARE0", "1SHARE1"))
    with pytest.raises(ScheduleError, match="the schedule deadlocks"):
        check_schedule(schedule)


def test_replicas_that_reduce_other_buckets_are_refused() -> None:
    schedule = edited(gpipe_step(1, 2, 2), 1, 0, lambda before: [*before[:-1], Action(0, Kind.REDUCE, 1), before[-1]])
    with pytest.raises(ScheduleError, match=r"member r1s0 reduces buckets \[0, 1\], but r0s0 reduces \[0\]"):
        check_schedule(schedule)


@st.composite
def sample_plans(draw: st.DrawFn) -> SamplePlan:
    num_samples = draw(st.integers(1, 200))
    batch_size = draw(st.integers(1, num_samples))
    return SamplePlan(
        num_samples=num_samples,
        batch_size=batch_size,
        grain_size=draw(st.integers(1, batch_size)),
        epochs=draw(st.integers(1, 3)),
        seed=draw(st.integers(-(2**40), 2**40)),
    )


@quick
@given(sample_plans())
def test_every_sample_counts_exactly_once_per_epoch(plan: SamplePlan) -> None:
    for epoch in range(plan.epochs):
        per_epoch = plan.num_steps // plan.epochs
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert {plan.epoch_of(step) for step in steps} == {epoch}
        grains = [grain for step in steps for grain in plan.grains(step)]
        assert sorted(np.concatenate(grains).tolist()) == list(range(plan.num_samples))


@quick
@given(sample_plans())
def test_only_the_last_step_and_the_last_grain_are_short(plan: SamplePlan) -> None:
    per_epoch = plan.num_steps // plan.epochs
    for step in range(plan.num_steps):
        sizes = [len(grain) for grain in plan.grains(step)]
        is_last = step % per_epoch == per_epoch - 1
        rest = plan.num_samples - (per_epoch - 1) * plan.batch_size
        assert sum(sizes) == plan.step_size(step) == (rest if is_last else plan.batch_size)
        assert len(sizes) == plan.num_grains(step)
        assert sizes[:-1] == [plan.grain_size] * (len(sizes) - 1)
        assert 1 <= sizes[-1] <= plan.grain_size


@quick
@given(sample_plans())
def test_whoever_asks_gets_the_same_samples_in_any_layout(plan: SamplePlan) -> None:
    other = replace(plan, grain_size=1)
    for step in range(plan.num_steps):
        again = np.concatenate(replace(plan).grains(step))
        assert np.array_equal(np.concatenate(plan.grains(step)), again)
        assert np.array_equal(np.concatenate(other.grains(step)), again)


def test_epochs_and_seeds_shuffle_differently() -> None:
    plan = SamplePlan(num_samples=100, batch_size=10, grain_size=5, epochs=2, seed=0)
    orders = [plan.order(0), plan.order(1), replace(plan, seed=1).order(0)]
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_the_order_of_samples_does_not_change_between_versions() -> None:
    plan = SamplePlan(num_samples=8, batch_size=4, grain_size=2, epochs=1, seed=7)
    assert [grain.tolist() for step in range(2) for grain in plan.grains(step)] == [[1, 5], [0, 6], [4, 2], [3, 7]]


@pytest.mark.parametrize("step", [-1, 20])
def test_a_step_outside_of_the_run_is_refused(step: int) -> None:
    plan = SamplePlan(num_samples=100, batch_size=10, grain_size=5, epochs=2, seed=0)
    with pytest.raises(ScheduleError, match=f"step {step} is not one of the run's 20 steps"):
        plan.grains(step)


shares = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda given: sum(given) > 0)


@quick
@given(st.integers(0, 60), shares)
def test_grains_are_split_whole_in_order_and_in_proportion(num_grains: int, given_shares: list[int]) -> None:
    parts = split_grains(num_grains, given_shares)
    assert [grain for part in parts for grain in part] == list(range(num_grains))
    for part, share in zip(parts, given_shares, strict=True):
        assert abs(len(part) - num_grains * share / sum(given_shares)) < 1
        assert share > 0 or not part


@quick
@given(shares)
def test_a_full_step_gives_everyone_exactly_its_share(given_shares: list[int]) -> None:
    assert [len(part) for part in split_grains(sum(given_shares), given_shares)] == given_shares


@quick
@given(st.integers(1, 60), st.integers(1, 8))
def test_even_shares_differ_by_at_most_one_and_descend(num_grains: int, num_replicas: int) -> None:
    given_shares = even_shares(num_grains, num_replicas)
    assert sum(given_shares) == num_grains
    assert len(given_shares) == num_replicas
    assert max(given_shares) - min(given_shares) <= 1
    assert list(given_shares) == sorted(given_shares, reverse=True)


def test_seeds_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert derive_seed("layer", 0, 1, 2, 3) == 3177140362215206084
    assert derive_seed(7, "order", 0) == 5806554439271297204


@quick
@given(st.tuples(numbers, numbers, numbers), st.tuples(numbers, numbers, numbers))
def test_different_parts_give_different_seeds(first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
    assert (derive_seed(*first) == derive_seed(*second)) == (first == second)
    assert 0 <= derive_seed(*first) < 2**63
