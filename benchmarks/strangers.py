"""Strangers at the door: eight ranks meet and train with and without them, in turn, in the same processes.

All strangers connect to the door of rank 0 before the last rank comes, say nothing or one byte at a time, and come back
whenever they are sent away. `meeting_s` is how long the last rank took to meet, `peak_bytes` the most memory that any
rank has taken.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, run_benchmark
from lab.crew import Crew, Home, crew

NUM_RANKS = 8
NUM_SILENT, NUM_DRIPPING = 1000, 100
NUM_ROUNDS, QUICK_NUM_ROUNDS = 3, 1
NUM_STEPS = 40
LAST_AFTER_S = 6.0
"""The last rank comes so late that all strangers are there before it."""
TASK_S = 120.0
CROWD_S = 60.0


def measure(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, crew([Home()] * NUM_RANKS, {}) as made:
        for number in range(2 * (QUICK_NUM_ROUNDS if quick else NUM_ROUNDS)):
            with_strangers = number % 2 == 1
            prefix = f"round-{number}"
            with ExitStack() as stack:
                seen: dict[str, int] = {}
                if with_strangers:
                    stack.enter_context(crowd(Path(folder) / prefix, seen))
                row = meet_and_train(made, f"file://{folder}", prefix)
            yield {"strangers": (NUM_SILENT + NUM_DRIPPING) * with_strangers, **row, **seen}


def meet_and_train(made: Crew, url: str, prefix: str) -> Row:
    arguments = {"url": url, "prefix": prefix, "last_after_s": LAST_AFTER_S}
    met = made.ask_at_once("meet_in_store", arguments, timeout_s=TASK_S)
    trained = made.ask("train_together", {"num_steps": NUM_STEPS}, timeout_s=TASK_S)
    return {
        "ranks_ok": sum(answer["is_right"] for answer in trained),
        "meeting_s": met[-1]["took_s"],
        "training_s": max(answer["took_s"] for answer in trained),
        "peak_bytes": max(answer["peak_bytes"] for answer in trained),
    }


@contextmanager
def crowd(folder: Path, seen: dict[str, int]) -> Iterator[None]:
    """Let strangers come to the door of whoever meets in this folder; `seen` tells afterwards what they saw."""
    command = [sys.executable, "-m", "lab.crowd", str(folder), str(NUM_SILENT), str(NUM_DRIPPING)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
        said = process.communicate(timeout=CROWD_S)[0].splitlines()
        if said[0] != "here":
            raise RuntimeError("not all strangers came to the door before the ranks were done")
        seen.update(json.loads(said[-1]))
    finally:
        process.kill()
        process.wait()


def summarise(rows: list[Row]) -> list[Row]:
    def median(name: str, strangers: bool) -> float:
        values: list[Any] = [row[name] for row in rows if bool(row["strangers"]) == strangers]
        return float(statistics.median(values))

    total: Row = {"ranks_ok": min(int(row["ranks_ok"] or 0) for row in rows)}
    for name in ("meeting_s", "training_s", "peak_bytes"):
        total |= {f"{name}_without": median(name, False), f"{name}_with": median(name, True)}
    return [total]


if __name__ == "__main__":
    run_benchmark(
        "strangers at the door",
        measure,
        lambda quick: 2 * (QUICK_NUM_ROUNDS if quick else NUM_ROUNDS),
        summarise,
    )
