"""Disturbs runs at random, and compares each with the run that nobody disturbs.

`python -m benchmarks.chaos --seeds 200` draws one run from each seed: layout, transport, job and faults. A run that
fails prints its whole plan; `--only SEED` repeats it. The last line is JSON. Runs that need network namespaces are
skipped and counted where there may be none.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.campaign import Campaign, Outcome
from benchmarks.chaos.trials import JOBS, Trial, draw
from lab.namespaces import missing_privilege
from lab.nursery import nursery

QUICK_SEEDS = 6


@dataclass
class Tally:
    """What is counted over all trials."""

    num_runs: int = 0
    num_missed: int = 0
    num_resumes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    num_skipped: int = 0
    failed: list[int] = field(default_factory=list)
    """Seeds."""

    def skips(self, trial: Trial) -> bool:
        """Whether this machine cannot try this one."""
        if not trial.needs_namespaces or (lacking := missing_privilege()) is None:
            return False
        _say(f"seed {trial.seed} is skipped: network namespaces need {lacking}; run as root")
        self.num_skipped += 1
        return True

    def add(self, outcome: Outcome) -> str:
        """Count an outcome; what to say about it."""
        self.num_runs += 1
        self.num_missed += outcome.num_missed
        self.num_resumes += outcome.num_resumes
        self.faults.update(outcome.fired)
        if outcome.problems:
            self.failed.append(outcome.trial.seed)
        return "FAILED" if outcome.problems else "ok"


def chaos(trials: Iterable[Trial], folder: Path) -> Tally:
    """Run all trials, and say how each has ended."""
    tally = Tally()
    with nursery() as home, Campaign(home, folder) as campaign:
        for trial in trials:
            if tally.skips(trial):
                continue
            outcome = campaign.run(trial)
            verdict = tally.add(outcome)
            _say(f"{_summary(trial)}: {verdict}, {outcome.wall_s:.1f} s")
            if outcome.problems:
                _say(json.dumps(asdict(trial)))
                for problem in outcome.problems:
                    _say(f"  {problem}")
    return tally


def _summary(trial: Trial) -> str:
    faults = [f"{fault.kind} {fault.member or 'it'} after {fault.after_step}" for fault in trial.faults]
    faults += [f"store {trial.store_error_rate:g}"] if trial.store_error_rate else []
    layout = f"{trial.num_replicas}x{trial.num_stages}{' insured' if trial.is_insured else ''}"
    return f"seed {trial.seed}, {layout}, {trial.transport}, {trial.job}, {'; '.join(faults)}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="disturb runs at random, and compare each with an undisturbed one")
    parser.add_argument("--seeds", type=int, default=200, help="how many runs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, action="append", help="a seed; may be given several times")
    parser.add_argument("--reproducible", action="store_true", help="only jobs that must be bit-equal in float32")
    parser.add_argument("--quick", action="store_true", help=f"a short form: {QUICK_SEEDS} runs")
    parser.add_argument("--keep", type=Path, help="a new folder in which everything is kept")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that the laboratory is cleared away
    jobs = ("reproducible",) if given.reproducible else JOBS
    seeds = given.only or range(given.seed, given.seed + (QUICK_SEEDS if given.quick else given.seeds))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zooid-chaos-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        tally = chaos((draw(seed, jobs) for seed in seeds), folder.resolve())
    print(json.dumps({**_result(tally), "seed": given.seed, "wall_s": round(time.monotonic() - began_s, 1)}))
    return 1 if tally.failed else 0


def _result(tally: Tally) -> dict[str, Any]:
    return {
        "runs": tally.num_runs,
        "failed": len(tally.failed),
        "failed_seeds": tally.failed,
        "faults": dict(sorted(tally.faults.items())),
        "missed": tally.num_missed,
        "resumes": tally.num_resumes,
        "skipped": tally.num_skipped,
    }


if __name__ == "__main__":
    sys.exit(main())
