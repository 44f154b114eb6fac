"""Jobs of members, their size and the quotas of a namespace."""

from typing import Any

import pytest
from kubernetes.client.models.v1_job import V1Job
from msgspec import structs

from lab.endpoints.kubernetes import job_problems
from zooid.catalog.machines_file import OwnPlace, offer_of_place
from zooid.core.errors import InputError
from zooid.platforms.kubernetes.job_manifests import job_manifest, size_of
from zooid.platforms.kubernetes.namespaces import Namespace
from zooid.platforms.kubernetes.quotas import allowance, quantity
from zooid.platforms.provider import START_VARIABLE, MemberOrder

SIZES = {"vcpus": 1.5, "memory": 2**30, "gpu": "A100", "num_gpus": 1, "gpu_memory": "80 GB"}
OFFER = offer_of_place(OwnPlace("kubernetes.a", {}, SIZES))
FULL = Namespace(
    "kubernetes.a",
    image="image:1",
    python="/venv/bin/python",
    service_account="member",
    secret="store",
    node_selector="pool=spot,gpu=yes",
    tolerations="spot=true:NoSchedule,dedicated",
    user="1000",
)


def an_order(lifetime_s: float | None = None) -> MemberOrder:
    return MemberOrder("5f2c9a1e", "000000.r0s1", OFFER, {"run": "5f2c9a1e"}, lifetime_s)


@pytest.mark.parametrize("named", [FULL, Namespace("kubernetes.a", image="image:1")])
def test_every_job_is_one_that_the_official_models_and_the_cluster_take(named: Namespace) -> None:
    manifest = job_manifest(an_order(60.0), named)
    V1Job.model_validate(manifest)
    assert job_problems(manifest) == []


def test_a_member_is_started_once_gets_its_size_and_no_login_of_the_cluster() -> None:
    job = job_manifest(an_order(90.5), FULL)
    assert job["metadata"]["name"] == "zooid-5f2c9a1e-000000-r0s1"
    assert job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["activeDeadlineSeconds"] == 151
    assert pod["automountServiceAccountToken"] is False
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("member", {"pool": "spot", "gpu": "yes"})
    assert pod["tolerations"][-2:] == [
        {"key": "spot", "value": "true", "effect": "NoSchedule"},
        {"key": "dedicated", "operator": "Exists"},
    ]
    [container] = pod["containers"]
    size = {"cpu": "1500m", "memory": str(2**30), "nvidia.com/gpu": "1"}
    assert container["resources"] == {"requests": size, "limits": size}
    assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert [variable["name"] for variable in container["env"]] == [START_VARIABLE]
    assert container["command"][0] == "/venv/bin/python"
    assert container["securityContext"]["runAsUser"] == 1000


def test_a_member_without_a_lifetime_may_run_for_any_time() -> None:
    assert "activeDeadlineSeconds" not in job_manifest(an_order(), FULL)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"members on kubernetes.a need `image`, which its table \[kubernetes.a\]"),
        ({"image": "a", "node_selector": "pool"}, "`node_selector` of .* is 'pool'; give it as in 'pool=spot,gpu=yes'"),
        ({"image": "a", "tolerations": "a=b=c"}, "`tolerations` of"),
        ({"image": "a", "user": "me"}, "`user` of .* is 'me'; give it as in '1000'"),
    ],
)
def test_a_table_that_cannot_be_used_says_what_it_lacks(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        job_manifest(an_order(), Namespace("kubernetes.a", **options))


@pytest.mark.parametrize(
    ("text", "value"), [("250m", 0.25), ("4", 4.0), ("1Gi", 2.0**30), ("1.5G", 1.5e9), ("1e3", 1e3), ("2E", 2e18)]
)
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == value


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'4 GB' is no quantity"):
        quantity("4 GB")


def a_quota(name: str, hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}


def test_the_tightest_quota_counts() -> None:
    size = size_of(structs.replace(OFFER, gpu="", num_gpus=0))
    quotas = [
        a_quota("compute", {"requests.cpu": "8", "limits.memory": "16Gi"}, {"requests.cpu": "5", "limits.memory": "0"}),
        a_quota("objects", {"pods": "20", "configmaps": "5"}, {"pods": "3"}),
        a_quota("best", {"pods": "0"}, {}, scopes=["BestEffort"]),
    ]
    assert allowance(quotas, size, in_use=True) == (2, "compute allows requests.cpu of 8")
    assert allowance(quotas, size, in_use=False) == (5, "compute allows requests.cpu of 8")
    assert allowance([], size, in_use=True) is None


def test_a_quota_of_gpus_counts() -> None:
    quotas = [a_quota("gpus", {"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "4"})]
    assert allowance(quotas, size_of(OFFER), in_use=True) == (0, "gpus allows requests.nvidia.com/gpu of 4")
