"""The first program of a member in a rented container or function: it records in the store why a start has failed.

The logs of containers lie in services of their own, which a coordinator may not be allowed to read. So a member that
cannot be started says so in the folder of its run, if it reaches that.

The text of this file is sent after those of `bootstrap.py`, and executed with them as one program.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # in the program that is sent, these names come from the texts before
    from zooid.entry.bootstrap import begin, leave_wholly, opened_store

_NOT_STARTED, _INTERRUPTED = 3, 130
_MAX_OUTPUT = 4096
"""Number of characters of the output that are recorded."""


def run_container(order_json: str) -> None:
    """Begin the member of an order, and end this process."""
    order = json.loads(order_json)
    said = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name, and ends with the process
    standard_error = os.dup(2)
    os.dup2(said.fileno(), 2)
    try:
        status = begin(order)
    except KeyboardInterrupt:  # the coordinator has ended the member while it was started
        status = _INTERRUPTED
    except BaseException:  # noqa: BLE001  # whatever it is, nothing can be started
        traceback.print_exc()
        status = _NOT_STARTED
    leave_wholly(order["run"])
    sys.stderr.flush()
    said.seek(0)
    output = said.read().decode("utf-8", "replace")
    os.dup2(standard_error, 2)
    sys.stderr.write(output)
    sys.stderr.flush()
    if status not in (0, _INTERRUPTED):
        try:
            _record(order, output.strip() or f"it ended with status {status}")
        except Exception:  # noqa: BLE001  # its logs have the reason
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _record(order: dict[str, Any], output: str) -> None:
    """Write the record of a member's end as `zooid.core.runs.member_records` defines it."""
    ticket = order["ticket"]
    reason = f"could not be started: {output.splitlines()[-1].strip()}"
    ended = {"status": None, "reason": reason, "output": output[-_MAX_OUTPUT:]}
    record = {"record": "member_end", "version": 1, "member": ticket["member"], "exit": ended}
    key = f"ends/{ticket['roster']:06d}/{ticket['member']}.json"
    import obstore

    obstore.put(opened_store(order["store"]), key, json.dumps(record).encode())
