"""Every plan that a search makes is predicted again as it was planned, from its own file and the same profiles."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import zooid
from tests.unit.profiles import layer, link, profile
from zooid.coordinator.plans.markets import offers_named
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import STORE_SITE, Links

SMALL = "limited:aws.lambda.512"
PEERS = Links(zooid_version="0", date="2025-01", links=(link(1e8, 0.001, from_site="local", to_site="local"),))
US, EUROPE = "gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"


def measured_at(site: str, forward_s: float) -> Profile:
    links = (link(1e8, 0.001, from_site=site), link(1e8, 0.001, from_site=STORE_SITE, to_site=site))
    layers = [layer(forward_s, out_bytes=1e5, parameter_bytes=40_000_000) for _ in range(4)]
    return profile(layers, links, job="job")


HERE, HELD = measured_at("local", 0.02), measured_at(SMALL, 0.05)


@pytest.mark.parametrize(
    ("on", "measured", "more"),
    [
        (["local"], HERE, {}),
        (["local:aws.lambda.1769"], HERE, {}),
        (["local"], HERE, {"links": PEERS, "limits": zooid.Limits(transport="tcp")}),
        (["aws.lambda.1769"], HERE, {}),
        (["aws.lambda.1769", "aws.lambda.3072"], HERE, {}),
        (["local", "aws.lambda.1769"], HERE, {}),
        ([SMALL], HELD, {}),
        ([SMALL, "aws.lambda.1769", "local"], {"local": HERE, "aws.lambda.512": HELD}, {}),
        ([US, EUROPE], HERE, {"store_at": "owned", "quotas": {US: 1, EUROPE: 1}}),
        (["lambdalabs", "gcp.dgx-2"], HERE, {"store_at": "aws.us-east-1"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_plan_is_predicted_as_it_was_planned(
    on: list[str], measured: Profile | dict[str, Profile], more: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "job.py"
    file.write_text("import zooid\njob = None\n")
    found = zooid.search(file, on=on, measured=measured, **more)
    for planned in (found.pick, *found.front):
        plan = decode_record(encode_record(planned), Plan, "the plan")
        predicted = zooid.predict(plan, measured).prediction
        assert predicted.step_s == pytest.approx(plan.prediction.step_s, rel=1e-9)
        assert predicted.run_usd == pytest.approx(plan.prediction.run_usd, rel=1e-9)
        assert predicted.estimated_from == plan.prediction.estimated_from


def test_a_plan_is_an_estimate_where_only_some_of_its_members_are(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("import zooid\njob = None\n")
    limits = zooid.Limits(num_replicas=1, num_stages=2)
    [rented] = offers_named(["aws.lambda.1769"])
    plan = zooid.plan(file, on="local", measured=HERE, limits=limits)
    mixed = structs.replace(
        plan,
        offers=(*plan.offers, structs.replace(rented, startup_s=1.0)),
        stages=(plan.stages[0], structs.replace(plan.stages[1], offer=rented.name)),
        predicted=structs.replace(plan.prediction, estimated_from=HERE.device.name),
    )
    assert zooid.predict(mixed, HERE).prediction.estimated_from == HERE.device.name
