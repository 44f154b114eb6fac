"""Placements and local batches that are chosen from 60 probes, beside the best that was measured.

Reads the folder of measured steps that `benchmarks.step_times` reads. Each question is asked of every model with
several seeds; its candidates are the measured rows:

- `batch`: the most samples a second with a given batch, divided among members anyhow
- `any`: the most samples a second at all
- `gpu-seconds`, `node-seconds`: the least GPU time, or time of whole nodes, within a deadline

Regret is what the choice, as measured, takes or costs more than the best measured row, in percent. A choice that misses
the deadline when measured is a failure: its share is reported, and its regret counts as what its row costs more, or 0.

Two ways to spend the probes. `asked`: 36 random rows, then up to 24 in two rounds where the fitted model, with its
spread, says that the answer may lie; with a given batch these are often all rows there are. `random`: all 60 at random.
Every row was measured once, so that what a probe showed is what the choice is judged by. Neighbouring rows of many
GPUs differ by up to a third, which no model foresees: only who looks at a promising row knows it, and what `random`
regrets is mostly that.
"""

import argparse
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, run_benchmark
from benchmarks.step_times import DATA, models_or_skip
from zooid.predictor import StepProbe, fit_scaling
from zooid.predictor.equations.array_checks import Array

PROBES, FIRST, ROUNDS = 60, 36, 2
WAYS = ("asked", "random")
SEEDS, QUICK_SEEDS = 10, 1
MARGIN = 1.645
"""Standard deviations between a prediction and a deadline: 95 % of steps are within."""
BATCHES, FEWEST_ROWS = 5, 8
"""So many given batches are asked for, each of at least so many rows."""
DEADLINES = (0.25, 0.5, 0.75)
"""The samples a second that are needed, as parts of the most that was measured."""


@dataclass(frozen=True, eq=False)
class Question:
    """Rows to choose from, what one of them costs for a second of it and sample, and how long a sample may take."""

    goal: str
    of: str
    rows: Sequence[StepProbe]
    price: Array
    samples: Array
    limit_s: float = math.inf

    @property
    def measured_s(self) -> Array:
        """Of one sample."""
        measured: Array = np.array([row.step_s for row in self.rows]) / self.samples
        return measured

    def best(self) -> float:
        return float(np.min((self.price * self.measured_s)[self.measured_s <= self.limit_s]))


class Knowledge:
    """What is known of a question's rows after some probes: those that were probed, and a guess at the others."""

    def __init__(self, question: Question, probes: Sequence[StepProbe]) -> None:
        steps = fit_scaling(probes).predict_all([(row.placement, row.local_batch) for row in question.rows])
        seen = {(probe.placement, probe.local_batch) for probe in probes}
        self.is_known = np.array([(row.placement, row.local_batch) in seen for row in question.rows])
        guessed = np.array([step.step_s for step in steps]) / question.samples
        self.middle_s = np.where(self.is_known, question.measured_s, guessed)
        self.spread = np.where(self.is_known, 0.0, [step.spread for step in steps])


def choose(question: Question, knowledge: Knowledge) -> int:
    """The row to train with: in time with a margin, and cheapest even where it takes a little longer than guessed."""
    late_s = knowledge.middle_s * np.exp(MARGIN * knowledge.spread)
    cost = question.price * knowledge.middle_s * np.exp(knowledge.spread)
    if not (late_s <= question.limit_s).any():
        return int(np.argmin(late_s))
    return int(np.argmin(np.where(late_s <= question.limit_s, cost, math.inf)))


def promising(question: Question, knowledge: Knowledge, number: int) -> list[StepProbe]:
    """Rows to look at: those that would be the cheapest in time, if they take a little less than guessed."""
    early = np.exp(-knowledge.spread)
    cost = question.price * knowledge.middle_s * early
    known = np.where(knowledge.is_known & (knowledge.middle_s <= question.limit_s), cost, math.inf)
    in_time = knowledge.middle_s * early <= question.limit_s
    may_be_best = ~knowledge.is_known & in_time & (cost < known.min())
    order = np.argsort(np.where(may_be_best, cost, math.inf), kind="stable")[: min(number, int(may_be_best.sum()))]
    return [question.rows[at] for at in order]


def probe(question: Question, way: str, rows: Sequence[StepProbe], seed: int) -> tuple[Knowledge, int]:
    """What is known when all probes are spent, or no other row is promising; and how many were made."""
    drawn = random.Random(seed).sample(rows, PROBES)
    if way == "random":
        return Knowledge(question, drawn), len(drawn)
    probes = drawn[:FIRST]
    for _ in range(ROUNDS):
        knowledge = Knowledge(question, probes)
        probes += promising(question, knowledge, (PROBES - FIRST) // ROUNDS)
    return Knowledge(question, probes), len(probes)


def questions(rows: Sequence[StepProbe]) -> Iterator[Question]:
    samples = np.array([sum(row.placement) * row.local_batch for row in rows], float)
    ones = np.ones(len(rows))
    by_batch = defaultdict(list)
    for at, number in enumerate(samples):
        by_batch[int(number)].append(at)
    often = sorted(number for number, own in by_batch.items() if len(own) >= FEWEST_ROWS)
    for number in (often[round(at * (len(often) - 1) / (BATCHES - 1))] for at in range(BATCHES)):
        own = by_batch[number]
        yield Question("batch", str(number), [rows[at] for at in own], ones[own], samples[own])
    yield Question("any", "", rows, ones, samples)
    fastest_s = min(row.step_s / number for row, number in zip(rows, samples, strict=True))
    gpus = np.array([sum(row.placement) for row in rows], float)
    nodes = np.array([len(row.placement) for row in rows], float)
    for part in DEADLINES:
        for goal, price in (("gpu-seconds", gpus), ("node-seconds", nodes)):
            yield Question(goal, f"{part:g} of the fastest", rows, price, samples, fastest_s / part)


def answer(model: str, way: str, rows: Sequence[StepProbe], seed: int, question: Question) -> Row:
    knowledge, num_probes = probe(question, way, rows, seed)
    chosen = choose(question, knowledge)
    measured_s = float(question.measured_s[chosen])
    regret = float(question.price[chosen]) * measured_s / question.best() - 1
    row = question.rows[chosen]
    return {
        "way": way,
        "model": model,
        "goal": question.goal,
        "of": question.of,
        "seed": seed,
        "placement": "+".join(str(members) for members in row.placement),
        "local_batch": row.local_batch,
        "probes": num_probes,
        "regret_percent": 100 * max(regret, 0.0),
        "is_late": bool(measured_s > question.limit_s),
    }


def summarise(rows: list[Row]) -> list[Row]:
    """Of each way: mean over questions and seeds, for every model and goal; then the mean of those."""
    totals: list[Row] = []
    for way in WAYS:
        mine = [row for row in rows if row["way"] == way]
        pairs = dict.fromkeys((str(row["model"]), str(row["goal"])) for row in mine)
        means = []
        for model, goal in pairs:
            own = [row for row in mine if (row["model"], row["goal"]) == (model, goal)]
            regrets = [float(row["regret_percent"] or 0) for row in own]
            means.append(statistics.mean(regrets))
            late = statistics.mean(bool(row["is_late"]) for row in own)
            totals.append(
                {"way": way, "model": model, "goal": goal, "mean_regret_percent": means[-1], "late_percent": 100 * late}
            )
        limited = [bool(row["is_late"]) for row in mine if "seconds" in str(row["goal"])]
        totals.append(
            {
                "way": way,
                "model": "all",
                "goal": "all",
                "mean_regret_percent": statistics.mean(means),
                "late_percent": 100 * statistics.mean(limited),
                "seeds": len({row["seed"] for row in mine}),
            }
        )
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement_regret", description="chosen placements")
    parser.add_argument("--data", type=Path, help=f"folder of measured steps ({DATA})")
    parser.add_argument("--seeds", type=int, help=f"how many draws of probes ({SEEDS}; {QUICK_SEEDS} if quick)")
    parser.add_argument("--quick", action="store_true", help="a short form: one draw of probes")
    given = parser.parse_args()
    models = models_or_skip(parser, given.data)
    if not models:
        return
    seeds = range(given.seeds or (QUICK_SEEDS if given.quick else SEEDS))
    asked = {model: list(questions(rows)) for model, rows in models.items()}

    def measure(_: bool) -> Iterator[Row]:
        for way in WAYS:
            for model, rows in models.items():
                for seed in seeds:
                    for question in asked[model]:
                        yield answer(model, way, rows, seed, question)

    run_benchmark(
        "chosen placements",
        measure,
        lambda _: len(WAYS) * len(seeds) * sum(len(own) for own in asked.values()),
        summarise,
        arguments=["--quick"] if given.quick else [],
    )


if __name__ == "__main__":
    main()
