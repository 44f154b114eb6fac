"""Transports that connect members are refused where members accept no connections, before anything starts."""

from pathlib import Path

import pytest

import examples.digits
import zooid
from zooid.catalog import offer
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.plans.reachable_offers import check_connections
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits

CLOSED = ("aws.lambda.2048", "aws.microvm.2048", "azure.aci.cpu.4x8", "gcp.run.cpu.4x8", "aws.ec2.g4dn.2xlarge.spot")


@pytest.mark.parametrize("name", CLOSED)
def test_members_that_are_rented_without_ports_are_not_connected(name: str) -> None:
    message = rf"over tcp, but those on {name} accept no connections .* give --transport store"
    with pytest.raises(PlanError, match=message):
        check_connections("tcp", [offer(name)])
    check_connections("store", [resolve_offer(name)])
    check_connections(None, [resolve_offer(name)])


def test_a_run_is_refused_before_its_folder_is_claimed(tmp_path: Path) -> None:
    limits = Limits(num_replicas=1, num_stages=2, transport="tcp")
    store = (tmp_path / "run").as_uri()
    with pytest.raises(PlanError, match="accept no connections"):
        zooid.train(Path(examples.digits.__file__), store=store, on="aws.lambda.2048", limits=limits, profile=False)
    assert not (tmp_path / "run").exists()


def test_this_machine_at_the_prices_of_functions_may_be_connected() -> None:
    check_connections("tcp", [resolve_offer("local:aws.lambda.2048")])
