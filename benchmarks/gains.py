"""What the planner gains over the papers' baselines, on profiles of four models that are measured first.

Once members stand on FuncPipe's eight sizes of AWS Lambda functions, with its links to the store (70 MB/s each way, 40
ms), and once on Srifty's VMs with one GPU each, which reach one another; 16 of them at most, at the catalog's prices.
What a model takes there is an estimate from what it takes here. Each baseline gets its best choice, the fastest and the
cheapest, and the same simulator prices both sides. Against each stand zooid's cheapest plan that is no slower, and its
fastest plan that costs no more, from the fronts of searches in which the baselines' plans are candidates, too: by
prediction they cannot be better than what is picked, which is asserted. `alone` columns have the same from searches
that know nothing of the baselines, where it may be otherwise.

A model is taken as if it were wider than in `benchmarks.jobs` (`WIDER` says why), and the run as long (`NUM_STEPS`).

Then the fastest plan of each baseline and zooid's faster one are rehearsed (`lab.pairs`). HybridPS has no
members that could be: its closed form, in which nothing is slow, stands for it. `is_as_wanted`: zooid's plan is not
slower than the baseline's by more than 3 %, nor dearer, if both are paid by the rehearsed seconds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import zooid
from benchmarks.baselines.rivals import ON_FUNCTIONS, ON_VMS, Effort, Rival, described, on_functions, on_vms
from benchmarks.harness import Row, run_benchmark
from lab.pairs import Rehearsals, Step
from lab.widening import widened
from zooid import catalog
from zooid.coordinator.plans.markets import market_for, offers_named
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile, Spread
from zooid.core.plans.search_result import Search
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import Link
from zooid.planner import Market, search

JOBS = Path(__file__).parent / "jobs"
MODELS = ("resnet", "vit", "gpt2", "bert")
QUICK_MODELS = ("gpt2",)
WIDER = 1024 / 192
"""As if every layer were so much wider: the models of `benchmarks.jobs` are so small that one function trains them
fastest and cheapest, and nobody gains anything. BERT then has the width of BERT-Large, and 4 of its 24 layers."""
FUNCTIONS = tuple(f"aws.lambda.{size}" for size in (512, 1024, 2048, 3072, 4096, 6144, 8192, 10240))
"""FuncPipe §5.1."""
VMS = ("aws.ec2.p3.2xlarge", "aws.ec2.g4dn.4xlarge", "aws.ec2.g3.4xlarge")
"""Srifty, Table 1."""
MAX_MEMBERS, QUICK_MAX_MEMBERS = 16, 4
NUM_STEPS = 10_000
"""Of a run: so many that starting members is little beside them. The papers report single steps."""
QUICK_EFFORT = Effort(num_bounds=50, num_evaluations=30)
FACTOR = 20
MOST_SLOWER = 1.03


@dataclass(frozen=True)
class Scene:
    """Where members can stand, and who else chooses there."""

    on: tuple[str, ...]
    links: tuple[Link, ...]
    rivals: Callable[[Market, int, Effort], Iterator[Rival]]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A baseline's choice, and zooid's plan that costs no more and is faster."""

    model: str
    rival: Rival
    own: Plan


def scenes() -> tuple[Scene, ...]:
    return Scene(FUNCTIONS, (), on_functions, ON_FUNCTIONS), Scene(VMS, (link_of_vms(),), on_vms, ON_VMS)


def link_of_vms() -> Link:
    """No paper gives one of us-east-1; that of us-west-2, of the same cloud, is in the catalog."""
    there = "aws.us-west-2"
    measured = next(link for link in catalog.links() if (link.from_site, link.to_site) == (there, there))
    home = offers_named(VMS)[0].site
    return structs.replace(measured, from_site=home, to_site=home)


def measure(quick: bool, folder: Path) -> Iterator[Row]:
    found: list[tuple[Market, list[Pair]]] = []
    for model in QUICK_MODELS if quick else MODELS:
        profile = profile_of(model, folder)
        for scene in scenes():
            market = market_of(profile, scene)
            pairs = yield from compared(model, market, scene, quick)
            found.append((market, pairs[:1] if quick else pairs))
    for market, pairs in found:
        yield from rehearsed(pairs, Rehearsals(market, FACTOR))


def compared(model: str, market: Market, scene: Scene, quick: bool) -> Generator[Row, None, list[Pair]]:
    """Rows by simulation; returns what is worth a rehearsal."""
    max_members, effort = (QUICK_MAX_MEMBERS, QUICK_EFFORT) if quick else (MAX_MEMBERS, Effort())
    against = list(scene.rivals(market, max_members, effort))
    limits = Limits(max_members=max_members)
    # fronts of time and money, looked for from both ends and from between
    alone = [search(market, limits, goal) for goal in ("fastest", "cheapest", "balanced")]
    theirs = [rival.plan for rival in against if rival.plan is not None]
    both = [*alone, search(market, limits, also=theirs)]
    pairs: list[Pair] = []
    for rival in against:
        cheaper, faster = better(rival, both)
        never_worse(rival, cheaper, faster)
        row = row_of(model, rival, cheaper, faster) | alone_of(rival, *better(rival, alone))
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row
        if faster is not None and is_rehearsed(rival, faster):
            pairs.append(Pair(model, rival, faster))
    for found in alone:
        told = {"model": model, "search": found.goal, "status": found.proof.status, "gap": found.proof.gap}
        print(json.dumps(told | {"wall_s": found.proof.wall_s}), file=sys.stderr, flush=True)
    return pairs


def profile_of(model: str, folder: Path) -> Profile:
    """Measured once, and kept; wider, for a long run, and without spread, so that limits hold for the mean."""
    kept = folder / f"{model}.profile.json"
    if not kept.exists():
        kept.write_bytes(encode_record(zooid.profile(JOBS / f"{model}.py")))
    measured = decode_record(kept.read_bytes(), Profile, str(kept))
    epochs = round(NUM_STEPS * measured.batch_size / measured.num_samples)
    plain = structs.replace(measured, epochs=epochs, spread=Spread(of_steps=0.0, of_runs=0.0))
    return widened(plain, WIDER)


def market_of(profile: Profile, scene: Scene) -> Market:
    market, notes = market_for(offers_named(scene.on), {"local": profile}, links=scene.links)
    print("; ".join(notes), file=sys.stderr)
    return market


def better(rival: Rival, searches: Sequence[Search]) -> tuple[Plan | None, Plan | None]:
    """The cheapest plan that is no slower, and the fastest that costs no more; none where there is none."""
    plans = [plan for found in searches for plan in found.front]
    as_fast = [plan for plan in plans if plan.prediction.run_s <= rival.run_s]
    as_cheap = [plan for plan in plans if plan.prediction.run_usd <= rival.run_usd]
    cheaper = min(as_fast, key=lambda plan: (plan.prediction.run_usd, plan.prediction.run_s), default=None)
    faster = min(as_cheap, key=lambda plan: (plan.prediction.run_s, plan.prediction.run_usd), default=None)
    return cheaper, faster


def never_worse(rival: Rival, cheaper: Plan | None, faster: Plan | None) -> None:
    """What was a candidate is on the front, or something on the front is better."""
    if rival.plan is not None:
        assert cheaper is not None
        assert cheaper.prediction.run_usd <= rival.run_usd, rival
        assert faster is not None
        assert faster.prediction.run_s <= rival.run_s, rival


def row_of(model: str, rival: Rival, cheaper: Plan | None, faster: Plan | None) -> Row:
    row: Row = {
        "model": model,
        "baseline": rival.name,
        "goal": rival.goal,
        "plan": rival.words,
        "closed_form_step_s": rival.closed_form_s,
        "step_s": None if rival.plan is None else rival.plan.prediction.step_s,
        "run_s": rival.run_s,
        "usd": rival.run_usd,
    }
    if cheaper is not None:
        row |= {
            "cheaper_plan": described(cheaper),
            "cheaper_run_s": cheaper.prediction.run_s,
            "cheaper_usd": cheaper.prediction.run_usd,
            "saved_percent": 100 * (1 - cheaper.prediction.run_usd / rival.run_usd),
        }
    if faster is not None:
        row |= {
            "faster_plan": described(faster),
            "faster_run_s": faster.prediction.run_s,
            "faster_usd": faster.prediction.run_usd,
            "speed_up": rival.run_s / faster.prediction.run_s,
        }
    return row


def alone_of(rival: Rival, cheaper: Plan | None, faster: Plan | None) -> Row:
    """Empty where nothing is as fast, or as cheap."""
    return {
        "alone_saved_percent": None if cheaper is None else 100 * (1 - cheaper.prediction.run_usd / rival.run_usd),
        "alone_speed_up": None if faster is None else rival.run_s / faster.prediction.run_s,
    }


def is_rehearsed(rival: Rival, own: Plan) -> bool:
    """Pairs that differ; of each baseline what it takes for speed, or for money where that is all it looks at."""
    return (rival.goal == "fastest" or rival.name == "CGF") and own != rival.plan


def rehearsed(pairs: Sequence[Pair], rehearsals: Rehearsals) -> Iterator[Row]:
    for pair in pairs:
        rival, own = pair.rival, rehearsals.step(pair.own)
        theirs = rehearsals.step(rival.plan) if rival.plan else Step(rival.closed_form_s, rival.closed_form_s, 0.0)
        dearer = (pair.own.prediction.run_usd * own.delay) / (rival.run_usd * theirs.delay)
        yield {
            "model": pair.model,
            "baseline": rival.name,
            "goal": rival.goal,
            "plan": rival.words,
            "faster_plan": described(pair.own),
            "factor": rehearsals.factor,
            "simulated_s": theirs.simulated_s,
            "rehearsed_s": theirs.rehearsed_s,
            "faster_simulated_s": own.simulated_s,
            "faster_rehearsed_s": own.rehearsed_s,
            "simulated_speed_up": theirs.simulated_s / own.simulated_s,
            "rehearsed_speed_up": theirs.rehearsed_s / own.rehearsed_s,
            "rehearsed_cost_share": dearer,
            "busy": max(theirs.busy, own.busy),
            "is_as_wanted": own.rehearsed_s <= MOST_SLOWER * theirs.rehearsed_s and dearer <= MOST_SLOWER,
        }


def summarise(rows: list[Row]) -> list[Row]:
    """By baseline, over models and goals."""
    totals: list[Row] = []
    for name in (*ON_FUNCTIONS, *ON_VMS):
        own = [row for row in rows if row.get("baseline") == name]
        saved = [float(row["saved_percent"] or 0) for row in own if row.get("saved_percent") is not None]
        speeds = [float(row["speed_up"] or 0) for row in own if row.get("speed_up") is not None]
        if saved and speeds:
            totals.append(
                {
                    "baseline": name,
                    "mean_saved_percent": statistics.fmean(saved),
                    "most_saved_percent": max(saved),
                    "mean_speed_up": statistics.geometric_mean(speeds),
                    "most_speed_up": max(speeds),
                }
            )
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--profiles", type=Path, help="a folder of profiles to begin with, and to keep new ones in")
    own, rest = parser.parse_known_args()

    def num_rows(quick: bool) -> int:
        """At most: for both goals, and rehearsed."""
        return len(QUICK_MODELS if quick else MODELS) * sum(3 * len(scene.names) for scene in scenes())

    with tempfile.TemporaryDirectory(prefix="zooid-gains-") as folder:
        kept: Path = own.profiles or Path(folder)
        run_benchmark("gains", lambda quick: measure(quick, kept), num_rows, summarise, rest)


if __name__ == "__main__":
    main()
