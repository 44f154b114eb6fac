"""The same run on everything that can be rented: its result, its bill, and what it leaves behind."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import zooid
from lab.platform_scenes import Scene
from lab.provider_scenes import PROVIDER_SCENES
from lab.waiting import wait_until
from tests.integration.reference import Trained
from tests.integration.travelling_jobs import TOLERANCE, travelling_jobs
from tests.scenes import or_skip
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.plans.plan import Limits, TransportName
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.events import Event, MemberStarted, MemberTrained
from zooid.core.runs.member_records import MemberHandle
from zooid.core.units import SECONDS_PER_HOUR
from zooid.store import ObjectStore, open_store

pytestmark = pytest.mark.timeout(300)

LAYOUTS = {"digits": (2, 1), "gpt2": (1, 2)}
"""Replicas and stages of each job."""
ROUNDING = 1e-9
"""What a sum of prices may be off by its arithmetic. Times in whole seconds often differ by exactly one for each."""
OF_MEMBERS = ("compute", "start-up", "preparation", "starts")
"""Terms of the bill that the provider of the members charges."""


@pytest.fixture(scope="module", params=PROVIDER_SCENES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with or_skip(PROVIDER_SCENES[request.param]()) as made:
        yield made


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Trained]]:
    return travelling_jobs(tmp_path_factory.mktemp)


@pytest.mark.parametrize("job", LAYOUTS)
def test_a_rented_run_equals_one_process_and_costs_what_the_provider_charges(
    scene: Scene, jobs: dict[str, tuple[Path, Trained]], job: str
) -> None:
    """Digits are trained by replicas, and the small GPT-2 by the stages of a pipeline."""
    assert scene.url is not None
    assert scene.billed_usd is not None
    job_file, expected = jobs[job]
    offer = scene.offers[0]
    num_replicas, num_stages = LAYOUTS[job]
    transport: TransportName = "tcp" if offer.accepts_connections else "store"
    limits = Limits(num_replicas=num_replicas, num_stages=num_stages, transport=transport)
    url = scene.url(f"{job}-on-{scene.name}")
    store = open_store(url)
    started: set[str] = set()
    peaks_bytes: list[int] = []
    handles: list[MemberHandle] = []

    def note(event: Event) -> None:
        if isinstance(event, MemberStarted):
            started.add(event.member)
            handles.extend(handles_in(store))  # they are gone after the run
        if isinstance(event, MemberTrained):
            peaks_bytes.append(event.peak_bytes)

    result = zooid.train(job_file, store=url, on=offer.name, limits=limits, profile=False, on_event=note)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    assert started == {f"r{replica}s{stage}" for replica in range(num_replicas) for stage in range(num_stages)}
    assert len(peaks_bytes) == len(started)
    assert max(peaks_bytes) <= offer.memory_bytes, "every member had what it got"
    assert {handle.platform for handle in handles} == {offer.platform}
    [run] = {handle.run for handle in handles}
    own_usd = math.fsum(term.usd for term in result.cost_terms if term.kind in OF_MEMBERS)
    grain_usd = len(store.list(keys.STARTS)) * grain_usd_of(offer.name) * (1 + ROUNDING)
    assert own_usd > 0
    assert own_usd == pytest.approx(scene.billed_usd(run), rel=1e-9, abs=grain_usd), "to the grain of each member"
    wait_until(lambda: not scene.leftovers(run))


def grain_usd_of(name: str) -> float:
    """Return the price of the shortest time that is billed on an offer."""
    offer = resolve_offer(name)
    return offer.usd_per_hour / SECONDS_PER_HOUR * offer.billing_grain_s


def handles_in(store: ObjectStore) -> list[MemberHandle]:
    """Return the handles of the members that a run has started."""
    return [decode_record(bytes(store.get(key)), MemberHandle, key) for key in store.list(keys.HANDLES)]
