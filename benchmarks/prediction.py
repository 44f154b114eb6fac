"""Predicted step times beside measured ones: configurations drawn from a seed, predicted before they run.

Rehearsed: members are processes in network namespaces whose links carry a known number of bytes a second each way;
compute sleeps, everything else is real. The prediction sees what `zooid.probe` measured on the members themselves in
the same run, never what the links were set to. Real: two members, each on a core, train a model whose layers were
profiled in the same run. A run that kept the machine more than 80 % busy would measure this machine rather than the
plan: it is repeated on slower links.

`error_percent` is (predicted − measured) / measured of the mean step; `transfer_share` the largest part of a step in
which one member had something on its way.
"""

import itertools
import json
import math
import os
import random
import secrets
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

from msgspec import structs

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.cases import PLACES, Place, RealCase, draw, real_cases
from lab.load import Busy
from lab.plans import bare_plan
from lab.rehearsals import Scene, Site, site
from lab.runs import train_by_hand
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.errors import MemberFailed, ZooidError
from zooid.core.plans.plan import Plan, Prediction
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.runs.events import Event, StepCommitted
from zooid.core.runs.step_parts import parts_by_member
from zooid.planner import Market
from zooid.planner.partition import StageTable, best_partitions
from zooid.predictor import Layout, Noise, Steps, World, directed_links, simulate_steps
from zooid.predictor import predict as predict_run
from zooid.store import open_store

SEED = int(os.environ.get("ZOOID_BENCHMARK_SEED", "7"))
CASES_PER_PLACE = 5
MEASURED_S = 4.0
MOST_BUSY = 0.8
MOST_ATTEMPTS = 3
PROBE_S = 0.4
NUM_REAL = 16
REAL_JOB_FILE = Path(__file__).parent / "jobs" / "plain.py"
REAL_EPOCHS = 2
WARM_UP = 3
"""Steps that are not counted: members learn in them when to look for one another's messages."""
PROBE_MEMBERS = 8
"""At once at most: what more would get follows from these."""


class ProbeFailed(ZooidError):
    """Members could not measure their links, several times in a row."""


def measure(quick: bool) -> Iterator[Row]:
    generator = random.Random(SEED)
    print(f"seed {SEED}", file=sys.stderr)
    for place in PLACES[::3] if quick else PLACES:
        number = 2 if quick else CASES_PER_PLACE
        for _ in range(MOST_ATTEMPTS):
            with site(len(place.rates), place.rates, place.round_trip_s) as lab:
                links = probe(lab, place)
                rows = list(compare_all(lab, place, links, number, generator))
            yield from (row for row in rows if not is_too_busy(row))
            number = sum(map(is_too_busy, rows))
            if number == 0:
                break
            place = place.slower()
    yield from real_rows(quick, generator)


def probe(lab: Site, place: Place) -> tuple[Link, ...]:
    """What members of every site measure, one alone and several at once; once more where one of them gave up."""
    number = min(len(place.rates), PROBE_MEMBERS)
    for attempt in range(MOST_ATTEMPTS):
        try:
            return zooid.probe(
                members=number,
                store=f"{lab.url}/probe-{attempt}" if place.transport == "store" else None,
                sites=place.sites[:number],
                ends=("store",) if place.transport == "store" else ("peers",),
                streams=(1, 4),
                seconds=PROBE_S,
                platform=lab.platform(),
            ).links
        except MemberFailed as error:
            print(f"the probe failed: {error}", file=sys.stderr, flush=True)
    raise ProbeFailed(f"the links of {place} could not be measured, {MOST_ATTEMPTS} times")


def compare_all(
    lab: Site, place: Place, links: tuple[Link, ...], number: int, generator: random.Random
) -> Iterator[Row]:
    def share_of(scene: Scene) -> float:
        return transfer_share(predict(scene, place, links))

    for scene in draw(place, number, share_of, generator):
        yield compare(lab, place, scene, links)


def is_too_busy(row: Row) -> bool:
    return float(row["busy"] or 0) > MOST_BUSY


def compare(lab: Site, place: Place, scene: Scene, links: tuple[Link, ...]) -> Row:
    """Predict, say so, and rehearse."""
    predicted = predict(scene, place, links)
    row: Row = {
        "layout": scene.layout,
        "schedule": f"{scene.schedule}+{scene.ahead}" if scene.ahead else scene.schedule,
        "grains": scene.num_grains,
        "transport": scene.transport,
        "mb_per_s": "/".join(str(rate // 10**6) for rate in sorted(set(place.rates), reverse=True)),
        "rtt_ms": 1000 * place.round_trip_s,
        "compute": "rehearsed",
        "unequal": bool(scene.speeds) or len(set(place.rates)) > 1,
        "transfer_share": transfer_share(predicted),
        "predicted_s": predicted.mean_s,
        "predicted_p95_s": predicted.quantile_s(0.95),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    busy = Busy()
    num_steps = max(4, min(12, round(MEASURED_S / predicted.mean_s)))
    rehearsed = lab.rehearse(scene, WARM_UP + num_steps, busy.on_event)
    measured_s = statistics.fmean(rehearsed.steps_s[WARM_UP:])
    row |= {
        "measured_s": measured_s,
        "error_percent": 100 * (predicted.mean_s - measured_s) / measured_s,
        "busy": busy.share,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def predict(scene: Scene, place: Place, links: tuple[Link, ...]) -> Steps:
    sites = place.sites
    num_stages = len(scene.stages)
    layout = Layout(
        stages=scene.rows,
        sites=tuple(tuple(sites[at : at + num_stages]) for at in range(0, scene.num_replicas * num_stages, num_stages)),
        links=directed_links(links),
        transport=scene.transport,
    )
    spread = statistics.median(link.spread for link in links)
    return simulate_steps(scene.schedule_of_step(), layout, 8, Noise(links=spread / 2, seed=SEED))


def real_rows(quick: bool, generator: random.Random) -> Iterator[Row]:
    """Two members that really compute, over drawn links."""
    cases = list(real_cases(2 if quick else NUM_REAL, generator))
    with mock.patch.dict(os.environ, {"ZOOID_BENCHMARK_EPOCHS": str(REAL_EPOCHS)}):
        profiles = {}
        for job in dict.fromkeys(case.job for case in cases):
            with mock.patch.dict(os.environ, {"ZOOID_BENCHMARK_JOB": job}):
                profiles[job] = zooid.profile(REAL_JOB_FILE)
        for _ in range(MOST_ATTEMPTS):
            again = []
            for place, own in itertools.groupby(sorted(cases, key=lambda case: case.place), lambda case: case.place):
                with site(2, place.rates, place.round_trip_s) as lab:
                    links = probe(lab, place)
                    for case in own:
                        with mock.patch.dict(os.environ, {"ZOOID_BENCHMARK_JOB": case.job}):
                            row = real_row(lab, case, profiles[case.job], links)
                        if is_too_busy(row):
                            again.append(replace(case, place=place.slower()))
                        else:
                            yield row
            cases = again


def real_row(lab: Site, case: RealCase, profile: Profile, links: tuple[Link, ...]) -> Row:
    plan, prediction = real_plan(case, profile, links)
    row: Row = {
        "layout": plan.layout,
        "schedule": plan.schedule,
        "grains": plan.batch_size // plan.grain_size // plan.num_replicas,
        "transport": plan.transport,
        "mb_per_s": str(case.place.rates[0] // 10**6),
        "rtt_ms": 1000 * case.place.round_trip_s,
        "compute": case.job.partition(",")[0],
        "unequal": False,
        "transfer_share": prediction.parts.moving_s / prediction.parts.step_s if prediction.parts else None,
        "predicted_s": prediction.step_s,
        "predicted_p95_s": prediction.step_p95_s,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    ends_s: list[float] = []
    busy = Busy()

    def on_event(event: Event) -> None:
        if isinstance(event, StepCommitted):
            ends_s.append(event.at_s)
            busy.note()

    store = open_store(f"{lab.folder_of(plan.transport)}/{secrets.token_hex(4)}")
    train_by_hand(REAL_JOB_FILE, plan, store, lab.platform(), on_event)
    counted = ends_s[WARM_UP:]
    measured_s = (counted[-1] - counted[0]) / (len(counted) - 1)
    row |= {
        "measured_s": measured_s,
        "error_percent": 100 * (prediction.step_s - measured_s) / measured_s,
        "busy": busy.share,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def real_plan(case: RealCase, profile: Profile, links: tuple[Link, ...]) -> tuple[Plan, Prediction]:
    """The best partition by the closed form, with this layout and grain."""
    offer = resolve_offer("local")
    site = case.place.sites[0]
    here = structs.replace(offer, site=site)
    store_cpu = {link.to_site == STORE_SITE: link for link in profile.links}
    directed = {
        ends: replace(
            link,
            cpu_s=store_cpu[ends[1] == STORE_SITE].cpu_s,
            cpu_s_per_byte=store_cpu[ends[1] == STORE_SITE].cpu_s_per_byte,
        )
        if STORE_SITE in ends
        else link
        for ends, link in directed_links(links).items()
    }
    num_replicas, num_stages = case.layout
    num_grains = profile.batch_size // case.grain_size
    ends = ((site, STORE_SITE), (STORE_SITE, site)) if case.place.transport == "store" else ((site, site),)
    crossed = [directed[each] for each in ends]
    own_grains = math.ceil(num_grains / num_replicas)
    table = StageTable.of_profile(profile, case.grain_size, own_grains, crossed, num_replicas)
    partition = best_partitions(table, [num_stages], max_each=1)[num_stages][0]
    world = World({here.name: profile}, directed)
    plan = Market((here,), world).plan(
        partition,
        (here,) * num_stages,
        num_replicas=num_replicas,
        grain_size=case.grain_size,
        schedule=case.schedule,
        ahead=1 if case.schedule == "1f1b" and num_stages > 1 else 0,
        transport=case.place.transport,
    )
    prediction, _ = predict_run(plan, world, num_noisy_steps=8)
    bare = bare_plan(
        job=profile.job,
        fingerprint=profile.model_fingerprint,
        spans=partition,
        batch_size=profile.batch_size,
        grain_size=case.grain_size,
        num_steps=prediction.num_steps,
        num_replicas=num_replicas,
        schedule=case.schedule,
        ahead=plan.ahead,
        transport=case.place.transport,
    )
    return bare, prediction


def transfer_share(steps: Steps) -> float:
    return max(parts.moving_s / parts.step_s for parts in parts_by_member(steps.timeline).values())


def summarise(rows: list[Row]) -> list[Row]:
    errors = [float(row["error_percent"] or 0) for row in rows]
    return [
        {
            "mape": statistics.fmean(map(abs, errors)),
            "worst": max(map(abs, errors)),
            "underestimated_share": 100 * statistics.fmean(error < 0 for error in errors),
        }
    ]


if __name__ == "__main__":
    run_benchmark(
        "predictions", measure, lambda quick: 6 if quick else len(PLACES) * CASES_PER_PLACE + NUM_REAL, summarise
    )
