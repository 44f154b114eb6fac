"""`python -m tests.succession`: every order of events in small layouts, then random schedules; one line of JSON."""

import argparse
import json
import sys
import time
from collections import Counter
from itertools import permutations
from typing import Any

from tests.succession.model import Model
from tests.succession.planned_cases import LARGE as PLANNED_CASES
from tests.succession.rosters import first_roster
from tests.succession.schedules import run_schedule

CASES: dict[str, dict[str, Any]] = {
    "2x2": {"layout": (2, 2), "num_steps": 1, "max_rosters": 3},
    "2x2, two steps": {"layout": (2, 2), "num_steps": 2, "max_rosters": 2},
    "1x2 with copies": {"layout": (1, 2), "copies": (0, 1), "num_steps": 2, "max_rosters": 2},
    "1x2 with a copy and a joiner": {
        "layout": (1, 2),
        "copies": (1,),
        "num_joiners": 1,
        "num_steps": 1,
        "max_rosters": 2,
    },
    "2x1 with a joiner": {"layout": (2, 1), "num_joiners": 1, "num_steps": 1, "max_rosters": 3},
    "1x2 with a joiner": {"layout": (1, 2), "num_joiners": 1, "num_steps": 2, "max_rosters": 3},
    "2x1 with suspicions": {
        "layout": (2, 1),
        "num_steps": 2,
        "max_rosters": 3,
        "suspicions": tuple(permutations(("m00", "m10"), 2)),
    },
    "3x1 with suspicions": {
        "layout": (3, 1),
        "num_steps": 1,
        "max_rosters": 2,
        "suspicions": tuple(permutations(("m00", "m10", "m20"), 2)),
    },
    "1x2 with copies and suspicions": {
        "layout": (1, 2),
        "copies": (0, 1),
        "num_steps": 1,
        "max_rosters": 2,
        "suspicions": (("m00", "m01"), ("m01", "m00"), ("c00", "m01")),
    },
}
"""Two losses need three rosters: the first one, and one after each loss."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.succession", description=__doc__)
    names = [*CASES, *PLANNED_CASES]
    parser.add_argument("--cases", nargs="*", default=names, choices=names, help="tried in every order")
    parser.add_argument("--max-lost", type=int, default=2, help="how many are lost for good, in every world")
    parser.add_argument("--schedules", type=int, default=10_000, help="how many random schedules are run")
    parser.add_argument("--seed", type=int, default=8)
    given = parser.parse_args()
    began_s = time.monotonic()
    violations: list[str] = []
    worlds: dict[str, int] = {}
    num_ends = 0
    for name in given.cases:
        try:
            model = PLANNED_CASES[name]() if name in PLANNED_CASES else _model(**CASES[name])
            worlds[name], tried = _explore(model, given.max_lost)
            num_ends += tried
        except AssertionError as error:
            violations.append(f"{name}: {str(error)[:500]}")
        _say(f"{name}: {worlds.get(name)} worlds after {time.monotonic() - began_s:.0f} s")
    explored_s = time.monotonic() - began_s
    ends, happened = Counter[str](), Counter[str]()
    for number in range(given.schedules):
        try:
            end, faults = run_schedule(number, given.seed)
            ends[end] += 1
            happened.update(faults)
        except AssertionError as error:
            violations.append(f"schedule {number}: {str(error)[:500]}")
        if (number + 1) % 1000 == 0:
            _say(f"{number + 1} schedules after {time.monotonic() - began_s:.0f} s")
    report = {
        "worlds": worlds,
        "ends_tried": num_ends,
        "schedules": given.schedules,
        "seed": given.seed,
        "ends": ends,
        "schedules_in_which": happened,
        "violations": len(violations),
        "first_violations": violations[:3],
        "exploring_s": round(explored_s),
        "wall_s": round(time.monotonic() - began_s),
    }
    print(json.dumps(report))
    return 1 if violations else 0


def _explore(model: Model, max_lost: int) -> tuple[int, int]:
    """Numbers of worlds, and of cases in which members were lost for good."""
    worlds = model.explore()
    return len(worlds), model.check_ends(worlds, max_lost)


def _model(
    *,
    layout: tuple[int, int],
    copies: tuple[int, ...] = (),
    num_joiners: int = 0,
    num_steps: int,
    max_rosters: int,
    suspicions: tuple[tuple[str, str], ...] = (),
) -> Model:
    first = first_roster(*layout, copies)
    return Model(
        first,
        num_joiners=num_joiners,
        num_steps=num_steps,
        max_rosters=max_rosters,
        suspicions=suspicions,
    )


def _say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
