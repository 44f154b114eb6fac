"""The handler in the image of AWS Lambda functions: it runs the program of an event in a fork, and waits for its end.

It imports nothing but the standard library, because the initialisation of a function may take 10 s at most. What all
members need, it imports for the first of them: Lambda uses the process of a function again, so later members need not
wait. The text is copied into the image, so it does not change with zooid: everything else comes with the event.
"""

from __future__ import annotations

import base64
import gc
import importlib
import json
import os
import sys
import time
import traceback
import types
import zlib
from typing import Any


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    """Run `program` with the variables of `environment` and the modules of `imports`.

    The log then tells which member this was, and its status.
    """
    ends_at_ms = int(1000 * time.time()) + context.get_remaining_time_in_millis()
    named = {"title": event["title"], "request": context.aws_request_id}
    print(json.dumps({"zooid": "began", **named, "ends_at_ms": ends_at_ms}), flush=True)  # noqa: T201
    os.environ.update(event["environment"])
    _import_lasting([name for name in event["imports"] if name not in sys.modules])
    child = os.fork()
    if child == 0:
        _become(event["program"])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"zooid": "ended", **named, "status": status}), flush=True)  # noqa: T201
    return {"status": status}


def _import_lasting(names: list[str]) -> None:
    """Import modules that stay as long as this process, without garbage collection, which takes a tenth of the time."""
    gc.disable()
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  # a member that needs the module reports it better
            traceback.print_exc()
    gc.freeze()  # so that the collector of a member neither visits these objects nor copies their pages
    gc.enable()


def _become(program: str) -> None:
    """Run a packed program, which ends this process."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(zlib.decompress(base64.b64decode(program)), "zooid", "exec"), main.__dict__)
    except BaseException:  # noqa: BLE001  # what has called the handler must not go on in this process
        traceback.print_exc()
    os._exit(1)
