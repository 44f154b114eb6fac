"""How far predicted time and cost of runs with lost members and limited lifetimes are from what happens.

`python -m benchmarks.interruptions` draws 20 random cases: layouts, rates of losses, lifetimes, start-ups, prices and
checkpoints. Each is predicted by the closed form, and observed many times. `--seed` repeats a draw.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.harness import Row, run_benchmark
from benchmarks.interruptions.cases import Case, billed_usd, expected, random_case
from benchmarks.interruptions.event_simulation import simulate_run

NUM_CASES = 20
NUM_RUNS = {True: 40, False: 400}
"""Simulated runs of each case, in the quick form and in the long one."""


@dataclass(frozen=True)
class Observed:
    """What happened to a case, on average over its runs."""

    run_s: float
    run_p95_s: float
    members_usd: float
    num_losses: float
    num_rollbacks: float
    num_handovers: float


Observe = Callable[[Case, random.Random, int], Observed]
"""Runs a case some number of times. The random numbers decide when members are lost."""


def simulated(case: Case, numbers: random.Random, num_runs: int) -> Observed:
    """Observe a case in simulated time, event by event."""
    runs = [simulate_run(case.risk, numbers) for _ in range(num_runs)]
    return Observed(
        run_s=statistics.fmean(run.run_s for run in runs),
        run_p95_s=statistics.quantiles((run.run_s for run in runs), n=20)[-1],
        members_usd=statistics.fmean(billed_usd(case, run.lives_s) for run in runs),
        num_losses=statistics.fmean(run.num_losses for run in runs),
        num_rollbacks=statistics.fmean(run.num_rollbacks for run in runs),
        num_handovers=statistics.fmean(run.num_handovers for run in runs),
    )


OBSERVERS: dict[str, Observe] = {"simulation": simulated}
"""What predictions may be compared with, by the value of `--against`."""


def measure(observe: Observe, seed: int, num_runs: int) -> Iterator[Row]:
    numbers = random.Random(seed)
    for number in range(NUM_CASES):
        case = random_case(numbers)
        predicted = expected(case)
        observed = observe(case, random.Random(f"{seed} {number}"), num_runs)
        run = predicted.run
        yield {
            "case": case.name,
            "unlost_s": case.risk.startup_s + case.risk.num_steps * case.risk.step_s,
            "predicted_s": run.run_s,
            "observed_s": observed.run_s,
            "error": run.run_s / observed.run_s - 1,
            "p95_error": run.p95_s / observed.run_p95_s - 1,
            "predicted_usd": predicted.members_usd,
            "observed_usd": observed.members_usd,
            "usd_error": predicted.members_usd / observed.members_usd - 1,
            "losses": f"{run.num_losses:.3g} / {observed.num_losses:.3g}",
            "rollbacks": f"{run.num_rollbacks:.3g} / {observed.num_rollbacks:.3g}",
            "handovers": f"{run.handovers.total:.3g} / {observed.num_handovers:.3g}",
        }


def in_short(rows: list[Row]) -> list[Row]:
    """Mean and largest errors of all cases."""
    names = ("error", "p95_error", "usd_error")
    sizes = {name: [abs(float(row[name] or 0.0)) for row in rows] for name in names}
    return [
        {"case": "mean", **{name: statistics.fmean(errors) for name, errors in sizes.items()}},
        {"case": "largest", **{name: max(errors) for name, errors in sizes.items()}},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--against", choices=sorted(OBSERVERS), default="simulation")
    own, rest = parser.parse_known_args()
    print(f"seed {own.seed}", file=sys.stderr)
    run_benchmark(
        f"interruptions, against {own.against}",
        lambda quick: measure(OBSERVERS[own.against], own.seed, NUM_RUNS[quick]),
        lambda quick: NUM_CASES,
        in_short,
        arguments=rest,
    )


if __name__ == "__main__":
    main()
