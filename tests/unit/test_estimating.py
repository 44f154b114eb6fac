"""Estimates: scaled by what devices can do at best, and marked wherever they appear."""

import io

import pytest
from rich.console import Console

from tests.unit.profiles import gpu, layer, offer, profile
from zooid.catalog import offers, reference_score
from zooid.core.errors import CatalogError, PlanError
from zooid.core.plans.plan import Limits
from zooid.planner import search, single
from zooid.predictor import estimate_profile
from zooid.report import plan_table, profile_table


def test_times_scale_with_the_devices_scores_and_bytes_stay() -> None:
    measured = profile([layer(1.0, out_bytes=7, parameter_bytes=40)])  # 1e10 operations a second
    estimate = estimate_profile(measured, offer(vcpus=0.5))  # 2e10
    assert estimate.layers[0].forward_s(4) == pytest.approx(measured.layers[0].forward_s(4) / 2)
    assert estimate.layers[0].backward_s(4) == pytest.approx(measured.layers[0].backward_s(4) / 2)
    assert estimate.layers[0].boundary == measured.layers[0].boundary
    assert (estimate.is_estimate, estimate.estimated_from, estimate.device.name) == (True, "cpu", "made.offer")


def test_how_fast_copies_would_be_is_not_known() -> None:
    estimate = estimate_profile(profile([layer(1.0)], device=gpu()), offer(gpu="T4", num_gpus=1))
    assert (estimate.device.kind, estimate.device.copies) == ("cuda", None)
    assert estimate_profile(profile([layer(1.0)], device=gpu()), offer()).device.kind == "cpu"


def test_an_accelerator_counts_instead_of_the_cores() -> None:
    one, two = (reference_score(offer(gpu="T4", num_gpus=count)) for count in (1, 2))
    assert two == 2 * one > 100 * reference_score(offer(vcpus=1.0))


def test_every_offer_of_the_catalog_has_a_score() -> None:
    assert all(reference_score(each) > 0 for each in offers())


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CatalogError, match="does not know the speed of Abacus"):
        estimate_profile(profile([layer(1.0)]), offer(gpu="Abacus", num_gpus=1))


def test_an_estimate_is_not_estimated_from() -> None:
    estimate = estimate_profile(profile([layer(1.0)]), offer())
    with pytest.raises(PlanError, match="itself an estimate"):
        estimate_profile(estimate, offer())


def test_an_estimate_says_so_in_tables_and_plans() -> None:
    estimate = estimate_profile(profile([layer(1.0), layer(2.0)]), offer())
    plan = search(single(estimate, offer()), Limits(), "fastest").pick
    assert plan.prediction.estimated_from == "cpu"
    for table in (plan_table(plan), profile_table(estimate)):
        console = Console(width=200, file=io.StringIO())
        console.print(table)
        assert "estimate" in console.file.getvalue().lower()  # type: ignore[attr-defined]
