"""The partition that is found is the best of all there are, for every number of stages, and its proof says so."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.hydrozoa_grid import grid_partitions
from tests.unit.paper_formulas import hydrozoa_ring_s, hydrozoa_step_s, pipeline_s, table_of_layers
from tests.unit.profiles import layer, profile, store_links
from zooid.core.errors import InputError
from zooid.planner.partition import Partition, StageTable, best_partitions
from zooid.planner.partition.search import search_partitions
from zooid.predictor import directed_links, stage_times
from zooid.predictor.equations.array_checks import Array

thorough = settings(max_examples=100, deadline=None, derandomize=True)
quick = settings(max_examples=60, deadline=None, derandomize=True)

RATE = 10.0


def every_partition(num_layers: int, num_stages: int) -> list[Partition]:
    return [tuple(pairwise((0, *cuts, num_layers))) for cuts in combinations(range(1, num_layers), num_stages - 1)]


@st.composite
def chains(draw: st.DrawFn, max_layers: int = 8) -> dict[str, Any]:
    """What `table_of_layers` takes. Round numbers make ties, others leave no two partitions alike."""
    num_layers = draw(st.integers(1, max_layers))
    times = st.one_of(st.integers(0, 5).map(float), st.floats(0.01, 5))
    sizes = st.one_of(st.sampled_from([0.0, 1.0, 10.0, 100.0]), st.floats(0, 100, allow_subnormal=False))

    def numbers(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=num_layers, max_size=num_layers))

    return {
        "forward_s": numbers(times),
        "backward_s": numbers(times),
        "out_bytes": numbers(sizes),
        "parameter_bytes": numbers(sizes),
        "num_grains": draw(st.integers(1, 12)),
    }


alphas, betas = st.sampled_from([0.0, 0.01]), st.sampled_from([0.0, 0.5])


def published_s(
    chain: dict[str, Any], partitions: list[Partition], num_replicas: int = 1, alpha: float = 0.0, beta: float = 0.0
) -> Array:
    """The paper's equation, for each of the partitions."""

    def step_s(partition: Partition) -> float:
        sizes = [sum(chain["parameter_bytes"][first:end]) for first, end in partition]
        return hydrozoa_step_s(
            [sum(chain["forward_s"][first:end]) for first, end in partition],
            [sum(chain["backward_s"][first:end]) for first, end in partition],
            [chain["out_bytes"][end - 1] / RATE for _, end in partition[:-1]],
            chain["num_grains"],
            hydrozoa_ring_s(sizes, num_replicas, RATE, alpha, beta).tolist(),
        )

    return np.array([step_s(partition) for partition in partitions])


def table(chain: dict[str, Any], num_replicas: int = 1, **more: Any) -> StageTable:
    return table_of_layers(**chain, bytes_per_s=RATE, num_replicas=num_replicas, **more)


@thorough
@given(chains(), st.sampled_from([1, 1, 2, 5]), alphas, betas)
def test_every_number_of_stages_gets_its_best_partition(
    chain: dict[str, Any], num_replicas: int, alpha: float, beta: float
) -> None:
    num_layers = len(chain["forward_s"])
    found = search_partitions(table(chain, num_replicas, alpha=alpha, beta=beta))
    assert sorted(found) == list(range(1, num_layers + 1))
    for num_stages, cut in found.items():
        least_s = published_s(chain, every_partition(num_layers, num_stages), num_replicas, alpha, beta).min()
        (step_s,) = published_s(chain, [cut.partition], num_replicas, alpha, beta)
        assert step_s == pytest.approx(least_s, rel=1e-9, abs=1e-12)
        assert cut.step_s == pytest.approx(step_s, rel=1e-9, abs=1e-12)
        assert cut.proof.status == "optimal"


@thorough
@given(chains(max_layers=6), st.sampled_from([1, 3]), st.data())
def test_a_stage_that_does_not_fit_is_never_used(chain: dict[str, Any], num_replicas: int, data: st.DataObject) -> None:
    """Any set of stages may be forbidden, not only the longest."""
    num_layers = len(chain["forward_s"])
    stages = [(first, end) for end in range(1, num_layers + 1) for first in range(end)]
    forbidden = data.draw(st.sets(st.sampled_from(stages)))
    fits = np.ones((num_layers + 1, num_layers + 1), bool)
    fits[tuple(np.array(sorted(forbidden), int).reshape(-1, 2).T)] = False
    found = search_partitions(table(chain, num_replicas, fits=fits), max_each=4)
    for num_stages in range(1, num_layers + 1):
        fitting = [cut for cut in every_partition(num_layers, num_stages) if not forbidden & set(cut)]
        assert (num_stages in found) == bool(fitting)
        if fitting:
            cut = found[num_stages]
            assert {cut.partition, *cut.runners_up} <= set(fitting)
            least_s = published_s(chain, fitting, num_replicas).min()
            assert cut.step_s == pytest.approx(least_s, rel=1e-9, abs=1e-12)


@quick
@given(chains(), st.sampled_from([1, 4]), st.integers(1, 3))
def test_a_search_that_is_cut_short_says_how_far_off_it_can_be(
    chain: dict[str, Any], num_replicas: int, max_labels: int
) -> None:
    num_layers = len(chain["forward_s"])
    for num_stages, cut in search_partitions(table(chain, num_replicas), max_labels=max_labels).items():
        least_s = published_s(chain, every_partition(num_layers, num_stages), num_replicas).min()
        assert cut.step_s * (1 - cut.proof.gap) <= least_s * (1 + 1e-9) + 1e-12
        assert cut.step_s >= least_s * (1 - 1e-9) - 1e-12


def test_a_gap_is_reported_where_one_label_is_too_few() -> None:
    generator = np.random.default_rng(3)
    cut = search_partitions(long_chain(generator, 40, num_grains=4), [12], max_labels=1)[12]
    assert cut.proof.status == "bounded"
    assert 0 < cut.proof.gap < 0.2


@quick
@given(chains(), st.integers(2, 5))
def test_the_others_are_distinct_and_in_order(chain: dict[str, Any], most: int) -> None:
    stages = table(chain)
    for num_stages, cut in search_partitions(stages, max_each=most).items():
        partitions = [cut.partition, *cut.runners_up]
        assert len(set(partitions)) == len(partitions) <= most
        times = published_s(chain, partitions)
        assert (np.diff(times) >= -1e-9 * times[0]).all()
        assert all(len(partition) == num_stages for partition in partitions)


def long_chain(generator: np.random.Generator, num_layers: int, num_grains: int, **more: Any) -> StageTable:
    return table_of_layers(
        generator.uniform(0.5, 1.5, num_layers),
        generator.uniform(1.0, 3.0, num_layers),
        generator.uniform(0.0, 10.0, num_layers),
        generator.uniform(0.0, 10.0, num_layers),
        RATE,
        num_grains,
        **more,
    )


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_forty_eight_layers_are_proven_for_every_number_of_stages(num_replicas: int) -> None:
    found = search_partitions(long_chain(np.random.default_rng(0), 48, 8, num_replicas=num_replicas))
    assert sorted(found) == list(range(1, 49))
    assert {cut.proof.status for cut in found.values()} == {"optimal"}


def test_two_hundred_layers_are_proven() -> None:
    """With equal layers and cuts that take nothing the answer is known: stages as equal as can be."""
    equal = table_of_layers(np.full(200, 0.1), np.full(200, 0.2), np.zeros(200), np.zeros(200), RATE, 16)
    for num_stages, cut in search_partitions(equal).items():
        longest = -(-200 // num_stages)
        assert cut.step_s == pytest.approx(200 * 0.3 + 15 * longest * 0.3)
    uneven = search_partitions(long_chain(np.random.default_rng(1), 200, 32), [2, 4, 8, 16])
    assert {cut.proof.status for cut in uneven.values()} == {"optimal"}


# Beside the paper's own search


@quick
@given(chains(max_layers=6), st.sampled_from([1, 4]))
def test_never_worse_than_a_thousand_evenly_spaced_bounds(chain: dict[str, Any], num_replicas: int) -> None:
    stages = table(chain, num_replicas)
    found = search_partitions(stages)
    for num_stages, partition in grid_partitions(stages).items():
        (grid_s,) = published_s(chain, [partition], num_replicas)
        assert found[num_stages].step_s <= grid_s * (1 + 1e-9) + 1e-12


def test_better_than_evenly_spaced_bounds_where_a_few_layers_are_long() -> None:
    """One long layer stretches the range of the bounds: with V = 1000 they lie 0.1 s apart, the other layers take less.

    So partitions of very different slowest stages fall under the same bounds, and the one that communicates least wins.
    """
    chain: dict[str, Any] = {
        "forward_s": [100.0, 0.03, 0.03, 0.02, 0.02, 0.03],
        "backward_s": [0.05, 0.06, 0.06, 0.04, 0.04, 100.0],
        "out_bytes": [0.1, 0.11, 0.1, 0.08, 0.1, 0.0],
        "parameter_bytes": [0.0] * 6,
        "num_grains": 64,
    }
    stages = table(chain)
    found, grid = search_partitions(stages), grid_partitions(stages)
    gains = {}
    for num_stages, partition in grid.items():
        (grid_s,) = published_s(chain, [partition])
        gains[num_stages] = grid_s / found[num_stages].step_s - 1
        print(f"{num_stages} stages: grid {grid_s:.4f} s, exact {found[num_stages].step_s:.4f} s")
    assert max(gains.values()) > 1e-4
    assert min(gains.values()) >= -1e-9


# Profiles


def test_a_profile_is_cut_as_its_stages_are_timed() -> None:
    """Reading samples and round trips count: the table says of every partition what `pipeline_s` says."""
    links = tuple(directed_links(store_links(100.0, 0.1)).values())
    generator = np.random.default_rng(2)
    made = profile(
        [layer(float(generator.uniform(0.1, 2)), out_bytes=float(generator.uniform(0, 300))) for _ in range(6)],
        load_s_per_sample=0.7,
    )
    stages = StageTable.of_profile(made, 2, 5, links)
    for num_stages in range(1, 7):
        for partition in every_partition(6, num_stages):
            wanted_s = pipeline_s([stage_times(made, *stage, 2) for stage in partition], 5, links)
            assert stages.step_s(np.array([end for _, end in partition])) == pytest.approx(wanted_s)


def test_of_many_partitions_several_are_proposed() -> None:
    links = tuple(directed_links(store_links(100.0, 0.1)).values())
    made = profile([layer(1.0 + at % 3, out_bytes=10.0 * (at % 4)) for at in range(30)])
    stages = StageTable.of_profile(made, 2, 8, links)
    proposed = best_partitions(stages, [6], max_each=3)[6]
    assert len(set(proposed)) == 3
    times = [pipeline_s([stage_times(made, *stage, 2) for stage in partition], 8, links) for partition in proposed]
    assert times == sorted(times)
    assert best_partitions(stages, [31], max_each=3) == {31: []}


# What is refused


def small_table() -> StageTable:
    return table_of_layers([1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], 1.0, 2)


BAD_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"num_grains": 0}, "`num_grains` is 0; it must be at least 1"),
    ({"forward_s": np.zeros((2, 2))}, "shapes of a stage table do not agree"),
    ({"cut_s": np.zeros(1)}, "with at least one layer"),
    ({"backward_s": np.full((3, 3), -1.0)}, "`backward_s` is -1; it must be at least 0"),
    (
        {"reduce_s": np.full((3, 3), np.inf)},
        "`reduce_s` has a value that is not finite; mark infeasible stages in `fits`",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD_TABLES, ids=["grains", "shape", "no layer", "negative", "endless"])
def test_a_table_that_makes_no_sense_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(small_table(), **changed)


@pytest.mark.parametrize("asked", [{"stage_counts": [0]}, {"max_each": 0}, {"max_labels": 0}], ids=str)
def test_asking_for_nothing_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="ask for at least 1 of each"):
        search_partitions(small_table(), **asked)


def test_more_stages_than_layers_have_no_partition() -> None:
    assert sorted(search_partitions(small_table(), [1, 2, 5])) == [1, 2]
