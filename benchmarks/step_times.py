"""Step times of data-parallel training that `fit_scaling` predicts from few rows, beside what real GPUs took.

Reads a folder of measured steps, two files a model: MODEL-placements.csv (placement, local_bsz, step_time, sync_time;
a placement is a digit for each node, its GPUs) and MODEL-scalability.csv (num_nodes, num_replicas instead of a
placement). Two questions, each asked of every model with several seeds:

- `--fit-share 0.1`: fitted on a random tenth of a model's rows, how far off are the others?
- `--fit-max-gpus 8 --probes 60`: fitted on 60 random rows of at most 8 GPUs, how far off are all rows of more?

With neither option, both are asked as above. Errors are means of |predicted / measured − 1|, in percent.
"""

import argparse
import csv
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, run_benchmark
from zooid.predictor import StepProbe, fit_scaling

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "step-times"
SEEDS = 5
QUICK_SEEDS = 1
PLACEMENTS, SCALABILITY = "-placements.csv", "-scalability.csv"


@dataclass(frozen=True)
class Share:
    """Fit on a random part of all rows, check on the rest."""

    part: float

    @property
    def name(self) -> str:
        return f"fit-share {self.part:g}"

    def split(self, rows: Sequence[StepProbe], draw: random.Random) -> tuple[list[StepProbe], list[StepProbe]]:
        shuffled = draw.sample(rows, len(rows))
        num = round(self.part * len(rows))
        return shuffled[:num], shuffled[num:]


@dataclass(frozen=True)
class Smaller:
    """Fit on some rows of few GPUs, check on all rows of more."""

    max_gpus: int
    num_probes: int

    @property
    def name(self) -> str:
        return f"fit-max-gpus {self.max_gpus} probes {self.num_probes}"

    def split(self, rows: Sequence[StepProbe], draw: random.Random) -> tuple[list[StepProbe], list[StepProbe]]:
        small = [row for row in rows if sum(row.placement) <= self.max_gpus]
        probes = draw.sample(small, min(self.num_probes, len(small)))
        return probes, [row for row in rows if sum(row.placement) > self.max_gpus]


Mode = Share | Smaller
MODES: tuple[Mode, ...] = (Share(0.1), Smaller(8, 60))


def read_models(folder: Path) -> dict[str, list[StepProbe]]:
    """Rows of every model in the folder, by its name."""
    models = {}
    for path in sorted(folder.glob("*" + PLACEMENTS)):
        name = path.name.removesuffix(PLACEMENTS)
        rows = [_probe(tuple(int(digit) for digit in row["placement"]), row) for row in _rows(path)]
        many = folder / (name + SCALABILITY)
        if many.exists():
            rows += [_probe(_evenly(int(row["num_replicas"]), int(row["num_nodes"])), row) for row in _rows(many)]
        models[name] = rows
    return models


def compare(model: str, rows: Sequence[StepProbe], mode: Mode, seed: int) -> Row:
    """Fit on some rows, and compare the others with what was predicted."""
    probes, others = mode.split(rows, random.Random(seed))
    begin_s = time.perf_counter()
    fitted = fit_scaling(probes)
    fit_s = time.perf_counter() - begin_s
    predicted = fitted.predict_all([(row.placement, row.local_batch) for row in others])
    errors = [abs(step.step_s / row.step_s - 1) for step, row in zip(predicted, others, strict=True)]
    return {
        "mode": mode.name,
        "model": model,
        "seed": seed,
        "fitted_rows": len(probes),
        "checked_rows": len(others),
        "error_percent": 100 * statistics.mean(errors),
        "worst_tenth_percent": 100 * statistics.quantiles(errors, n=10)[-1],
        "fit_s": fit_s,
    }


def summarise(rows: list[Row]) -> list[Row]:
    """Mean over seeds, then over models; and the worst of the models and of the seeds."""
    totals: list[Row] = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode]
        by_model = _means(mine, "model")
        by_seed = _means(mine, "seed")
        totals.append(
            {
                "mode": mode,
                "mean_error_percent": statistics.mean(by_model.values()),
                "worst_model_percent": max(by_model.values()),
                "worst_seed_percent": max(by_seed.values()),
                "models": len(by_model),
                "seeds": len(by_seed),
            }
        )
    return totals


def _means(rows: Sequence[Row], column: str) -> dict[str, float]:
    values = dict.fromkeys(str(row[column]) for row in rows)
    return {
        value: statistics.mean(float(row["error_percent"] or 0) for row in rows if str(row[column]) == value)
        for value in values
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _probe(placement: tuple[int, ...], row: dict[str, str]) -> StepProbe:
    step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
    # clocks of the two differ a little, so that a part can seem longer than the whole
    return StepProbe(
        placement=placement, local_batch=int(row["local_bsz"]), step_s=step_s, sync_s=min(max(sync_s, 0.0), step_s)
    )


def _evenly(num_members: int, num_nodes: int) -> tuple[int, ...]:
    each, more = divmod(num_members, num_nodes)
    return tuple(each + 1 if node < more else each for node in range(num_nodes))


def modes(given: argparse.Namespace) -> tuple[Mode, ...]:
    asked: list[Mode] = []
    if given.fit_share is not None:
        asked.append(Share(given.fit_share))
    if given.fit_max_gpus is not None:
        asked.append(Smaller(given.fit_max_gpus, given.probes))
    return tuple(asked) or MODES


def models_or_skip(parser: argparse.ArgumentParser, given: Path | None) -> dict[str, list[StepProbe]]:
    """Those in the folder that is given, which has to have some, or else in the usual one, which need not be there."""
    folder = given or DATA
    models = read_models(folder)
    if not models:
        said = f"no measured step times (files named MODEL{PLACEMENTS}) in {folder}"
        if given is not None:
            parser.error(said)
        print(f"skipped: {said}; --data names another folder", file=sys.stderr)
    return models


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_times", description="predicted step times")
    parser.add_argument("--fit-share", type=float, help="fit on this part of the rows, for example 0.1")
    parser.add_argument("--fit-max-gpus", type=int, help="fit on rows of at most so many GPUs, check on those of more")
    parser.add_argument("--probes", type=int, default=60, help="how many rows --fit-max-gpus fits on (60)")
    parser.add_argument("--data", type=Path, help=f"folder of measured steps ({DATA})")
    parser.add_argument("--seeds", type=int, help=f"how many random choices of rows ({SEEDS}; {QUICK_SEEDS} if quick)")
    parser.add_argument("--quick", action="store_true", help="a short form: one choice of rows")
    given = parser.parse_args()
    models = models_or_skip(parser, given.data)
    if not models:
        return
    seeds = range(given.seeds or (QUICK_SEEDS if given.quick else SEEDS))

    def measure(_: bool) -> Iterator[Row]:
        for mode in modes(given):
            for model, rows in models.items():
                for seed in seeds:
                    yield compare(model, rows, mode, seed)

    run_benchmark(
        "predicted step times",
        measure,
        lambda _: len(modes(given)) * len(models) * len(seeds),
        summarise,
        arguments=["--quick"] if given.quick else [],
    )


if __name__ == "__main__":
    main()
