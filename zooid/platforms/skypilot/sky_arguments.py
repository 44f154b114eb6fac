"""The command lines that zooid gives to SkyPilot, in the words of its version 0.14.1.

SkyPilot answers `launch --async` with the id of a request, which its server goes on with by itself.
"""

from collections.abc import Sequence

IDLE_MINUTES = 5
"""Minutes after the end of its task in which SkyPilot tears down a machine that nobody else has torn down."""
_SHOWN_LINES = 20
_JSON = ("--output", "json")


def rehearse(task_file: str) -> list[str]:
    """Check a task against the clouds that the user has enabled, without renting anything."""
    return ["launch", "--dryrun", "--yes", task_file]


def launch(cluster: str, task_file: str) -> list[str]:
    """Rent a machine, run a task on it, and tear it down some time after the task's end."""
    autodown = ["--down", "--idle-minutes-to-autostop", str(IDLE_MINUTES)]
    return ["launch", "--async", "--detach-run", "--yes", *autodown, "--cluster", cluster, task_file]


def known(clusters: Sequence[str]) -> list[str]:
    """List those of these clusters that SkyPilot has a record of, without asking their clouds."""
    return ["status", *_JSON, *clusters]


def living(clusters: Sequence[str]) -> list[str]:
    """List those of these clusters that exist, as their clouds say."""
    return ["status", "--refresh", *_JSON, *clusters]


def jobs(clusters: Sequence[str]) -> list[str]:
    """List the tasks that these clusters have been given."""
    return ["queue", *_JSON, *clusters]


def requests(ids: Sequence[str]) -> list[str]:
    """List requests, whether they have ended or not."""
    return ["api", "status", "--all-status", "--limit", "none", *_JSON, *ids]


def requests_for(cluster: str) -> list[str]:
    """List the requests for one cluster, whoever has made them."""
    return ["api", "status", "--all-status", "--limit", "none", *_JSON, "--cluster", cluster]


def request_log(request_id: str) -> list[str]:
    """Show the end of what a request has printed, and the error with which it has failed."""
    return ["api", "logs", "--no-follow", "--tail", str(_SHOWN_LINES), request_id]


def cancel(ids: Sequence[str]) -> list[str]:
    """Cancel requests that have not ended."""
    return ["api", "cancel", "--yes", *ids]


def job_log(cluster: str, job: int) -> list[str]:
    """Show the end of what a task has printed."""
    return ["logs", "--no-follow", "--tail", str(_SHOWN_LINES), cluster, str(job)]


def down(clusters: Sequence[str], *, waits: bool) -> list[str]:
    """Tear clusters down; returns when they are gone, or with `waits` false when this was asked for."""
    return ["down", *([] if waits else ["--async"]), "--yes", *clusters]


def costs() -> list[str]:
    """List for how long clusters of the last day were up, those among them that are gone."""
    return ["cost-report", "--days", "1", *_JSON]
