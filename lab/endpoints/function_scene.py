"""Members as Lambda functions, through the real clients of AWS and a service on this machine."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.endpoints.aws_lambda import ACCOUNT, REGION, LambdaService, lambda_endpoint
from lab.endpoints.aws_permissions import Permissions
from lab.endpoints.function_environments import Image
from lab.endpoints.image_recipes import Recipe
from lab.machines.machine import SEARCH_PATH
from lab.platform_scenes import MachinesLack, Scene, server_url, variables
from lab.sandboxes.sandbox import PYTHON, missing_for_sandboxes, sandbox_host
from lab.servers import S3Server, moto_s3
from zooid.catalog.provider_accounts import accounts
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.entry import lambda_handler
from zooid.platforms import Platform
from zooid.platforms.aws_lambda.functions import function_platform

IMAGE_URI = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/zooid:1"
RECIPE = Path(__file__).parents[2] / "images" / "aws_lambda" / "Dockerfile"
POLICY = Path(__file__).parents[2] / "docs" / "aws-lambda-policy.json"
"""What the documents say that the user must be allowed."""
ROLE = f"arn:aws:iam::{ACCOUNT}:role/zooid-member"
_ROLE_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION")


@dataclass(frozen=True)
class FunctionPlace:
    """A Lambda service with a store, and the file of machines that names the account."""

    service: LambdaService
    server: S3Server
    endpoint: str
    file: Path

    def write_account(self, **options: str) -> None:
        """Write the user's account, with further options such as `lifetime`."""
        given = {"image": IMAGE_URI, "role": ROLE, "endpoint": self.endpoint, **options}
        self.file.write_text("\n".join(("[aws_lambda]", *(f'{name} = "{value}"' for name, value in given.items()), "")))


@contextmanager
def function_place() -> Iterator[FunctionPlace]:
    """Start the service, and let this process use it with plain `zooid.train(..., on="aws.lambda.2048")`."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        raise MachinesLack(f"functions need {lacking}")
    with ExitStack() as stack:
        host = stack.enter_context(sandbox_host())
        server = stack.enter_context(moto_s3(host.caller_address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zooid-functions-")))
        folder.chmod(0o755)
        recipe = Recipe.read(RECIPE)
        recipe.build(Path(lambda_handler.__file__).parent, folder / "image")
        role_variables = {name: server.environment[name] for name in _ROLE_VARIABLES}
        image = Image(recipe, folder / "image", {"PATH": SEARCH_PATH, **role_variables})
        permissions = Permissions.of(POLICY, f"arn:aws:iam::{ACCOUNT}:user/laboratory")
        service = LambdaService(host, image, IMAGE_URI, ROLE, permissions)
        endpoint = stack.enter_context(lambda_endpoint(service, server.environment["AWS_ACCESS_KEY_ID"]))
        place = FunctionPlace(service, server, endpoint, folder / "machines.toml")
        place.write_account()
        stack.enter_context(variables({**server.environment, "ZOOID_MACHINES": str(place.file)}))
        yield place


@contextmanager
def function_scene(**options: str) -> Iterator[Scene]:
    """Members as functions of two sizes; `options` are further ones of the account.

    A function is kept while a platform is open that may need it again.
    """
    with function_place() as place:
        place.write_account(**options)
        service, opened = place.service, ExitStack()

        def make() -> Platform:
            platform = function_platform(accounts(place.file)["aws_lambda"], rented_offer, look_s=0.5)
            opened.callback(platform.release)
            is_open.append(True)
            return platform

        def left_behind(run: str) -> list[str]:
            found = [*service.running(run), *service.left_files(run)]
            return found if is_open else [*found, *service.remains(run)]

        is_open: list[bool] = []
        yield Scene(
            "aws_lambda",
            make,
            [rented_offer(f"aws.lambda.{memory_mib}") for memory_mib in (2048, 1769)],
            PYTHON,
            url=server_url(place.server),
            tight=rented_offer("aws.lambda.512"),
            gives_notice=False,
            lose=lambda run, title: service.lose(title),
            is_lost_in_words="Runtime.ExitError",
            left_behind=left_behind,
            billed_usd=service.billed_usd,
        )
        opened.close()
        remains = service.remains("")
        assert not remains, f"left behind: {remains}"
