"""The handler in the image of AWS Lambda functions: it runs the command of an event, and waits for its end.

It imports nothing but the standard library, because the initialisation of a function may take 10 s at most. The text is
copied into the image, so it does not change with zooid: everything else comes with the event.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    """Run `command` with the variables of `environment`; the log then tells which member this was, and its status."""
    ends_at_ms = int(1000 * time.time()) + context.get_remaining_time_in_millis()
    named = {"title": event["title"], "request": context.aws_request_id}
    print(json.dumps({"zooid": "began", **named, "ends_at_ms": ends_at_ms}), flush=True)  # noqa: T201
    child = subprocess.run(event["command"], env={**os.environ, **event["environment"]}, check=False)
    print(json.dumps({"zooid": "ended", **named, "status": child.returncode}), flush=True)  # noqa: T201
    return {"status": child.returncode}
