"""What AWS may do with functions and with whoever starts them, through its real clients: the endpoint does it here."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from lab.endpoints.aws_lambda import USD_PER_REQUEST
from lab.endpoints.function_scene import FunctionPlace, function_place
from lab.members import Members
from lab.platform_scenes import server_url
from lab.sandboxes.sandbox import PYTHON
from lab.waiting import wait_until
from tests.integration.reference import train_composed_layers
from tests.scenes import or_skip
from zooid.catalog.provider_accounts import accounts
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.errors import InputError, MemberFailed, ZooidError
from zooid.core.plans.plan import Limits
from zooid.core.runs import keys
from zooid.core.runs.events import Event, MemberTrained, PhaseStarted, RunStarted
from zooid.core.runs.ticket import title_of
from zooid.entry import lambda_handler
from zooid.planner.member_sizes import ENTRY_BYTES, MARGIN
from zooid.platforms import Launch
from zooid.platforms.aws_lambda.functions import function_platform
from zooid.store import open_store

pytestmark = pytest.mark.timeout(240)

TOLERANCE = 1e-9
OFFER = "aws.lambda.1769"
JOB = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3))


def build_data():
    chance = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(96, 20, generator=chance), torch.randint(0, 3, (96,), generator=chance))


held = []


def grow(num_steps, named):
    held.extend(bytearray(2**20) for _ in range(GROWTH_MIB if num_steps > 1 else 0))


job = zooid.Job(
    model=build_model,
    loss=F.cross_entropy,
    data=build_data,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.05),
    batch_size=16,
    grain_size=4,
    epochs=1,
    on_weights=grow,
)
"""
LOOKING_AT_ITS_FUNCTION = """
import os
from pathlib import Path

attendant = os.getppid()
handler = int(Path(f"/proc/{attendant}/stat").read_text().rpartition(")")[2].split()[1])
has_torch = "/libtorch_cpu.so" in Path(f"/proc/{handler}/maps").read_text()
print(handler, has_torch, Path(f"/proc/{handler}/cmdline").read_text().split("\\0")[2])
"""


@pytest.fixture(scope="module")
def place() -> Iterator[FunctionPlace]:
    with or_skip(function_place()) as made:
        yield made


@pytest.fixture
def members(place: FunctionPlace, tmp_path: Path) -> Iterator[Members]:
    platform = function_platform(accounts(place.file)["aws_lambda"], rented_offer, look_s=0.5)
    made = Members(platform, tmp_path, offers=[rented_offer(OFFER)])
    made = Members(platform, tmp_path, made.run, server_url(place.server)(made.run), made.offers)
    yield made
    made.end()
    platform.release()
    assert place.service.remains(made.run) == []


def launch_of(members: Members, name: str, program: str = "raise SystemExit(0)") -> Launch:
    launch = members.launch(name, "")
    return replace(launch, ticket=structs.replace(launch.ticket, prefix=(PYTHON, "-c", program)))


def written_job(folder: Path, growth_mib: int = 0) -> Path:
    (folder / "job.py").write_text(JOB.replace("GROWTH_MIB", str(growth_mib)))
    return folder / "job.py"


class TestPermissions:
    def test_those_of_the_documents_suffice_and_all_are_needed(self, place: FunctionPlace, members: Members) -> None:
        place.service.calls.clear()
        members.create([launch_of(members, "m0")])
        assert members.end_of("m0").status == 0
        other = function_platform(accounts(place.file)["aws_lambda"], rented_offer, look_s=0.5)
        other.members(members.run)
        members.end()
        members.platform.release()
        other.release()
        used = set(place.service.calls) | {"logs:DescribeLogGroups"}  # for whoever finds members by their handles
        assert used == place.service.permissions.actions

    @pytest.mark.parametrize(
        "action",
        [
            "lambda:GetAccountSettings",
            "lambda:CreateFunction",
            "lambda:TagResource",
            "lambda:GetFunctionConfiguration",
            "lambda:PutFunctionEventInvokeConfig",
            "iam:PassRole",
            "logs:CreateLogGroup",
            "logs:TagResource",
            "logs:PutRetentionPolicy",
        ],
    )
    def test_one_that_lacks_is_named_and_nothing_is_started(
        self, place: FunctionPlace, members: Members, monkeypatch: pytest.MonkeyPatch, action: str
    ) -> None:
        launch = launch_of(members, "m0")
        with monkeypatch.context() as patch:
            patch.setattr(place.service, "permissions", place.service.permissions.without(action))
            with pytest.raises(ZooidError) as refused:
                members.create([launch])
        assert f"is not authorized to perform: {action} on resource: " in str(refused.value)
        assert "docs/aws-lambda-policy.json has the permissions that zooid needs" in str(refused.value)
        assert place.service.charges_of(members.run) == []

    def test_a_member_that_may_not_be_invoked_says_so(
        self, place: FunctionPlace, members: Members, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launch = launch_of(members, "m0")
        with monkeypatch.context() as patch:
            without = place.service.permissions.without("lambda:InvokeFunction")
            patch.setattr(place.service, "permissions", without)
            members.create([launch])
        assert "is not authorized to perform: lambda:InvokeFunction" in members.end_of("m0").reason

    def test_another_role_may_not_be_passed(self, place: FunctionPlace, members: Members) -> None:
        place.write_account(role="arn:aws:iam::123456789012:role/administrator")
        platform = function_platform(accounts(place.file)["aws_lambda"], rented_offer)
        place.write_account()
        with pytest.raises(ZooidError, match=r"iam:PassRole on resource: arn:aws:iam::123456789012:role/administrator"):
            platform.create([launch_of(members, "m0")])
        platform.release()


def test_more_members_than_the_quota_allows_are_refused_with_numbers(
    place: FunctionPlace, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.service.quotas, "concurrency", 3)
    launches = [launch_of(members, f"m{number}") for number in range(4)]
    with pytest.raises(ZooidError, match=r"4 members are to run as functions, but this account may run 3 at the same"):
        members.create(launches)
    assert place.service.charges_of(members.run) == []
    assert not members.platform.has_room(4, OFFER)
    assert members.platform.has_room(3, OFFER)


def test_a_run_beyond_the_quota_is_refused_before_its_folder_is_claimed(
    place: FunctionPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.service.quotas, "concurrency", 3)
    url = server_url(place.server)("beyond-quota")
    num_charged, limits = len(place.service.charges), Limits(num_replicas=2, num_stages=2)
    refused = rf"4 members are to run on {OFFER}, but your account has room for 3 more now; plan with fewer members"
    with pytest.raises(InputError, match=refused):
        zooid.train(written_job(tmp_path), store=url, on=OFFER, limits=limits, profile=False)
    assert open_store(url).is_empty()
    assert len(place.service.charges) == num_charged


def test_the_handler_loads_nothing_that_takes_long(tmp_path: Path) -> None:
    """An initialisation may take 10 s, so that torch must come later."""
    loading = "import sys; sys.path.insert(0, sys.argv[1]); import lambda_handler; print(*sys.modules)"
    folder = Path(lambda_handler.__file__).parent
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", loading, str(folder)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "lambda_handler" in loaded
    assert not {"torch", "zooid", "numpy", "obstore", "boto3"} & set(loaded)


def test_a_function_imports_torch_once_for_all_members_that_run_in_it(place: FunctionPlace, tmp_path: Path) -> None:
    """Lambda uses the process of a function again, and its members are forks of it."""
    job_file, url = written_job(tmp_path), server_url(place.server)("used-again")
    job_file.write_text(LOOKING_AT_ITS_FUNCTION + job_file.read_text())
    events: list[Event] = []

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, PhaseStarted):  # the function of the preparer is free before the member is started
            wait_until(lambda: not place.service.running(""))

    limits = Limits(num_replicas=1, num_stages=1)
    zooid.train(job_file, store=url, on=OFFER, limits=limits, profile=False, on_event=note)
    [run] = [event.run for event in events if isinstance(event, RunStarted)]
    began_anew = [charge.init_ms > 0 for charge in place.service.charges_of(run)]
    assert began_anew == [True, True, False], "those that prepare and warm up, but not the member that trains"
    for name in ("preparer", "r0s0"):
        told = bytes(open_store(url).get(keys.log(name, 0))).decode().split()
        assert told[1:] == ["True", "awslambdaric"], "a fork of the runtime's process, which has imported torch"


def test_events_that_arrive_twice_train_once_and_are_billed(place: FunctionPlace, tmp_path: Path) -> None:
    job_file = written_job(tmp_path)
    expected = train_composed_layers(job_file)
    service, url = place.service, server_url(place.server)("doubled")
    names = ("preparer", "warm-up-0", "warm-up-1", "r0s0", "r1s0")
    service.faults.num_doubled = len(names)
    events: list[Event] = []
    starts: set[str] = set()

    def note(event: Event) -> None:
        events.append(event)
        starts.update(open_store(url).list(keys.STARTS))

    limits = Limits(num_replicas=2, num_stages=1)
    result = zooid.train(job_file, store=url, on=OFFER, limits=limits, profile=False, on_event=note)
    assert set(service.faults.doubled) == {title_of(name, 0) for name in names}
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    assert starts == {keys.start(name, 0) for name in names}
    [run] = [event.run for event in events if isinstance(event, RunStarted)]
    wait_until(lambda: not service.remains(run))
    charges = service.charges_of(run)
    assert len(charges) == 2 * len(names), "whoever finds the start claimed is billed, too"
    assert all(charge.billed_ms == math.ceil(round(charge.init_ms + charge.duration_ms, 2)) for charge in charges)
    assert sum(charge.init_ms for charge in charges) > 0
    of_members = ("compute", "start-up", "preparation", "starts")
    own_usd = math.fsum(term.usd for term in result.cost_terms if term.kind in of_members)
    second_usd = len(names) * USD_PER_REQUEST  # the bill counts one request for each member
    less_than_a_grain_usd = 1e-9  # the catalog's price of an hour has eight digits
    assert own_usd == pytest.approx(service.billed_usd(run) - second_usd, abs=less_than_a_grain_usd)


def test_a_member_within_its_memory_trains_and_one_beyond_it_names_limit_peak_and_prediction(
    place: FunctionPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.02")
    limits = Limits(num_replicas=1, num_stages=1)
    events: list[Event] = []
    url = server_url(place.server)("within")
    before_usd = place.service.billed_usd("")
    result = zooid.train(written_job(tmp_path), store=url, on=OFFER, limits=limits, on_event=events.append)
    [peak_bytes] = [event.peak_bytes for event in events if isinstance(event, MemberTrained)]
    of_members = ("compute", "start-up", "preparation", "starts")
    own_usd = math.fsum(term.usd for term in result.cost_terms if term.kind in of_members)
    assert own_usd == pytest.approx(place.service.billed_usd("") - before_usd, abs=1e-9), "the profile included"
    [stage] = result.plan.stages
    assert peak_bytes <= stage.memory_bytes * (1 + MARGIN) + ENTRY_BYTES <= rented_offer(OFFER).memory_bytes
    grown = tmp_path / "grown"
    grown.mkdir()
    beyond = (
        r"r0s0 was ended by the kernel: it used more than its 1\.855 GB of memory, and had up to 1\.\d+ GB; "
        r"predicted: [\d.]+ MB"
    )
    with pytest.raises(MemberFailed, match=beyond):
        zooid.train(
            written_job(grown, growth_mib=2000), store=server_url(place.server)("beyond"), on=OFFER, limits=limits
        )
