"""Starts that a provider has not answered, or that somebody asks for a second time."""

from pathlib import Path

import pytest

from tests.platforms import PretendedProvider
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.errors import ZooidError
from zooid.core.runs.ticket import Ticket
from zooid.entry.microvm_hooks import _Member
from zooid.platforms.platform import Launch
from zooid.platforms.provider import MemberOrder
from zooid.platforms.provider_platform import ProviderPlatform
from zooid.store import open_store
from zooid.store.dismissals import is_dismissed
from zooid.store.member_starts import claim_start, find_start


class Silent(PretendedProvider):
    """A provider that does not answer the request to start a member."""

    def start(self, order: MemberOrder) -> None:
        raise ZooidError("no answer in 60 s")


def launch_of(store_url: str) -> Launch:
    ticket = Ticket(
        run="5f2c9a1e",
        member="r0s0",
        roster=0,
        program="worker",
        spec_url=f"{store_url}/specs/000000/r0s0.json",
        spec_digest="0" * 64,
        num_threads=1,
    )
    return Launch(ticket=ticket, offer="aws.lambda.2048", platform="aws_lambda", package="0" * 64)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_start_that_was_not_answered_is_cancelled(tmp_path: Path, has_begun: bool) -> None:
    """The member may be on its way, or it may have begun already. It is then asked to end."""
    store = open_store(tmp_path.as_uri())
    if has_begun:
        claim_start(store, "r0s0", 0)
    platform = ProviderPlatform("aws_lambda", lambda where: Silent(), lambda offer: offer.region, rented_offer)
    platform.create([launch_of(store.url)])
    end = platform.members("5f2c9a1e")["000000.r0s0"]
    assert str(end) == "could not be started: no answer in 60 s"
    start = find_start(store, "r0s0", 0)
    assert start is not None
    assert start.is_cancelled is not has_begun
    assert is_dismissed(store, "r0s0", 0)


def test_a_microvm_carries_out_one_order_only(tmp_path: Path) -> None:
    member = _Member()
    order = {"store": tmp_path.as_uri(), "program": "missing", "digest": "", "end": "end", "environment": {}}
    with pytest.raises(FileNotFoundError):
        member.begin(order)
    with pytest.raises(ValueError, match="this MicroVM has its member already"):
        member.begin(order)
