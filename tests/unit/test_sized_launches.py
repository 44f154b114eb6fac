"""Members are started with the size that their plan gives them, and are told so."""

import pytest

from tests.platforms import PretendedProvider
from tests.unit.test_member_sizes import market_of, measured
from zooid.catalog.provider_accounts import Account
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.plans.plan import Limits, Plan
from zooid.core.runs.ticket import Ticket
from zooid.planner import search
from zooid.planner.member_sizes import ENTRY_BYTES, MARGIN
from zooid.platforms.aws_lambda.function_settings import FunctionSettings
from zooid.platforms.platform import Launch
from zooid.platforms.provider import MemberOrder
from zooid.platforms.provider_platform import ProviderPlatform

ACCOUNT = Account(
    "aws_lambda",
    "machines.toml",
    {
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/zooid:1",
        "role": "arn:aws:iam::123456789012:role/zooid-member",
    },
)


def started(plan: Plan, platform: str) -> dict[str, MemberOrder]:
    """The orders for all members of a plan, by stage; it has one replica."""
    recorder = PretendedProvider()
    provider = ProviderPlatform(platform, lambda where: recorder, lambda offer: offer.region, rented_offer)
    launches = [
        Launch(
            ticket=Ticket(
                run="5f2c9a1e",
                member=f"r0s{stage}",
                roster=0,
                program="worker",
                spec_url=f"memory://sizes/specs/000000/r0s{stage}.json",
                spec_digest="0" * 64,
                num_threads=1,
            ),
            offer=offer.name,
            platform=platform,
            package="0" * 64,
        )
        for stage, offer in enumerate(plan.member_offers)
    ]
    provider.create(launches)
    return recorder.orders


@pytest.mark.parametrize(
    ("name", "platform"),
    [("aws.lambda", "aws_lambda"), ("azure.aci.cpu", "azure_container"), ("azure.jobs.cpu", "azure_job")],
)
def test_every_member_gets_the_predicted_memory_and_the_margin(name: str, platform: str) -> None:
    made = measured([5, 5, 5, 300], seconds=0.001, out_bytes=1e3, batch_size=64, num_samples=640)
    limits = Limits(max_members=4, num_stages=3, num_replicas=1)
    plan = search(market_of(name, made), limits, "cheapest").pick
    orders = started(plan, platform)
    assert len({order.offer.memory_bytes for order in orders.values()}) > 1, "stages have sizes of their own"
    for number, stage in enumerate(plan.stages):
        order = orders[f"000000.r0s{number}"]
        assert order.offer.name == stage.offer
        assert order.order["ticket"]["given_bytes"] == order.offer.memory_bytes
        assert order.offer.memory_bytes >= (1 + MARGIN) * stage.memory_bytes + ENTRY_BYTES
        if platform == "aws_lambda":
            settings = FunctionSettings.of(ACCOUNT, order)
            assert f"{name}.{settings.memory_mib}" == stage.offer
