"""How many architectures of transformers zooid can cut into stages that compute what the untouched model computes.

Every architecture that has a head with a loss, and that plain PyTorch trains from a shrunken configuration, becomes a
job with random weights in float64. Outcomes: `exact`, its stages have the loss, the gradients and the buffers of the
untouched model; `whole`, it trains as one stage; `refused`, with a reason; `error`, anything else.
"""

import argparse
import json
import random
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.architectures.heads import architectures
from benchmarks.architectures.processes import TIME_LIMIT_S, run_all

OUTCOMES = ("exact", "whole", "refused", "error")
QUICK_SIZE = 25
QUICK_SEED = 7
"""Draws the sample of a quick run; printed, so that another run can repeat it."""

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rows as lines of JSON while they are found; the last line is the summary. Progress goes to stderr."""
    options = _options(arguments)
    warnings.simplefilter("ignore")
    trial = _warm_trial()
    names = _chosen(options)
    left_out: list[Row] = []
    rows: list[Row] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("coverage of transformers", total=len(names))
        for row in run_all(trial, names, options.jobs, options.time_limit):
            progress.update(task, advance=1)
            if row["outcome"] == "left out":
                left_out.append(row)
            else:
                rows.append(row)
                print(json.dumps(row), flush=True)
            if options.left_out is not None:
                options.left_out.write_text("".join(f"{json.dumps(each)}\n" for each in left_out))
    print(json.dumps(summary(rows, len(left_out), options.seed if options.quick else None)))
    return int(any(row["outcome"] == "error" for row in rows))


def summary(rows: list[Row], num_left_out: int, seed: int | None = None) -> Row:
    """Counts of all outcomes and their shares of the architectures that can be trained."""
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
    shares = {f"{outcome}_share": round(count / max(1, len(rows)), 4) for outcome, count in counts.items()}
    drawn = {} if seed is None else {"seed": seed}
    return {"architectures": len(rows), **counts, **shares, "left_out": num_left_out, **drawn}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="coverage of transformers")
    parser.add_argument("--quick", action="store_true", help=f"a random sample of {QUICK_SIZE} model types")
    parser.add_argument("--seed", type=int, default=QUICK_SEED, help="draws the sample of a quick run")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="model types to try, for example bert gpt2")
    parser.add_argument("--jobs", type=int, default=2, help="architectures tried at the same time")
    parser.add_argument(
        "--time-limit", type=int, default=TIME_LIMIT_S, help="seconds of processor time for one architecture"
    )
    parser.add_argument(
        "--left-out", type=Path, metavar="FILE", help="write here which architectures do not count, and why"
    )
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[str]:
    names = list(architectures())
    if options.only:
        unknown = sorted(set(options.only) - set(names))
        if unknown:
            sys.exit(f"transformers has no model type {', '.join(unknown)}; give some of: {', '.join(names)}")
        return list(options.only)
    return sorted(random.Random(options.seed).sample(names, QUICK_SIZE)) if options.quick else names


def _warm_trial() -> Any:
    """Imports what every process needs, and leaves each of them one thread."""
    import_module("torch").set_num_threads(1)
    import_module("transformers").logging.set_verbosity_error()
    import_module("transformers.modeling_utils")
    trials = import_module("benchmarks.architectures.trial")
    trials.warm_up()
    return trials.try_architecture


if __name__ == "__main__":
    sys.exit(main())
