"""Members as jobs of Cloud Run, through Google's own client and an endpoint on this machine."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lab.endpoints.cloud_run import PROJECT, CloudRunApi, role_permissions
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, missing_for_sandboxes, sandbox_host
from lab.servers import moto_s3
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.coordinator.plans.own_offers import account_with
from zooid.platforms import Platform
from zooid.platforms.cloud_run import cloud_run_platform
from zooid.platforms.provider import resource_name

ROLE = Path(__file__).parents[2] / "docs" / "cloud-run-role.yaml"
IMAGE = f"us-central1-docker.pkg.dev/{PROJECT}/zooid/zooid:1"
MEMBER = f"zooid-member@{PROJECT}.iam.gserviceaccount.com"
_USER = f"zooid-user@{PROJECT}.iam.gserviceaccount.com"
_UNIVERSE = "laboratory.invalid"
"""A cloud of its own, by Google's word for that: with this, no part of the client asks Google for anything."""
LOGIN = "GOOGLE_APPLICATION_CREDENTIALS"
UNIVERSE = {"GOOGLE_CLOUD_UNIVERSE_DOMAIN": _UNIVERSE}
_STORE_LOGIN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@contextmanager
def cloud_run_service(**options: str) -> Iterator[tuple[CloudRunApi, Scene]]:
    """Yield the endpoint, and the scene; `options` are further ones of the account."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"jobs of Cloud Run need {lacking}")
    with ExitStack() as stack:
        host = stack.enter_context(sandbox_host())
        server = stack.enter_context(moto_s3(host.caller_address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-cloud-run-")))
        login, machines = folder / "login.json", folder / "machines.toml"
        service = CloudRunApi(
            host,
            IMAGE,
            write_login(login),
            role_permissions(ROLE),
            image_environment={name: server.environment[name] for name in _STORE_LOGIN},
            accounts=[MEMBER],
        )
        url = stack.enter_context(service.serve())
        account = {"project": PROJECT, "image": IMAGE, "service_account": MEMBER, "endpoint": url, **options}
        machines.write_text("\n".join(["[cloud_run]", *(f'{name} = "{text}"' for name, text in account.items()), ""]))
        own = {**UNIVERSE, LOGIN: str(login), "ZOOID_MACHINES": str(machines)}
        stack.enter_context(variables({**server.environment, **own}))

        def make() -> Platform:
            platform = cloud_run_platform(account_with("cloud_run"), rented_offer)
            stack.callback(platform.release)
            return platform

        scene = Scene(
            "cloud_run",
            make,
            [rented_offer(name) for name in ("gcp.run.cpu.4x8", "gcp.run.cpu.2x4")],
            PYTHON,
            url=server_url(server),
            tight=rented_offer("gcp.run.cpu.1x1"),
            notify=lambda run, title: service.container_of(resource_name(run, title)).notify(),
            lose=lambda run, title: service.lose(resource_name(run, title)),
            left_behind=service.left_of,
            billed_usd=service.billed_usd,
        )
        yield service, scene


@contextmanager
def cloud_run_scene() -> Iterator[Scene]:
    """Members as jobs of Cloud Run, without GPUs."""
    with cloud_run_service() as (_, scene):
        yield scene


def write_login(file: Path) -> bytes:
    """Write the key of a service account into a file for Google's login, and return the public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    login = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": private.decode(),
        "client_email": _USER,
        "client_id": "1",
        "token_uri": f"https://oauth2.{_UNIVERSE}/token",
        "universe_domain": _UNIVERSE,
    }
    file.write_text(json.dumps(login))
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
