"""The first program of a member on a machine without zooid: it fetches zooid and goes on as `zooid.entry`.

Its text is sent to the machine after those of `machine_folder.py` and `cloud_logins.py`, and executed with them as one
program. It needs the standard library and obstore. The order gives the digest of the archive of zooid to fetch. Any
Python from 3.8 on can compile the text, so that an interpreter that is too old for zooid is reported here.
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # in the program that is sent, these names come from the text before
    from zooid.entry.machine_folder import STARTER, leave, occupy, run_folder
    from zooid.store.cloud_logins import aws_login

_STATUS_NOT_STARTED, _STATUS_INTERRUPTED = 3, 130
_PR_SET_PDEATHSIG = 1
_OLDEST_PYTHON = (3, 11)
_PACKAGES = ("torch", "obstore", "msgspec", "numpy", "safetensors", "networkx")
"""Packages that members need, by names that are the same for `import` and for pip."""
_NUM_TRIES, _TRY_S, _PATIENCE_S = 5, 1.0, 20.0
"""No try to fetch zooid begins after `_PATIENCE_S`. One takes about 15 s if the store does not answer."""
_DEBUG_TEXT = "\n\nDebug source"
"""The object-store client appends pages of debugging to its messages, after this line."""


class _StartError(Exception):
    """The member cannot be started; the text says in one line why, and what to do."""


def begin(order: dict[str, Any]) -> int:
    """Fetch zooid, and attend the member of an order: {"run", "title", "store", "zooid", "environment", "ticket"}.

    An order may also name a process as "parent". The member is interrupted when that ends. If "forks" is true, the
    member is a fork of this process.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # Ray blocks what it ignores
    if "parent" in order:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != order["parent"]:
            raise KeyboardInterrupt
    run, forks = order["run"], order.get("forks", False)
    if occupy(run, f"{STARTER}{order['title']}") is None:  # it keeps the folder of the run, too
        return 0  # the member was started twice
    for name, value in order["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    try:
        _check_interpreter(order["ticket"].get("versions") or {})
        where = order["store"], order["zooid"], os.path.join(run_folder(run), "zooid")
        if forks:
            _in_child(lambda: _unpacked(*where))
        arrive = _imported(_unpacked(*where))
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing can be started
        sys.stderr.write(f"{_in_words(error)}\n")
        return _STATUS_NOT_STARTED
    status = arrive(order["ticket"], forks=forks)
    if status == 0:
        leave(run)
    return status


def _check_interpreter(versions: dict[str, str]) -> None:
    """Check the age of this interpreter, and that it has the packages; `versions` are those of the coordinator."""
    if sys.version_info < _OLDEST_PYTHON:
        raise _StartError(
            f"the coordinator has Python {versions.get('python', '3')}, and {sys.executable} on this machine is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}; give another one as `python` in the file of machines"
        )
    specs = {name: importlib.util.find_spec(name) for name in _PACKAGES}
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]  # a mere folder has none
    if missing:
        torch = f"torch=={versions['torch']}" if "torch" in versions else "torch"  # another one would be refused next
        raise _StartError(
            f"{sys.executable} on {os.uname().nodename} lacks {', '.join(missing)}; install with: {sys.executable} -m "
            f"pip install {' '.join(torch if name == 'torch' else name for name in missing)}"
        )


def _in_child(work: Callable[[], object]) -> None:
    """Do work in a fork of this process, because the store's client starts threads, after which none may be forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised in the parent
            os.write(writing, _in_words(error).encode())
        os._exit(0)
    os.close(writing)
    try:
        with open(reading) as pipe:
            words = pipe.read()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if words:
        raise _StartError(words)


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, _StartError) else f"{type(error).__name__}: {error}"


def _imported(package: str) -> Callable[..., int]:
    """Let this process and its children import zooid from a folder, and return the function that goes on with it."""
    sys.path.insert(0, package)
    earlier = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = package if not earlier else os.pathsep.join((package, earlier))
    try:
        from zooid.entry.arrival import arrive
    except ImportError as error:
        raise _StartError(
            f"{sys.executable} on {os.uname().nodename} cannot import what zooid needs: {error}; mend its "
            "packages, or give another interpreter as `python` in the file of machines"
        ) from error
    return arrive


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

    opened = opened_store(store_url)
    last_s = time.monotonic() + _PATIENCE_S
    for number in range(1, _NUM_TRIES + 1):
        try:
            return bytes(obstore.get(opened, key).bytes())
        except Exception as error:
            if number == _NUM_TRIES or time.monotonic() + _TRY_S > last_s:
                raise _unreadable(store_url, error) from error
            time.sleep(_TRY_S)
    raise AssertionError


def opened_store(store_url: str) -> Any:
    """Open the folder of a run in a store that is not a folder of this machine."""
    from obstore import store as stores

    options: Any = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=10),
        "timeout": timedelta(minutes=5),
        "allow_http": True,
    }
    retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}  # by default, they take minutes
    how: dict[str, Any] = aws_login() if store_url.startswith("s3://") else {}
    if store_url.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL_S3"):
        how["config"] = {"virtual_hosted_style_request": False}
    return stores.from_url(store_url, client_options=options, retry_config=retries, **how)


def _unreadable(store_url: str, error: Exception) -> _StartError:
    host = os.uname().nodename
    why = " ".join(str(error).partition(_DEBUG_TEXT)[0].split()).rstrip(": ")
    return _StartError(
        f"{store_url} cannot be read on {host}: {why}; check that {host} reaches the store, and has credentials with "
        "which it may read it"
    )


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
