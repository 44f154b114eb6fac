"""Trains Fashion-MNIST with one worker, with many, and with workers that AdaBatch doubles, as in Hydrozoa's Figure 8.

The first part trains for real, with one thread for each worker: 1 worker, 2 workers, and 1 to 2. The second part has 1,
16, and 1 to 16 workers. They compute real gradients of a small network, and sleep until the planned time of a larger
one has passed. So 16 workers fit on two cores, and `late` counts those that could not keep that time.

Every evaluation is a row: seconds since the first step began, accuracy, workers, and dollars since then. Evaluations
themselves are left out of times and costs. The last line is JSON. For both parts, it has the time and the cost of each
run until it reached the accuracy of one worker at its end (`one`), 85 %, and 71 %. `about_one` is the first of these
less one standard error of the test, 0.36 percentage points at 85 % of 10,000 pictures. `elastic_vs_one` and
`elastic_vs_many` are the ratios of the growing run to the others, and `many` is the accuracy of many workers at their
end.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.adabatch.picture import draw
from benchmarks.adabatch.recording import Recording
from benchmarks.adabatch.runs import EXAMPLE, Size, Workers, compared, rehearsal, train
from lab.load import ForeignLoad

DATA = Path("/usr/share/datasets/fashion-mnist")
REAL = Size(width=1024, rate=1e-3, per_worker=256, num_samples=60_000, epochs=4, most=2, evaluate_every=24)
REHEARSED = Size(width=64, rate=1e-3, per_worker=256, num_samples=60_000, epochs=5, most=16, evaluate_every=15)
QUICK = Size(width=64, rate=1e-3, per_worker=256, num_samples=7_680, epochs=3, most=4, evaluate_every=8)
PACE_S, QUICK_PACE_S = 0.25, 0.15
"""Seconds for which each rehearsed worker computes in a step."""
PAPER_ACCURACIES = (0.85, 0.71)
"""Hydrozoa, §5.4: the accuracy of 1 and of 1 to 16 workers, and that of 16, at the end."""

Figures = dict[str, object]


def measure(run: Callable[[Workers], Recording], kind: str, runs: list[Workers]) -> dict[str, Recording]:
    """Carry out the runs of one part, and print what they did over time."""
    found: dict[str, Recording] = {}
    for workers in runs:
        recording = found[workers.name] = run(workers)
        for at_s, accuracy in recording.accuracy:
            row = {
                "part": kind,
                "workers": workers.name,
                "s": round(at_s, 2),
                "accuracy": round(accuracy, 4),
                "num_workers": recording.workers_at(at_s),
                "usd": round(recording.usd_at(at_s), 7),
            }
            print(json.dumps(row), flush=True)
        print(_in_words(kind, workers, recording), file=sys.stderr, flush=True)
    return found


def figures(found: Mapping[str, Recording]) -> Figures:
    """The time and the cost of each run, and of the growing one in comparison."""
    one, many, elastic = found.values()
    targets = {"one": one.accuracy[-1][1], "about_one": one.certain_accuracy}
    targets |= {f"{100 * each:.0f}%": each for each in PAPER_ACCURACIES}
    return {
        "runs": {name: _figures_of(recording, targets) for name, recording in found.items()},
        "elastic_vs_one": {name: _ratios(elastic, one, target) for name, target in targets.items()},
        "elastic_vs_many": {name: _ratios(elastic, many, target) for name, target in targets.items()}
        | {"many": _ratios(elastic, many, many.accuracy[-1][1])},
    }


def _figures_of(recording: Recording, targets: Mapping[str, float]) -> Figures:
    return {
        "accuracy": round(recording.accuracy[-1][1], 4),
        "best": round(max(value for _, value in recording.accuracy), 4),
        "steps": recording.num_steps,
        "s": round(recording.run_s, 1),
        "usd": round(recording.usd_at(recording.run_s), 6),
        "late": len(recording.late),
        "steps_waited": recording.waits(),
    } | {f"to_{name}": _reached(recording, target) for name, target in targets.items()}


def _reached(recording: Recording, accuracy: float) -> Figures | None:
    at_s = recording.reached_s(accuracy)
    return None if at_s is None else {"s": round(at_s, 1), "usd": round(recording.usd_at(at_s), 6)}


def _ratios(elastic: Recording, other: Recording, accuracy: float) -> Figures | None:
    """Time and cost of the growing run until this accuracy, in comparison; None if one of them never reached it."""
    elastic_s, other_s = elastic.reached_s(accuracy), other.reached_s(accuracy)
    if elastic_s is None or other_s is None:
        return None
    return {"s": round(elastic_s / other_s, 3), "usd": round(elastic.usd_at(elastic_s) / other.usd_at(other_s), 3)}


def _in_words(kind: str, workers: Workers, recording: Recording) -> str:
    return (
        f"{kind}, {workers.name} worker(s): {recording.accuracy[-1][1]:.1%} after {recording.num_steps} steps and "
        f"{recording.run_s:.1f} s, ${recording.usd_at(recording.run_s):.5f}; {len(recording.late)} late, larger "
        f"batches waited {recording.waits()} steps for their workers"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="train Fashion-MNIST with fixed and with growing numbers of workers")
    parser.add_argument("--part", choices=("real", "rehearsed"), help="only one of both parts")
    parser.add_argument("--pace", type=float, metavar="SECONDS", help="how long rehearsed workers compute in a step")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the rehearsed runs as SVG, too")
    parser.add_argument("--quick", action="store_true", help="a short form: 1, 4, and 1 to 4 workers, rehearsed")
    given = parser.parse_args()
    if not DATA.is_dir():
        print(f"{EXAMPLE.name} needs {DATA}; install it with: apt-get install dataset-fashion-mnist", file=sys.stderr)
        print(json.dumps({"skipped": "dataset-fashion-mnist is not installed"}))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that the members are ended
    last: Figures = {}
    with ForeignLoad() as foreign, tempfile.TemporaryDirectory(prefix="zooid-adabatch-") as name:
        folder = Path(name)
        if given.part != "rehearsed" and not given.quick:
            runs = compared(REAL)
            last["real"] = figures(measure(lambda workers: train(folder / "real", REAL, workers), "real", runs))
        if given.part != "real":
            size = QUICK if given.quick else REHEARSED
            runs = compared(size)
            pace_s = given.pace or (QUICK_PACE_S if given.quick else PACE_S)
            found = measure(rehearsal(folder / "rehearsed", size, pace_s), "rehearsed", runs)
            last["rehearsed"] = {**figures(found), "pace_s": pace_s}
            if given.picture is not None:
                given.picture.write_text(draw(found))
    print(json.dumps({**last, "foreign_cores": round(foreign.num_cores, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
