"""The part of the service that is inside a MicroVM: it starts the image's program and calls its hooks, on the loopback.

A program of its own, which runs in the sandbox that stands for a MicroVM. Its input says what to start and which hooks
to call. It prints a line for each hook that was called, and ends after a SIGTERM, when the hook for that was answered.
"""

import http.client
import json
import signal
import subprocess
import sys
import time
from typing import Any

MARK = "microvm-guest: "
"""The beginning of the lines that are for the service; all others are what the image's program prints."""
_PATH = "/aws/lambda-microvms/runtime/v1/"
_POLL_S = 0.02


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.read())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    program = subprocess.Popen(order["command"], stdin=subprocess.DEVNULL, preexec_fn=_unblock)
    status = _first_answer(order["port"], order["ready_timeout_s"], program)
    _say("ready", status)
    if status != 200 or order["payload"] is None:
        return
    # the service wraps the payload in an object, as has been seen of the real one
    body = json.dumps({"runHookPayload": order["payload"]})
    status = _call(order["port"], "run", body, order["run_timeout_s"])
    _say("run", status)
    if status != 200:
        return
    signal.sigwait({signal.SIGTERM})
    _say("terminate", _call(order["port"], "terminate", "", order["terminate_timeout_s"]))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _first_answer(port: int, timeout_s: float, program: "subprocess.Popen[bytes]") -> int:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and program.poll() is None:
        status = _call(port, "ready", "", timeout_s)
        if status not in (0, 503):
            return status
        time.sleep(_POLL_S)
    return 0


def _call(port: int, hook: str, body: str, timeout_s: float) -> int:
    """Call a hook, and return its status; 0 if there is no answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", _PATH + hook, body.encode(), {"Content-Type": "application/json"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _say(hook: str, status: int) -> None:
    print(MARK + json.dumps({"hook": hook, "status": status}), flush=True)


if __name__ == "__main__":
    main()
