"""How far predicted time and cost of runs with lost members and limited lifetimes are from what happens.

`python -m benchmarks.interruptions` draws 20 random cases: layouts, rates of losses, lifetimes, start-ups, prices and
checkpoints. Each is predicted by the closed form, and simulated many times, event by event. `--seed` repeats a draw.

`--rehearsed` draws other cases, which last for minutes, and runs them with real members instead. `--cases 0:10` runs
some of them only, and `--parallel` says how many at the same time.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Iterator

from benchmarks.harness import Row, run_benchmark
from benchmarks.interruptions import rehearsed
from benchmarks.interruptions.cases import billed_usd, expected, random_case
from benchmarks.interruptions.event_simulation import simulate_run

NUM_CASES = 20
NUM_RUNS = {True: 40, False: 400}
"""Simulated runs of each case, in the quick form and in the long one."""


def measure(seed: int, num_runs: int) -> Iterator[Row]:
    numbers = random.Random(seed)
    for number in range(NUM_CASES):
        case = random_case(numbers)
        predicted = expected(case)
        losses = random.Random(f"{seed} {number}")
        runs = [simulate_run(case.risk, losses) for _ in range(num_runs)]
        run = predicted.run
        run_s = statistics.fmean(each.run_s for each in runs)
        members_usd = statistics.fmean(billed_usd(case, each.lives_s) for each in runs)
        yield {
            "case": case.name,
            "unlost_s": case.risk.startup_s + case.risk.num_steps * case.risk.step_s,
            "predicted_s": run.run_s,
            "simulated_s": run_s,
            "error": run.run_s / run_s - 1,
            "p95_error": run.p95_s / statistics.quantiles((each.run_s for each in runs), n=20)[-1] - 1,
            "predicted_usd": predicted.members_usd,
            "simulated_usd": members_usd,
            "usd_error": predicted.members_usd / members_usd - 1,
            "losses": f"{run.num_losses:.3g} / {statistics.fmean(each.num_losses for each in runs):.3g}",
            "rollbacks": f"{run.num_rollbacks:.3g} / {statistics.fmean(each.num_rollbacks for each in runs):.3g}",
            "handovers": f"{run.handovers.total:.3g} / {statistics.fmean(each.num_handovers for each in runs):.3g}",
        }


def in_short(rows: list[Row]) -> list[Row]:
    """Mean and largest errors of all cases."""
    names = [name for name in rows[0] if name.endswith("error")]
    sizes = {name: [abs(float(row[name] or 0.0)) for row in rows] for name in names}
    return [
        {"case": "mean", **{name: statistics.fmean(errors) for name, errors in sizes.items()}},
        {"case": "largest", **{name: max(errors) for name, errors in sizes.items()}},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--rehearsed", action="store_true", help="run the cases with real members that sleep")
    parser.add_argument("--cases", default=":", help="with --rehearsed, the cases to run, as FIRST:END")
    parser.add_argument("--parallel", type=int, default=4, help="with --rehearsed, runs at the same time")
    own, rest = parser.parse_known_args()
    print(f"seed {own.seed}", file=sys.stderr)
    if not own.rehearsed:
        title = "interruptions, simulated"
        run_benchmark(
            title, lambda quick: measure(own.seed, NUM_RUNS[quick]), lambda _: NUM_CASES, in_short, arguments=rest
        )
        return
    first, _, end = own.cases.partition(":")
    chosen = range(NUM_CASES)[slice(int(first or 0), int(end or NUM_CASES))]
    run_benchmark(
        "interruptions, rehearsed",
        lambda quick: rehearsed.measure(chosen, own.seed, own.parallel, quick=quick),
        lambda _: len(chosen),
        in_short,
        arguments=rest,
    )


if __name__ == "__main__":
    main()
