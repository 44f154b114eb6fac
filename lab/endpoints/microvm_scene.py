"""Members in MicroVMs, through the real client of AWS and a service on this machine."""

import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab.endpoints.aws_microvms import ACCOUNT, BASE_IMAGE, REGION, microvm_endpoint
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, missing_for_sandboxes, sandbox_host
from lab.servers import moto_s3
from zooid.catalog.provider_accounts import accounts
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.entry import microvm_hooks
from zooid.platforms import Platform
from zooid.platforms.aws_lambda.microvms import microvm_platform
from zooid.platforms.provider import resource_name

RECIPE = Path(__file__).parents[2] / "images" / "aws_microvm" / "Dockerfile"
SIZES_MIB = {2048: 512, 4096: 1024}
"""What images name, by the memory of their MicroVMs."""
_ROLE = f"arn:aws:iam::{ACCOUNT}:role/zooid-member"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_HOOKS = {
    "port": microvm_hooks.PORT,
    "microvmImageHooks": {"ready": "ENABLED", "readyTimeoutInSeconds": 60},
    "microvmHooks": {
        "run": "ENABLED",
        "runTimeoutInSeconds": 60,
        "terminate": "ENABLED",
        "terminateTimeoutInSeconds": 30,
    },
}


@contextmanager
def microvm_scene() -> Iterator[Scene]:
    """Members in MicroVMs, one in each sandbox, from images that were made from the recipe."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"MicroVMs need {lacking}")
    with ExitStack() as stack:
        host = stack.enter_context(sandbox_host())
        server = stack.enter_context(moto_s3(host.caller_address))
        stack.enter_context(variables(server.environment))
        server.bucket_url("images")
        objects = _client("s3")
        objects.put_object(Bucket="images", Key="zooid.zip", Body=_archive())

        def fetch(uri: str) -> bytes:
            place = urlsplit(uri)
            content: bytes = objects.get_object(Bucket=place.netloc, Key=place.path[1:])["Body"].read()
            return content

        role_environment = {name: server.environment[name] for name in _CREDENTIALS}
        endpoint = microvm_endpoint(host, fetch, role_environment, server.environment[_CREDENTIALS[0]])
        service, url = stack.enter_context(endpoint)
        _make_images(_client("lambda-microvms", url))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-microvm-scene-")))
        file = folder / "machines.toml"
        image = f"arn:aws:lambda:{REGION}:{ACCOUNT}:microvm-image:zooid"
        file.write_text(f'[aws_microvm]\nimage = "{image}"\nrole = "{_ROLE}"\nendpoint = "{url}"\n')
        stack.enter_context(variables({"ZOOID_MACHINES": str(file)}))

        def make() -> Platform:
            platform = microvm_platform(accounts(file)["aws_microvm"], rented_offer)
            stack.callback(platform.release)
            return platform

        yield Scene(
            "aws_microvm",
            make,
            [rented_offer(f"aws.microvm.{size}") for size in SIZES_MIB],
            PYTHON,
            url=server_url(server),
            tight=rented_offer("aws.microvm.2048"),
            notify=lambda run, title: service.replace(resource_name(run, title)),
            lose=lambda run, title: service.take(resource_name(run, title)),
            left_behind=lambda run: service.living(_prefix(run)),
            billed_usd=lambda run: service.billed_usd(_prefix(run)),
        )


def _prefix(run: str) -> str:
    return resource_name(run, "").rstrip("-") + "-"


def _client(service: str, url: str | None = None) -> Any:
    return import_module("boto3").client(service, region_name=REGION, endpoint_url=url)


def _archive() -> bytes:
    """Return the archive of which the recipe speaks."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("Dockerfile", RECIPE.read_text())
        archive.writestr("microvm_hooks.py", Path(microvm_hooks.__file__).read_text())
    return data.getvalue()


def _make_images(client: Any) -> None:
    for memory_mib, named_mib in SIZES_MIB.items():
        client.create_microvm_image(
            name=f"zooid-{memory_mib}",
            baseImageArn=BASE_IMAGE,
            buildRoleArn=f"arn:aws:iam::{ACCOUNT}:role/zooid-build",
            codeArtifact={"uri": "s3://images/zooid.zip"},
            resources=[{"minimumMemoryInMiB": named_mib}],
            cpuConfigurations=[{"architecture": "ARM_64"}],
            hooks=_HOOKS,
        )
