"""The program of a MicroVM image: it answers the hooks of AWS Lambda, and starts the member of its MicroVM.

The text of this file is copied into the image, so it is small and seldom changes: it fetches the member's first program
from the store, where its digest says that it is the right one. It needs the standard library and obstore, which lie in
the image's snapshot ready to use.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import obstore
from obstore import store as stores

PORT = 9000
_PATH = "/aws/lambda-microvms/runtime/v1/"
_NOTICE_S = 25.0
"""The member has this long after a notice, which is less than the 30 s that the image allows its hook."""


class _Member:
    """The process of the member, once there is one."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._is_asked = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._order: dict[str, Any] = {}

    def begin(self, order: dict[str, Any]) -> None:
        """Fetch the program of an order, and start it: {"store", "program", "digest", "end", "environment"}.

        Only the first order is carried out. It comes from the service; whoever else may reach this port comes too late.
        """
        if not self._is_asked.acquire(blocking=False):
            raise ValueError("this MicroVM has its member already")
        for name, value in order["environment"].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        self._order = order
        program = bytes(obstore.get(_opened(order["store"]), order["program"]).bytes())
        if hashlib.sha256(program).hexdigest() != order["digest"]:
            raise ValueError(f"{order['program']} in {order['store']} has changed; it is not run")
        self._process = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(program)
        self.has_begun.set()

    def notify(self) -> None:
        """Tell the member that the MicroVM is about to end, and wait a while until it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_NOTICE_S)
            except subprocess.TimeoutExpired:
                sys.stderr.write("the member has not ended in time\n")

    def wait(self) -> int:
        """Wait for the end of the member, say in the store that it has ended, and return its status."""
        self.has_begun.wait()
        assert self._process is not None
        status = self._process.wait()
        obstore.put(_opened(self._order["store"]), self._order["end"], str(status).encode())
        return status


class _Hooks(BaseHTTPRequestHandler):
    """Answers a hook with the status 200 when it is done, and with 500 if it failed."""

    member: _Member

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = 200
        try:
            self._do(self.path.removeprefix(_PATH), body)
        except Exception:  # noqa: BLE001  # the log of the MicroVM has the reason
            traceback.print_exc()
            status = 500
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _do(self, hook: str, body: bytes) -> None:
        if hook == "run":
            given = json.loads(body)
            # the service wraps the payload in an object of its own, which its reference does not say
            self.member.begin(json.loads(given["runHookPayload"]) if "runHookPayload" in given else given)
        elif hook == "terminate":
            self.member.notify()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing about requests that are as expected."""


def _opened(store_url: str) -> Any:
    options: Any = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=20), "allow_http": True}
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}  # the hook may take 60 s
    how: dict[str, Any] = {}
    if store_url.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL_S3"):
        how["config"] = {"virtual_hosted_style_request": False}
    return stores.from_url(store_url, client_options=options, retry_config=retries, **how)


def main() -> int:
    """Serve until the member has ended, and return its status."""
    _Hooks.member = _Member()
    server = ThreadingHTTPServer(("0.0.0.0", PORT), _Hooks)  # nobody but the service reaches it
    server.daemon_threads = False  # a hook that waits for the member's end is answered before this process ends
    threading.Thread(target=server.serve_forever, daemon=True).start()
    status = _Hooks.member.wait()
    server.shutdown()
    server.server_close()
    return status


if __name__ == "__main__":
    sys.exit(main())
