"""Members on rented machines that cannot start or end as they should, through the stand-in for SkyPilot."""

import logging
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.endpoints.sky_scene import machine_of, offer_of, sky_cluster
from lab.endpoints.sky_service import SkyService
from lab.members import Members
from lab.platform_scenes import Scene, running
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.catalog.provider_accounts import Account
from zooid.coordinator.plans.own_offers import account_with
from zooid.core.errors import InputError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberStart
from zooid.core.runs.ticket import title_of
from zooid.platforms.skypilot import skypilot_platform

pytestmark = pytest.mark.timeout(180)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def sky() -> Iterator[tuple[SkyService, Scene]]:
    with or_skip(sky_cluster()) as made:
        yield made


@pytest.fixture
def service(sky: tuple[SkyService, Scene]) -> Iterator[SkyService]:
    service = sky[0]
    before = service.provision_s, service.minute_s
    yield service
    service.provision_s, service.minute_s = before
    service.sold_out.clear()


@pytest.fixture
def scene(sky: tuple[SkyService, Scene]) -> Scene:
    return sky[1]


@pytest.fixture
def members(scene: Scene, tmp_path: Path) -> Iterator[Members]:
    made = scene.members(tmp_path)
    yield made
    made.end()
    wait_until(lambda: not scene.leftovers(made.run))


def start(scene: Scene, members: Members, program: str) -> str:
    launch = running(program, scene, members.launch(f"m{len(members.launched)}", ""))
    members.create([launch])
    return launch.member


def exit_of(members: Members, member: str) -> Exit:
    """Wait for what the platform says about a member's end."""
    title = title_of(member, 0)
    wait_until(lambda: members.platform.members(members.run).get(title) is not None, timeout_s=60.0)
    ended = members.platform.members(members.run)[title]
    assert ended is not None
    return ended


def test_a_machine_that_is_sold_out_is_said_to_be_and_costs_nothing(
    service: SkyService, scene: Scene, members: Members
) -> None:
    service.sold_out.add("c5.4xlarge")
    ended = exit_of(members, start(scene, members, SLEEP))
    assert not ended.billed_s
    assert ended.reason.startswith("could not be started: ")
    assert "Failed to acquire resources in all zones in aws/us-east-1 for c5.4xlarge" in ended.reason
    assert scene.billed_usd is not None
    assert scene.billed_usd(members.run) == 0.0


def test_a_machine_whose_setup_fails_is_torn_down_and_billed(service: SkyService, scene: Scene, tmp_path: Path) -> None:
    account = account_with("skypilot")
    broken = Account(account.platform, account.file, {**account.options, "setup": "echo no such package; exit 1"})
    assert scene.url is not None
    run = secrets.token_hex(4)
    platform = skypilot_platform(broken, offer_of, machine_of, look_s=0.5)
    members = Members(platform, tmp_path, run, scene.url(run), scene.offers)
    ended = exit_of(members, start(scene, members, SLEEP))
    assert ended.reason.startswith("could not be started: its task has ended with FAILED_SETUP: ")
    assert ended.billed_s is not None
    assert scene.leftovers(run) == []
    members.end()


def test_a_machine_is_torn_down_when_its_member_has_ended_though_nobody_deletes_it(
    service: SkyService, scene: Scene, members: Members
) -> None:
    member = start(scene, members, "print('done', flush=True)")
    ended = exit_of(members, member)
    assert ended.billed_s is not None
    assert ended.reason == ""
    assert scene.leftovers(members.run) == []


def test_a_machine_ends_by_itself_when_nobody_looks_any_more(
    service: SkyService, scene: Scene, members: Members
) -> None:
    service.minute_s = 0.2
    start(scene, members, "print('done', flush=True)")
    wait_until(lambda: not scene.leftovers(members.run), timeout_s=60.0)
    assert not [line for line in service.command_lines if "down" in line and members.run in str(line)]


def test_a_member_that_is_deleted_while_its_machine_is_rented_leaves_nothing(
    service: SkyService, scene: Scene, members: Members
) -> None:
    service.provision_s = 60.0
    member = start(scene, members, SLEEP)
    assert members.platform.members(members.run) == {title_of(member, 0): None}
    members.delete(member)
    assert scene.leftovers(members.run) == []
    assert not members.is_running(member)
    assert members.store.list(keys.STARTS) == []


def test_a_lost_machine_is_told_and_billed_until_then(service: SkyService, scene: Scene, members: Members) -> None:
    member = start(scene, members, SLEEP)
    members.first_line(member)
    assert scene.lose is not None
    scene.lose(members.run, title_of(member, 0))
    ended = exit_of(members, member)
    assert ended.reason == "its machine is lost, as a spot machine is that its cloud takes back"
    assert scene.billed_usd is not None
    assert ended.billed_s is not None
    assert abs(ended.billed_s - round(scene.billed_usd(members.run) / 0.68 * 3600)) <= 1.0, "both in whole seconds"


def test_no_machine_is_rented_for_a_start_that_was_cancelled(
    service: SkyService, scene: Scene, members: Members
) -> None:
    launch = running(SLEEP, scene, members.launch("m0", ""))
    cancelled = MemberStart(member="m0", nonce="coordinator", is_cancelled=True)
    members.store.create(keys.start("m0", 0), encode_record(cancelled))
    members.create([launch])
    assert not members.is_running("m0")
    assert not [each for each in service.clusters if members.run in each.name]


def test_a_machine_that_skypilot_cannot_rent_is_refused_before_any_is_rented(
    service: SkyService, scene: Scene, members: Members
) -> None:
    good, bad = (running(SLEEP, scene, members.launch(f"m{number}", "")) for number in range(2))
    with pytest.raises(
        InputError, match=r"SkyPilot refuses to rent a machine for aws\.ec2\.p3\.2xlarge: .*p3\.2xlarge"
    ):
        members.create([good, replace(bad, offer="aws.ec2.p3.2xlarge")])
    assert not [each for each in service.clusters if members.run in each.name]
    members.launched.clear()


def test_a_silent_command_is_warned_about_once_and_members_are_still_watched(
    service: SkyService,
    scene: Scene,
    members: Members,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = start(scene, members, SLEEP)
    members.first_line(member)

    def refuse(self: SkyService, options: object, files: object) -> str:
        return "the server is busy\n"

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(SkyService, "_status", refuse)
        for _ in range(2):
            assert members.platform.members(members.run) == {title_of(member, 0): None}
    [warning] = [record for record in caplog.records if "did not say which members run" in record.getMessage()]
    assert "the server is busy" in warning.getMessage()
    assert members.is_running(member)
