"""`python -m tests.succession`: every order of events in one layout, then random ones in others; one line of JSON."""

import argparse
import json
import random
import sys
import time
from collections import Counter

from tests.succession.model import Model, run_schedule

LAYOUTS = ((2, 2), (3, 2), (4, 1), (2, 3), (1, 4))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.succession", description=__doc__)
    parser.add_argument("--layout", default="2x2", help="of the run whose every order of events is tried")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rosters", type=int, default=3, help="how many rosters the run may have, one after the other")
    parser.add_argument("--schedules", type=int, default=10_000, help="how many random orders are tried")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began_s = time.monotonic()
    num_replicas, num_stages = map(int, given.layout.split("x"))
    worlds = Model(num_replicas, num_stages, num_steps=given.steps, max_rosters=given.rosters).explore()
    print(f"{len(worlds)} worlds, one history in each", flush=True)
    chance = random.Random(given.seed)
    ends = Counter(run_schedule(LAYOUTS[number % len(LAYOUTS)], chance) for number in range(given.schedules))
    print(json.dumps({**vars(given), "worlds": len(worlds), "ends": ends, "wall_s": round(time.monotonic() - began_s)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
