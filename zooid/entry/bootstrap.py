"""The first program of a member on a machine without zooid: it fetches zooid and goes on as `zooid.entry`.

Its text is sent to the machine after those of `machine_folder.py` and `cloud_logins.py`, and executed with them as one
program. It needs the standard library and obstore. The order gives the digest of the archive of zooid to fetch.
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tarfile
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # in the program that is sent, these names come from the text before
    from zooid.entry.machine_folder import STARTER, leave, occupy, run_folder
    from zooid.store.cloud_logins import aws_login

_STATUS_NOT_STARTED, _STATUS_INTERRUPTED = 3, 130
_PR_SET_PDEATHSIG = 1
_NUM_TRIES, _TRY_S = 5, 1.0


def begin(order: dict[str, Any]) -> int:
    """Fetch zooid, and attend the member of an order: {"run", "title", "store", "zooid", "environment", "ticket"}.

    An order may also name a process as "parent". The member is interrupted when that ends.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # Ray blocks what it ignores
    if "parent" in order:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != order["parent"]:
            raise KeyboardInterrupt
    run = order["run"]
    if occupy(run, f"{STARTER}{order['title']}") is None:  # it keeps the folder of the run, too
        return 0  # the member was started twice
    for name, value in order["environment"].items():
        os.environ.setdefault(name, value)
    try:
        package = _unpacked(order["store"], order["zooid"], os.path.join(run_folder(run), "zooid"))
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing can be started
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return _STATUS_NOT_STARTED
    sys.path.insert(0, package)
    earlier = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = package if not earlier else os.pathsep.join((package, earlier))
    from zooid.entry.arrival import arrive

    status = arrive(order["ticket"])
    if status == 0:
        leave(run)
    return status


def _unpacked(store_url: str, digest: str, folder: str) -> str:
    """Fetch the archive with this digest into `folder/DIGEST`, once for all processes of the run on this machine."""
    target = os.path.join(folder, digest)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(target):
            data = _fetched(store_url, f"code/{digest}.tar.gz")
            actual = hashlib.sha256(data).hexdigest()
            if actual != digest:
                raise ValueError(f"zooid in {store_url} has the digest {actual} instead of {digest}; it is not run")
            staged = f"{target}.part"
            shutil.rmtree(staged, ignore_errors=True)
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
                archive.extraction_filter = lambda member, path: member  # the digest says who has made it
                archive.extractall(staged)
            os.rename(staged, target)
    return target


def _fetched(store_url: str, key: str) -> bytes:
    if store_url.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        path = os.path.join(unquote(urlsplit(store_url).path), key)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise ValueError(
                f"{store_url} does not exist on {os.uname().nodename}; give a store that all machines reach, such as "
                "s3://bucket/run, or a folder that they share"
            ) from None
    import obstore
    from obstore import store as stores

    options: Any = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(minutes=5), "allow_http": True}
    how: dict[str, Any] = aws_login() if store_url.startswith("s3://") else {}
    if store_url.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL_S3"):
        how["config"] = {"virtual_hosted_style_request": False}
    opened: Any = stores.from_url(store_url, client_options=options, **how)
    for number in range(_NUM_TRIES):
        try:
            return bytes(obstore.get(opened, key).bytes())
        except Exception:
            if number == _NUM_TRIES - 1:
                raise
            time.sleep(_TRY_S)
    raise AssertionError


def leave_wholly(run: str) -> None:
    """Leave the run's folder through both copies of `machine_folder` in this process, since each may hold a lock."""
    imported = sys.modules.get("zooid.entry.machine_folder")
    for leave_it in (*([] if imported is None else [imported.leave]), leave):
        try:
            leave_it(run)
        except Exception:  # noqa: BLE001  # whoever comes next may remove it
            traceback.print_exc()


def main_of_order(order_json: str) -> None:
    """Begin, and end the process without the interpreter's teardown."""
    order = json.loads(order_json)
    try:
        status = begin(order)
    except KeyboardInterrupt:  # nobody waits for the member any more
        status = _STATUS_INTERRUPTED
        leave_wholly(order["run"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
