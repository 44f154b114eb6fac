"""FuncPipe's own linearised program (Appendix C), solved by HiGHS, has the value that zooid's search finds.

The program decides x (a cut behind layer i) and z (layer i's size); max and products are linearised as there. Its
objective is quadratic, time × rate: for every degree, the least time is found for ever lower rates instead, which are
whole numbers here.
"""

from typing import Any

import highspy
import numpy as np
import pytest

from benchmarks.baselines.funcpipe_memory import funcpipe_memory_bytes
from zooid.planner.stage_sizes import Aim, Degree, LayerCosts, MemberSizes, StageSizesProblem, StageSizesSearch
from zooid.predictor.equations.array_checks import Array

NUM_INSTANCES = 20
PRICES = np.array([1.0, 2.0, 4.0])
BASE_BYTES = 5.0


def instance(seed: int) -> tuple[StageSizesProblem, Array]:
    """Uneven layers on three sizes, with memory that rules out some stages; and the activations of each layer."""
    generator = np.random.default_rng(seed)
    num_layers = int(generator.integers(4, 6))
    forward_s = generator.uniform(0.2, 2, (num_layers, 1)) / np.array([1, 1.9, 3.4])
    shaken = forward_s * generator.uniform(0.9, 1.1, (num_layers, 3))
    backward_s = shaken * generator.uniform(1.4, 2.6, (num_layers, 1))
    parameter_bytes, activation_bytes = generator.uniform(0.5, 10, num_layers), generator.uniform(0.5, 3, num_layers)
    degrees = (Degree(num_replicas=1, num_grains=6), Degree(num_replicas=3, num_grains=2))
    problem = StageSizesProblem(
        layers=LayerCosts(shaken, backward_s, parameter_bytes, generator.uniform(0.2, 3, num_layers)),
        sizes=MemberSizes(np.array([60.0, 100.0, 200.0]), generator.uniform(3, 12, 3), PRICES),
        degrees=degrees,
        needed_bytes=funcpipe_memory_bytes(parameter_bytes, activation_bytes, degrees, BASE_BYTES),
        latency_s=0.05,
        slowdown=1.1,
    )
    return problem, activation_bytes


def least_time(
    problem: StageSizesProblem, activation_bytes: Array, degree: Degree, most_rate: float, most_s: float
) -> tuple[float, float] | None:
    """(time, rate) of the fastest pipeline of at most that rate and time; None where there is none."""
    layers, sizes = problem.layers, problem.sizes
    count, num_sizes, beta, latency_s = len(layers), len(sizes), problem.slowdown, problem.latency_s
    has_replicas = degree.num_replicas > 1
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 1e-10)
    model.setOptionValue("mip_feasibility_tolerance", 1e-9)

    def amount() -> Any:
        return model.addVariable(lb=0)

    x = [model.addBinary() for _ in range(count - 1)]
    z = [[model.addBinary() for _ in range(num_sizes)] for _ in range(count)]
    for chosen in z:
        model.addConstr(model.qsum(chosen) == 1)  # (3d)
    for i in range(1, count):  # (3c): a stage has one size
        for j in range(num_sizes):
            model.addConstr(z[i][j] - z[i - 1][j] <= x[i - 1])
            model.addConstr(z[i - 1][j] - z[i][j] <= x[i - 1])

    def together(binary: Any, choice: list[Any]) -> list[Any]:
        """The products of a binary variable and those of a size, technique 1; their sum is the binary variable."""
        products = [amount() for _ in choice]
        for product, one in zip(products, choice, strict=True):
            model.addConstr(product <= one)
            model.addConstr(product >= binary + one - 1)
        model.addConstr(model.qsum(products) == binary)
        return products

    cut_near = [together(x[i], z[i]) for i in range(count - 1)]
    cut_far = [together(x[i], z[i + 1]) for i in range(count - 1)]
    moved_s = layers.out_bytes[:, None] / sizes.bytes_per_s + latency_s  # (8)
    up = [model.qsum(p * float(s) for p, s in zip(cut_near[i], moved_s[i], strict=True)) for i in range(count - 1)]
    down = [model.qsum(p * float(s) for p, s in zip(cut_far[i], moved_s[i], strict=True)) for i in range(count - 1)]
    ahead = [model.qsum(z[i][j] * float(beta * layers.forward_s[i, j]) for j in range(num_sizes)) for i in range(count)]
    back = [model.qsum(z[i][j] * float(beta * layers.backward_s[i, j]) for j in range(num_sizes)) for i in range(count)]

    def summed(values: list[Any], most: float, upwards: bool) -> list[Any]:
        """û of (4) and (10): the sum over the stage so far, from its one end or its other, technique 2."""
        sums = [amount() for _ in range(count)]
        for i in range(count):
            model.addConstr(sums[i] >= values[i])
            before, cut = (i - 1, i - 1) if upwards else (i + 1, i)
            if 0 <= before < count:
                model.addConstr(sums[i] >= values[i] + sums[before] - most * x[cut])
        return sums

    def constants(values: Array) -> list[Any]:
        return [model.addVariable(lb=float(value), ub=float(value)) for value in values]

    parameters = constants(layers.parameter_bytes)
    kept = summed(constants(activation_bytes), float(activation_bytes.sum()), upwards=True)
    held = summed(parameters, float(layers.parameter_bytes.sum()), upwards=True)
    synced = summed(parameters, float(layers.parameter_bytes.sum()), upwards=False)
    for i in range(count):  # (3b)
        memory = model.qsum(z[i][j] * float(sizes.memory_bytes[j]) for j in range(num_sizes))
        model.addConstr(degree.num_grains * kept[i] + (4 if has_replicas else 2) * held[i] + BASE_BYTES <= memory)
    longest_ahead = amount()  # (9), technique 3: it is minimised, so that it need only be an upper bound
    for value in [*summed(ahead, float(beta * layers.forward_s.max(1).sum()), upwards=True), *up, *down]:
        model.addConstr(longest_ahead >= value)
    laps = degree.num_grains - 1
    forward = model.qsum([*ahead, *up, *down]) + laps * longest_ahead
    stage_back = summed(back, float(beta * layers.backward_s.max(1).sum()), upwards=False)
    step = model.addVariable(lb=0, ub=most_s)
    most_sync = float(2 * layers.parameter_bytes.sum() / sizes.bytes_per_s.min())
    for i in range(count):
        longest_back = amount()  # (11): over the stages from i on, and the cuts behind i
        for value in [*stage_back[i:], *up[i:], *down[i:]]:
            model.addConstr(longest_back >= value)
        ends = forward + model.qsum([*back[i:], *up[i:], *down[i:]]) + laps * longest_back
        model.addConstr(step >= ends)
        if has_replicas:  # (12) for the size that is chosen
            for j in range(num_sizes):
                sync = synced[i] * float(2 / sizes.bytes_per_s[j]) + (2 + degree.num_replicas) * latency_s
                model.addConstr(step >= ends + sync - most_sync * (1 - z[i][j]))
    paid = [cut_near[i][j] * float(PRICES[j]) for i in range(count - 1) for j in range(num_sizes)]
    rate = model.qsum([*paid, *(z[-1][j] * float(PRICES[j]) for j in range(num_sizes))])  # (5)
    model.addConstr(rate <= most_rate)
    model.minimize(step)
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = model.getSolution().col_value
    chosen = [int(np.argmax([solution[one.index] for one in choice])) for choice in z]
    last = [i for i in range(count) if i == count - 1 or solution[x[i].index] > 0.5]
    return model.getObjectiveValue(), float(sum(PRICES[chosen[i]] for i in last))


@pytest.mark.parametrize("seed", range(NUM_INSTANCES))
def test_highs_finds_nothing_better_than_the_search(seed: int) -> None:
    problem, activation_bytes = instance(seed)
    weights = [Aim(usd=1.0, s=0.0), Aim(usd=1.0, s=8.0), Aim(usd=1.0, s=200.0)][seed % 3]
    least = float("inf")
    for degree in problem.degrees:
        most_rate = float(len(problem.layers) * PRICES.max())
        while most_rate >= PRICES.min():
            worth_s = least / (weights.usd * degree.num_replicas * PRICES.min() + weights.s)
            found = least_time(problem, activation_bytes, degree, most_rate, min(worth_s * 1.001, 1e4))
            if found is None:
                break
            time_s, rate = found
            least = min(least, time_s * (weights.usd * degree.num_replicas * rate + weights.s))
            most_rate = rate - 1
    pick = StageSizesSearch(problem).best(weights)
    assert pick.value == pytest.approx(least, rel=1e-6)
    assert pick.proof.status == "optimal"
