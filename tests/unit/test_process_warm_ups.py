"""Functions import what members need while a run is prepared: which, and how many."""

from collections import Counter

import pytest

from tests.platforms import PretendedPlatform
from tests.unit.profiles import offer
from zooid.coordinator.runs.warm_ups import offers_to_warm, warm_up_specs
from zooid.core.plans.plan import FixedLayout
from zooid.core.resources.offer import Offer


def function(name: str = "aws.lambda.2048", lifetime_s: float = 900.0) -> Offer:
    return offer(0.1, name=name, platform="aws_lambda", kind="function", lifetime_s=lifetime_s)


def layout(*offers: Offer, num_replicas: int = 1, num_stages: int = 1) -> FixedLayout:
    return FixedLayout(
        num_replicas=num_replicas, num_stages=num_stages, schedule="gpipe", transport="store", offers=offers
    )


def num_warmed(given: FixedLayout, platform: PretendedPlatform | None = None) -> dict[str, int]:
    return Counter(each.name for each in offers_to_warm(given, platform or PretendedPlatform()))


class Quota(PretendedPlatform):
    """A platform that lets so many members run at once."""

    def __init__(self, num_free: int) -> None:
        super().__init__()
        self.num_free = num_free

    def has_room(self, num_members: int, offer: str) -> bool:
        return num_members <= self.num_free


def test_there_is_one_for_each_member() -> None:
    assert num_warmed(layout(function(), num_replicas=2, num_stages=3)) == {"aws.lambda.2048": 6}


def test_members_on_several_offers_have_theirs() -> None:
    stages = layout(function(), function("aws.lambda.4096"), num_stages=2)
    assert num_warmed(stages) == {"aws.lambda.2048": 1, "aws.lambda.4096": 1}
    replicas = layout(function(), function("aws.lambda.4096"), num_replicas=2)
    assert num_warmed(replicas) == {"aws.lambda.2048": 1, "aws.lambda.4096": 1}


def test_successors_that_follow_soon_have_theirs_too() -> None:
    assert num_warmed(layout(function(lifetime_s=20.0), num_replicas=4)) == {"aws.lambda.2048": 8}


@pytest.mark.parametrize(("num_free", "expected"), [(8, 8), (7, 7), (3, 3), (0, 0)])
def test_quotas_may_allow_fewer(num_free: int, expected: int) -> None:
    given = layout(function(lifetime_s=20.0), num_replicas=4)
    assert num_warmed(given, Quota(num_free)).get("aws.lambda.2048", 0) == expected


@pytest.mark.parametrize("platform", ["local", "ssh", "aws_microvm", "cloud_run", "skypilot"])
def test_others_are_started_anew_every_time(platform: str) -> None:
    assert num_warmed(layout(offer(0.1, name="other", platform=platform), num_replicas=2)) == {}


def test_each_has_a_name_of_its_own() -> None:
    specs = warm_up_specs([function(), function()], "run", "file:///runs/1", 3)
    assert len({spec.member for spec in specs}) == 2
    assert {(spec.run, spec.store, spec.roster) for spec in specs} == {("run", "file:///runs/1", 3)}
