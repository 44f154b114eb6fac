"""The keys of all objects in a run's folder of the object store. No other module spells a key."""

import functools
import logging
import re
from collections.abc import Iterable

from zooid.core.errors import InputError
from zooid.core.text import quoted

logger = logging.getLogger(__name__)

PLAN = "plan.json"
"""Plan of the first roster; the function `plan` gives that of any roster."""
PROFILE = "profile.json"
"""Profile of the job on the first offer that was measured."""
PROFILES = "profiles"
"""Profiles on further offers, by the names of these."""
PACE = "pace.json"
STEERING = "steering.json"
"""Rules by which the run chooses its members anew, if it may."""
LINKS = "links.json"
ALL_REDUCES = "all-reduces.json"
CLAIM = "run.json"
"""Claim of the coordinator that began the run; the function `claim` gives those of its successors."""
CLAIMS = "claims"
"""Claims are numbered without gaps and never deleted, so that one request for the next number finds a newer one."""
PRICES = "prices.json"
"""Prices that have changed since the run was planned, if somebody has put them there."""
JOB = "job.py"
"""Source of a job that was given as an object and has no file of its own."""
SHARD_SUFFIX = ".safetensors"
LEASES = "leases"
ROSTERS = "rosters"
ALLOWANCES = "allowances"
CHANGES = "changes"
JOINING = "joining"
PLANS = "plans"
ANSWERS = "answers"
SPECS = "specs"
HANDLES = "handles"
LEFT = "left"
"""Handles of members that could not be ended when their coordinator ended."""
STARTS = "starts"
ENDS = "ends"
DISMISSALS = "dismissals"
"""Requests to members to which nobody can send a signal."""
LOGS = "logs"
MICROVMS = "microvms"
"""Records of MicroVMs, which have no names of their own, and the first programs of the members in them."""
REQUESTS = "requests"
FAILURES = "failures"
EVENTS = "events"
COORDINATOR = "coordinator"
"""Name, or beginning of the name, under which coordinators write events."""
COMM = "comm"
LOBBY = f"{COMM}/lobby"
PROBES = "probe"
CHECKPOINTS = "checkpoints"
TIMELINES = "timelines"
MEASUREMENTS = "measurements"
TRACES = "traces"
CODE = "code"
CONSTANTS = f"{CHECKPOINTS}/constants.safetensors"
"""Tensors that no step changes, which belong to all checkpoints of a run."""

_MANIFEST = "manifest.json"
_NUMBER = re.compile("[0-9]{1,12}(?![0-9])")
"""A number that a run can reach. A stray name with a larger number would push all later numbers above it."""
_LABEL = re.compile("([0-9]{6})(?:-(?!000000)([0-9]{6}))?")


def profile_on(offer: str) -> str:
    """Profile of the job on an offer beside the first."""
    return f"{PROFILES}/{offer}.json"


def specs_under(roster_number: int) -> str:
    return f"{SPECS}/{roster_number:06d}"


def spec(member: str, roster_number: int = 0) -> str:
    """Key of a member's spec. It contains the roster, because a later roster may have a member of the same name."""
    return f"{specs_under(roster_number)}/{member}.json"


def handle(member: str, roster_number: int) -> str:
    """Key of the record with which a member is found."""
    return f"{HANDLES}/{label(roster_number)}/{member}.json"


def left_under(roster_number: int) -> str:
    return f"{LEFT}/{label(roster_number)}"


def left(member: str, roster_number: int) -> str:
    """Key of the handle of a member that could not be ended."""
    return f"{left_under(roster_number)}/{member}.json"


def start(member: str, roster_number: int) -> str:
    """Key of the claim on a member's start."""
    return f"{STARTS}/{label(roster_number)}/{member}.json"


def end(member: str, roster_number: int) -> str:
    """Key of the record of how a member ended."""
    return f"{ENDS}/{label(roster_number)}/{member}.json"


def dismissal(member: str, roster_number: int) -> str:
    """Key of the request that a member ends."""
    return f"{DISMISSALS}/{label(roster_number)}/{member}.json"


def microvm(title: str) -> str:
    """Key of the record with which the MicroVM of the member with this title is found."""
    return f"{MICROVMS}/{title}.json"


def microvm_program(title: str) -> str:
    """Key of the first program of the member with this title."""
    return f"{MICROVMS}/{title}.py"


def microvm_end(title: str) -> str:
    """Key of the object that says that the program of the member with this title has ended."""
    return f"{MICROVMS}/{title}.end"


def log(member: str, roster_number: int) -> str:
    """Key of the last lines that a member has printed."""
    return f"{LOGS}/{label(roster_number)}/{member}.txt"


def stop_request(roster_number: int) -> str:
    """Key of the request to stop the members that were started under this claim."""
    return f"{requests_under(roster_number)}/stop.json"


def failures_under(roster_number: int) -> str:
    return f"{FAILURES}/{roster_number:06d}"


def failure(member: str, roster_number: int = 0) -> str:
    return f"{failures_under(roster_number)}/{member}.json"


def lost_at_start(roster_number: int) -> str:
    """Key of the name of a member that was lost before it was heard."""
    return f"{failures_under(roster_number)}/lost-at-start"


def claim(number: int) -> str:
    """Key of the claim to write the roster of this number and its plan, or to adopt the members of an earlier one."""
    return CLAIM if number == 0 else f"{CLAIMS}/{number:06d}.json"


def allowance(claim_number: int) -> str:
    """Key of the limits of the members that were started under this claim, and of their cost."""
    return f"{ALLOWANCES}/{claim_number:06d}.json"


def plan(roster_number: int) -> str:
    """Key of the plan that this roster's members follow."""
    return PLAN if roster_number == 0 else f"plan-{roster_number:06d}.json"


def changed_plan(name: str) -> str:
    """Key of a plan that members follow after a planned change."""
    return f"{PLANS}/{name}.json"


def label(number: int, change: int = 0) -> str:
    """Name of a roster: the number of its claim, and how often members have replaced the claim's first roster."""
    return f"{number:06d}-{change:06d}" if change else f"{number:06d}"


def roster(number: int, change: int = 0) -> str:
    return f"{ROSTERS}/{label(number, change)}.json"


def rosters(listed: Iterable[str]) -> list[tuple[int, int]]:
    """List claim and change of the listed rosters, ascending; other names are ignored, and logged once."""
    return sorted(found for key in listed if (found := roster_in(key.removesuffix(".json"))) is not None)


def roster_in(key: str) -> tuple[int, int] | None:
    """Parse claim and change from the last part of a key; None, logged once, if it does not name a roster."""
    name = key.rpartition("/")[2]
    match = _LABEL.fullmatch(name)
    if match is None:
        _log_stray(quoted(key))
        return None
    return int(match[1]), int(match[2] or 0)


def changes_under(number: int, change: int) -> str:
    """Prefix of the changes that are planned for this roster."""
    return f"{CHANGES}/{label(number, change)}"


def requests_under(number: int) -> str:
    """Prefix of what people ask of the members of a claim."""
    return f"{REQUESTS}/{label(number)}"


def request(number: int, order: int) -> str:
    return f"{requests_under(number)}/{order:06d}.json"


def notice(member: str, number: int) -> str:
    """Key of the notice that a member will soon be ended."""
    return f"{requests_under(number)}/notice-{member}.json"


def joining_under(number: int) -> str:
    """Prefix of the records of processes that are ready to join the members of a claim."""
    return f"{JOINING}/{label(number)}"


def joining(member: str, number: int) -> str:
    """Key of the record with which a process says that it is ready to join. A process whose record is gone ends."""
    return f"{joining_under(number)}/{member}.json"


def planned_change(number: int, change: int, attempt: int) -> str:
    return f"{changes_under(number, change)}/{attempt:06d}.json"


def answers_under(number: int, change: int) -> str:
    """Prefix of the members' answers when this roster has to be replaced."""
    return f"{ANSWERS}/{label(number, change)}"


def answer(member: str, number: int, change: int) -> str:
    return f"{answers_under(number, change)}/{member}.json"


def numbers(listed: Iterable[str]) -> list[int]:
    """List the numbers of the listed claims or leases, ascending; other names are ignored, and logged once."""
    return sorted(number for key in listed if (number := number_in(key, "{:06d}.json")) is not None)


def number_in(key: str, form: str) -> int | None:
    """Parse the number in the last part of a key; None, logged once, if the part does not have this form."""
    name = key.rpartition("/")[2]
    digits = _NUMBER.match(name)
    if digits is None or form.format(int(digits[0])) != name:
        _log_stray(quoted(key))  # quoted, so that the cache stays small whatever the name's length
        return None
    return int(digits[0])


@functools.lru_cache(maxsize=1024)
def _log_stray(shown: str) -> None:
    logger.warning("%s is ignored: nothing of a run has this name", shown)


def lease(claim_number: int) -> str:
    """Key of the heartbeat of the coordinator that wrote this claim."""
    return f"{LEASES}/{claim_number:06d}.json"


def events_under(number: int, change: int = 0) -> str:
    """Prefix of the events under one roster."""
    return f"{EVENTS}/{label(number, change)}"


def events_of(writer: str, number: int = 0, change: int = 0) -> str:
    return f"{events_under(number, change)}/{writer}"


def comm_of(run: str, number: int, change: int = 0) -> str:
    """Prefix of the messages under one roster; process groups append their names."""
    return f"{COMM}/{run}/{label(number, change)}"


def heartbeats_of(run: str, number: int) -> str:
    """Prefix of the heartbeats of members that reach only the store, under all rosters of a claim."""
    return f"{comm_of(run, number)}/heartbeats"


def joining_of(run: str, number: int, change: int, attempt: int) -> str:
    """Prefix of the objects with which the members of a planned change connect."""
    return f"{comm_of(run, number, change)}/joining-{attempt:06d}"


def session(name: str) -> str:
    """Prefix of the messages of a process group whose ranks had their rendezvous in the lobby."""
    return f"{COMM}/session-{name}"


def lobby(session_name: str, what: str = "") -> str:
    """Key or prefix of the objects with which a session is announced, answered and begun."""
    return f"{LOBBY}/{session_name}/{what}" if what else f"{LOBBY}/{session_name}"


def probes_of(run: str) -> str:
    """Prefix of the messages of members that measure links together."""
    return f"{PROBES}/{run}"


def timelines_of(step: int) -> str:
    return f"{TIMELINES}/{step:08d}"


def recorded_steps(folders: Iterable[str]) -> list[int]:
    """List the steps whose timelines lie in the listed folders, ascending."""
    return sorted(step for folder in folders if (step := number_in(folder, "{:08d}")) is not None)


def timeline(step: int, member: str) -> str:
    return f"{timelines_of(step)}/{member}.json"


def measurements_under(number: int, change: int = 0) -> str:
    """Prefix of what members have measured under one roster."""
    return f"{MEASUREMENTS}/{label(number, change)}"


def measurements(member: str, number: int, change: int = 0) -> str:
    return f"{measurements_under(number, change)}/{member}.json"


def checkpoint(step: int) -> str:
    return f"{CHECKPOINTS}/{step:08d}"


def checkpoint_manifest(step: int) -> str:
    return f"{checkpoint(step)}/{_MANIFEST}"


def trace(digest: str) -> str:
    """Key of the trace from which members build the model's stages without its code."""
    return f"{TRACES}/{digest}.json"


def trace_constants(digest: str) -> str:
    """Key of the file with the tensors that a traced model's code contains."""
    return f"{TRACES}/{digest}.safetensors"


def code(digest: str) -> str:
    """Key of an archive of code, which is named by its SHA-256 digest."""
    return f"{CODE}/{digest}.tar.gz"


def shard(step: int, kind: str, number: int, total: int, roster_number: int, change: int = 0) -> str:
    """Key of one of the `total` shards of a checkpoint; `kind` is `model` or `optimizer`."""
    roster = f"-{label(roster_number, change)}" if roster_number or change else ""
    return f"{checkpoint(step)}/{kind}-{number + 1:05d}-of-{total:05d}{roster}{SHARD_SUFFIX}"


def checkpoint_steps(listed: Iterable[str]) -> dict[int, bool]:
    """Map the step of each listed checkpoint, ascending, to whether it has its manifest."""
    has_manifest: dict[int, bool] = {}
    for key in sorted(listed):
        folder, _, name = key.removeprefix(f"{CHECKPOINTS}/").partition("/")
        if name and (step := number_in(folder, "{:08d}")) is not None:
            has_manifest[step] = has_manifest.get(step, False) or name == _MANIFEST
    return has_manifest


def split_spec_url(url: str) -> tuple[str, str]:
    """Split the URL of a spec into the URL of the run's folder and the key of the spec."""
    store_url, separator, name = url.rpartition(f"/{SPECS}/")
    if not separator:
        raise InputError(f"{quoted(url)!r} is not the URL of a spec; it must contain /{SPECS}/")
    return store_url, f"{SPECS}/{name}"
