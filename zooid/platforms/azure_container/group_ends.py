"""What Azure says about the end of a container group."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted

_GB = 1e9
_KILLED = 128
"""Exit codes above this one say which signal has ended a program."""
_OUT_OF_MEMORY = "OOMKilled"
"""The status of a container whose first process the kernel has killed for its memory."""


def exit_of_group(group: Any) -> Exit | None:
    """Return how the container of a group has ended; None if it has not, or if Azure does not say that yet."""
    container = next(iter(group.containers or []), None)
    if container is None:
        return None
    view = container.instance_view
    state = None if view is None else view.current_state
    events = [] if view is None else view.events or []
    if state is not None and state.state == "Terminated":
        return _exit_of_container(container, state, events)
    failures = [event for event in events if event.type == "Warning"]
    is_stuck = any(event.name == "BackOff" for event in failures)
    if group.provisioning_state == "Failed" or is_stuck:
        said = next((event.message for event in reversed(failures) if event.message), "Azure does not say why")
        return Exit(None, ran_s=0.0, reason=f"could not be started: {quoted(said)}")
    return None


def _exit_of_container(container: Any, state: Any, events: Sequence[Any]) -> Exit:
    pulls = [event.first_timestamp for event in events if event.name == "Pulling" and event.first_timestamp]
    # Azure bills from the first pull of the image to the end of the container
    billed_s = _seconds(min(pulls, default=state.start_time), state.finish_time)
    status = state.exit_code
    if status is not None and status > _KILLED:
        status = _KILLED - status
    exceeded_bytes = _memory_bytes(container) if state.detail_status == _OUT_OF_MEMORY else None
    ran_s = _seconds(state.start_time, state.finish_time)
    return Exit(status, exceeded_bytes=exceeded_bytes, ran_s=ran_s, billed_s=billed_s)


def _memory_bytes(container: Any) -> int | None:
    """Return the memory limit of a container; None if Azure does not repeat it."""
    requests = None if container.resources is None else container.resources.requests
    return None if requests is None or requests.memory_in_gb is None else round(requests.memory_in_gb * _GB)


def _seconds(begun: datetime | None, ended: datetime | None) -> float | None:
    return None if begun is None or ended is None else max(0.0, (ended - begun).total_seconds())
