"""`python -m tests.fuzz --inputs 10000 --seed 1`: hostile inputs for every decoder, a table, and one line of JSON."""

import argparse
import json
import secrets
import sys

from tests.fuzz.decoders import decoders
from tests.fuzz.trials import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="inputs for each decoder")
    parser.add_argument("--seed", type=int, default=None, help="drawn, if not given; the same seed, the same inputs")
    parser.add_argument("--only", default="", help="decoders whose names contain this")
    parser.add_argument("--part", default="1/1", help="as 1/2: the first of two halves, to run both side by side")
    given = parser.parse_args()
    part, num_parts = map(int, given.part.split("/"))
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}, {given.inputs} inputs for each decoder", flush=True)
    print(f"{'decoder':34}{'inputs':>8}{'taken':>8}{'refused':>8}{'harm':>6}{'slowest':>10}{'memory':>10}{'grew':>8}")
    failures = []
    reports = []
    for decoder in decoders()[part - 1 :: num_parts]:
        if given.only not in decoder.name:
            continue
        report = run(decoder, given.inputs, seed)
        reports.append(report)
        failures += report.failures
        print(
            f"{report.name:34}{report.num_inputs:8}{report.num_taken:8}{report.num_refused:8}{len(report.failures):6}"
            f"{report.slowest_s * 1e3:7.0f} ms{report.most_bytes / 1e3:7.0f} kB{report.rss_growth_bytes / 1e6:5.0f} MB",
            flush=True,
        )
    for failure in failures[:50]:
        print(failure)
    result = {
        "seed": seed,
        "decoders": len(reports),
        "inputs": sum(report.num_inputs for report in reports),
        "refused": sum(report.num_refused for report in reports),
        "taken": sum(report.num_taken for report in reports),
        "harm": len(failures),
        "slowest_s": round(max((report.slowest_s for report in reports), default=0.0), 3),
        "wall_s": round(sum(report.wall_s for report in reports), 1),
    }
    print(json.dumps(result))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
