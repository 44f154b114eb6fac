"""What it saves to choose the size of every member, against the fixed sizes of the papers, on profiles of four models.

Functions of AWS Lambda have 2048, 4096 or 10240 MB each, the last as in Hydrozoa (§5.2), or one of FuncPipe's eight
sizes for each stage (§5.1). Container groups of Azure have 4 vCPUs and 16 GB, or 4, 8 or 16 GB: Hydrozoa fixes 4 vCPUs
(§5.2), and its prices are used. Right-sized, a function may have any MB, and a container 1 to 4 vCPUs and any tenth of
a GB. Each member then gets its predicted memory and a margin, which fixed sizes need not have.

The models are measured here and taken as if they were wider, as in `benchmarks.gains`. Links of functions to the store
are the catalog's (70 MB/s, 40 ms). No paper gives links between containers and a store, so they have the same.

Against the picks on fixed sizes stand the cheapest right-sized plan that is no slower, and the fastest that costs no
more, from searches that know nothing of the fixed ones. The same simulator prices both.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs

from benchmarks.gains import FUNCTIONS, MODELS, QUICK_MODELS, profile_of
from benchmarks.harness import Row, run_benchmark
from zooid import catalog
from zooid.coordinator.plans.markets import market_for, offers_named
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal, Search
from zooid.core.resources.link import Link
from zooid.planner import search

GOALS: tuple[Goal, ...] = ("cheapest", "balanced", "fastest")
MAX_MEMBERS, QUICK_MAX_MEMBERS = 8, 2


@dataclass(frozen=True)
class Sizes:
    """Fixed sizes, and the sized offer against which they stand."""

    sized: str
    name: str
    fixed: tuple[str, ...]


SIZES = (
    Sizes("aws.lambda", "2048 MB", ("aws.lambda.2048",)),
    Sizes("aws.lambda", "4096 MB", ("aws.lambda.4096",)),
    Sizes("aws.lambda", "10240 MB", FUNCTIONS[-1:]),
    Sizes("aws.lambda", "FuncPipe's eight", FUNCTIONS),
    Sizes("azure.aci.cpu", "4x16", ("azure.aci.cpu.4x16",)),
    Sizes("azure.aci.cpu", "4x4, 4x8, 4x16", tuple(f"azure.aci.cpu.4x{gb}" for gb in (4, 8, 16))),
)
SIZED = tuple(dict.fromkeys(sizes.sized for sizes in SIZES))


def measure(quick: bool, folder: Path) -> Iterator[Row]:
    for model in QUICK_MODELS if quick else MODELS:
        profile = profile_of(model, folder)
        for sized in SIZED:
            own = [plan for found in searches([sized], profile, quick) for plan in found.front]
            for sizes in SIZES:
                if sizes.sized == sized:
                    for found in searches(sizes.fixed, profile, quick):
                        yield row_of(model, sizes, found, own)


def searches(on: Sequence[str], profile: Profile, quick: bool) -> list[Search]:
    """A search for each goal: fronts of time and money, looked for from both ends and from between."""
    market, _ = market_for(offers_named(on), {"local": profile}, links=links())
    limits = Limits(max_members=QUICK_MAX_MEMBERS if quick else MAX_MEMBERS)
    return [search(market, limits, goal) for goal in GOALS]


def links() -> list[Link]:
    """The links of functions, for containers, too."""
    site, other = (offers_named([sized])[0].site for sized in SIZED)
    known = [link for link in catalog.links() if site in (link.from_site, link.to_site)]
    ends = {site: other}
    return known + [
        structs.replace(
            link,
            from_site=ends.get(link.from_site, link.from_site),
            to_site=ends.get(link.to_site, link.to_site),
        )
        for link in known
    ]


def row_of(model: str, sizes: Sizes, found: Search, own: Sequence[Plan]) -> Row:
    run_s, run_usd = time_and_money(found.pick)
    row: Row = {
        "model": model,
        "on": sizes.sized,
        "fixed": sizes.name,
        "goal": found.goal,
        "fixed_plan": sized_words(found.pick),
        "fixed_run_s": run_s,
        "fixed_usd": run_usd,
    }
    as_fast = [plan for plan in own if plan.prediction.run_s <= run_s]
    as_cheap = [plan for plan in own if plan.prediction.run_usd <= run_usd]
    if as_fast:
        cheaper = min(as_fast, key=money_and_time)
        row |= {
            "cheaper_plan": sized_words(cheaper),
            "cheaper_run_s": cheaper.prediction.run_s,
            "cheaper_usd": cheaper.prediction.run_usd,
            "saved_percent": 100 * (1 - cheaper.prediction.run_usd / run_usd),
        }
    if as_cheap:
        faster = min(as_cheap, key=time_and_money)
        row |= {
            "faster_plan": sized_words(faster),
            "faster_run_s": faster.prediction.run_s,
            "faster_usd": faster.prediction.run_usd,
            "speed_up": run_s / faster.prediction.run_s,
        }
    return row


def money_and_time(plan: Plan) -> tuple[float, float]:
    return plan.prediction.run_usd, plan.prediction.run_s


def time_and_money(plan: Plan) -> tuple[float, float]:
    return plan.prediction.run_s, plan.prediction.run_usd


def sized_words(plan: Plan) -> str:
    """The layout, and the size of every stage or replica: `2x2 on 512 + 3239`."""
    names = plan.replica_offers or tuple(stage.offer for stage in plan.stages)
    sized = catalog.sized_offer(names[0])
    prefix = "" if sized is None else f"{sized.name}."
    sizes = [name.removeprefix(prefix) for name in names]
    words = sizes[0] if len(set(sizes)) == 1 else " + ".join(sizes)
    return f"{plan.layout} on {words}"


def summarise(rows: list[Row]) -> list[Row]:
    """By fixed sizes and goal, over the models."""
    totals: list[Row] = []
    for sizes in SIZES:
        for goal in GOALS:
            own = [row for row in rows if (row["on"], row["fixed"], row["goal"]) == (sizes.sized, sizes.name, goal)]
            saved = [float(row["saved_percent"] or 0) for row in own if "saved_percent" in row]
            speeds = [float(row["speed_up"] or 0) for row in own if "speed_up" in row]
            if saved and speeds:
                totals.append(
                    {
                        "on": sizes.sized,
                        "fixed": sizes.name,
                        "goal": goal,
                        "mean_saved_percent": statistics.fmean(saved),
                        "least_saved_percent": min(saved),
                        "most_saved_percent": max(saved),
                        "mean_speed_up": statistics.geometric_mean(speeds),
                    }
                )
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--profiles", type=Path, help="a folder of profiles to begin with, and to keep new ones in")
    given, rest = parser.parse_known_args()

    def num_rows(quick: bool) -> int:
        return len(QUICK_MODELS if quick else MODELS) * len(SIZES) * len(GOALS)

    with tempfile.TemporaryDirectory(prefix="zooid-sizes-") as folder:
        kept: Path = given.profiles or Path(folder)
        run_benchmark("sizes", partial(measure, folder=kept), num_rows, summarise, rest)


if __name__ == "__main__":
    main()
