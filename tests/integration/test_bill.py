"""The bill of real runs: every term of it, requests as the server counts them, and costs of earlier coordinators."""

import math
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from lab.servers import moto_s3
from tests.integration.attendants import attended_s
from tests.integration.jobs import COARSE, plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.plans.plan import CostTerm, Limits, Plan
from zooid.core.resources.offer import Offer
from zooid.core.resources.tariff import time_usd
from zooid.core.runs.events import Event, Metered, RunFinished, StepCommitted, StoreUsed
from zooid.store import open_store, read_history

pytestmark = pytest.mark.timeout(240)

STORE_AT = "aws.us-east-1"
USD_PER_PUT, USD_PER_GET = 5e-6, 4e-7
CRASH = """
from pathlib import Path


def crash(event):
    if getattr(event, "step", 0) == 3 and not Path(__file__).with_suffix(".ok").exists():
        raise RuntimeError("as the test asks")


"""
"""The run ends after its fourth step, unless a file says that this is past."""


def priced(plan: Plan, usd_per_hour: float, billing_grain_s: float = 1.0) -> Plan:
    """The plan at this price of a member, and with a store whose requests cost money."""
    local = resolve_offer("local")
    return at_prices(plan, structs.replace(local, usd_per_hour=usd_per_hour, billing_grain_s=billing_grain_s))


def at_prices(plan: Plan, offer: Offer) -> Plan:
    stages = tuple(structs.replace(stage, offer=offer.name) for stage in plan.stages)
    return structs.replace(plan, offers=(offer,), stages=stages, store_at=STORE_AT)


def usd_of(terms: tuple[CostTerm, ...]) -> dict[str, float]:
    return {term.kind: term.usd for term in terms}


def test_requests_on_the_bill_are_those_that_the_server_has_seen(
    tmp_path: Path, forking: RecordingPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = write_job(tmp_path / "job.py", fields={**COARSE, "epochs": "2"})
    plan = priced(plan_by_hand(job_file, transport="tcp"), 36.0)
    with moto_s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"{server.bucket_url('bill')}/run"
        before = requests_in(server.log)
        result = zooid.train(job_file, store=url, plan=plan, platform=forking)
        seen = requests_in(server.log) - before
    terms = usd_of(result.cost_terms)
    assert math.fsum(terms.values()) == result.usd
    lists = seen["list"]
    wanted_usd = (seen["PUT"] + lists) * USD_PER_PUT + seen["GET"] * USD_PER_GET
    assert seen["PUT"] > 20
    assert terms["requests"] <= wanted_usd, "nothing is charged that was not asked"
    last_usd = 25 * USD_PER_PUT + 50 * USD_PER_GET
    assert terms["requests"] >= wanted_usd - last_usd, "only what is asked after the bill is missing"
    assert min(terms["compute"], terms["start-up"], terms["preparation"], terms["storage"]) > 0
    assert terms["egress"] > 0, "from the store to this machine, over the internet"
    assert terms["data"] == 0


def requests_in(log: Path) -> Counter[str]:
    """The requests in moto's log by their method; listings apart."""
    lines = re.findall(r'"(GET|PUT|POST|DELETE) (\S+) HTTP', log.read_text())
    return Counter("list" if "list-type=" in path else method for method, path in lines)


def test_members_are_billed_until_they_end_and_events_carry_the_terms(
    tmp_path: Path, forking: RecordingPlatform
) -> None:
    job_file = write_job(tmp_path / "job.py", fields={"epochs": "1"})
    plan = priced(plan_by_hand(job_file, num_replicas=2, cuts=()), 3600.0, billing_grain_s=0.001)
    seen: list[Event] = []
    began_s = time.time()
    result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking, on_event=seen.append)
    terms = usd_of(result.cost_terms)
    wall_s = time.time() - began_s
    members_usd = terms["compute"] + terms["start-up"]
    assert 0 < members_usd <= 2 * wall_s, "a dollar a second for each of two members"
    assert 0 < terms["preparation"] < wall_s
    [finished] = [event for event in seen if isinstance(event, RunFinished)]
    assert (finished.terms, finished.usd) == (result.cost_terms, result.usd)
    metered = [event for event in seen if isinstance(event, Metered)]
    assert all(math.fsum(term.usd for term in event.terms) == event.usd for event in metered)
    both = [event.usd for event in metered if len(event.running) == 2]
    assert both == sorted(both), "it grows as long as nobody has said how late the platform was"
    kept = [event for event in read_history(open_store(result.store)) if isinstance(event, Metered)]
    assert kept[-1].running == ()
    assert kept[-1].usd >= finished.usd


def test_every_member_is_billed_for_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that profile and prepare included, within one second, by the kernel's own times of their processes."""
    grain_s = 1.0
    billed: dict[str, float | None] = {}
    end = RunMeter.end

    def noted(
        self: RunMeter, member: str, at_s: float, ran_s: float | None = None, attended: StoreUsed | None = None
    ) -> None:
        billed.setdefault(member, ran_s)
        end(self, member, at_s, ran_s, attended)

    monkeypatch.setattr(RunMeter, "end", noted)
    job_file = write_job(tmp_path / "job.py")
    limits = Limits(num_replicas=2, num_stages=1, transport="tcp")
    with attended_s() as lived_s:
        zooid.train(job_file, store=(tmp_path / "run").as_uri(), on="local", limits=limits)
    assert {"preparer", "r0s0", "r1s0"} < billed.keys()
    assert any("profiler" in member for member in billed)
    for member, ran_s in billed.items():
        assert ran_s is not None, member
        charged_s = time_usd(3600.0, ran_s, grain_s, 0.0)
        assert abs(charged_s - lived_s[member]) <= grain_s, member
        assert ran_s == pytest.approx(lived_s[member], abs=0.2)


def test_a_resumed_run_has_the_cost_of_its_first_part_on_its_bill(tmp_path: Path, forking: RecordingPlatform) -> None:
    job_file = write_job(tmp_path / "job.py", extra=CRASH, fields={"epochs": "2", "on_event": "crash"})
    plan = at_prices(plan_by_hand(job_file, cuts=()), resolve_offer("local:aws.lambda.10240"))
    url = (tmp_path / "run").as_uri()
    with pytest.raises(zooid.ZooidError, match="as the test asks"):
        zooid.train(job_file, store=url, plan=plan, platform=forking)
    first = [event for event in read_history(open_store(url)) if isinstance(event, Metered)][-1]
    assert first.usd > 0
    (tmp_path / "job.ok").write_text("")
    seen: list[Event] = []
    result = zooid.resume(url, platform=forking, on_event=seen.append)
    carried, whole = usd_of(first.terms), usd_of(result.cost_terms)
    assert all(whole[kind] >= carried[kind] for kind in carried)
    assert whole["compute"] > carried["compute"] > 0
    assert whole["preparation"] > carried["preparation"] > 0, "who compares the job with the checkpoint costs, too"
    assert [event.step for event in seen if isinstance(event, StepCommitted)][-1] == 7
