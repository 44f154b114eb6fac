"""Options that several commands share, and how their texts become records."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from zooid.coordinator.measurements.link_probes import ENDS
from zooid.coordinator.plans.offer_names import LOCAL
from zooid.core.errors import InputError, UnitError
from zooid.core.files import replaced_whole
from zooid.core.plans.plan import DEFAULT_MAX_MEMBERS, Limits, ScheduleName, TransportName, num_holders
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import GOALS, Goal
from zooid.core.records import AnyFileRecord, FileRecord, decode_record, encode_record
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.spec import LinkEnd
from zooid.core.units import parse_duration_s, parse_usd, small_number

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="Python file that defines `job = zooid.Job(…)`.")]
Store = Annotated[
    str | None, typer.Option(help="Folder of the run in object storage: s3://bucket/run-7, gs://…, az://…, file:///…")
]
StoreAt = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Where the store is, for its prices, as aws.us-east-1; where rented members are by default.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        help="Where members run: local (if not given), local:OFFER for its prices, limited:OFFER for its size too."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
Layout = Annotated[str | None, typer.Option(metavar="AxB", help="Pin the layout: A replicas of B stages, as 2x2.")]
Members = Annotated[int | None, typer.Option(help="At most this many members; 4 if not given.")]
Deadline = Annotated[str | None, typer.Option(help="The run must end within this, as 2h or 45m.")]
Budget = Annotated[str | None, typer.Option(help="The run must cost at most this, in dollars, as 5.")]
GoalOption = Annotated[
    str | None, typer.Option("--goal", help="balanced (if not given), fastest or cheapest, within the limits.")
]
Schedule = Annotated[str | None, typer.Option(help="Pin the pipeline schedule: gpipe or 1f1b.")]
Transport = Annotated[
    str | None,
    typer.Option(
        help="How members exchange: store (if not given); tcp or gloo where they reach one another; nccl between GPUs."
    ),
]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Train the same bits in every layout, and whatever members are lost.")
]
Insured = Annotated[
    bool,
    typer.Option("--insured", help="Keep every stage on two members or more, so that no step is lost with one."),
]
LinksFile = Annotated[
    Path | None,
    typer.Option("--links", help="Links between members, as `zooid probe` writes them; for tcp."),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(metavar="TIME|STEPS", help="How often to write a checkpoint, as 10m (if not given) or 200steps."),
]
KeepCheckpoints = Annotated[int | None, typer.Option(help="How many of the last checkpoints stay; 2 if not given.")]

ALL_REDUCE = "all-reduce"
"""What `zooid probe` measures instead of links."""

_STEPS = re.compile(r"([0-9]{1,9})\s*steps?")
_LAYOUT = re.compile(r"([0-9]{1,9})\s*[x×]\s*([0-9]{1,9})")


def limits_from(
    layout: str | None,
    members: int | None,
    deadline: str | None,
    budget: str | None,
    schedule: str | None = None,
    transport: str | None = None,
    *,
    reproducible: bool = False,
    insured: bool = False,
) -> Limits | None:
    """The limits that the options state; None where they state none."""
    given = (layout, members, deadline, budget, schedule, transport)
    if not (reproducible or insured) and all(each is None for each in given):
        return None
    num_replicas = num_stages = None
    if layout is not None:
        match = _LAYOUT.fullmatch(layout.strip())
        if match is None:
            raise InputError(f"--layout is {layout!r}; write replicas x stages, for example 2x2")
        num_replicas, num_stages = int(match[1]), int(match[2])
        members = num_holders(num_replicas, is_insured=insured) * num_stages if members is None else members
    return Limits(
        deadline_s=None if deadline is None else parse_duration_s(deadline),
        budget_usd=None if budget is None else parse_usd(budget),
        num_replicas=num_replicas,
        num_stages=num_stages,
        max_members=DEFAULT_MAX_MEMBERS if members is None else members,
        schedule=_one_of("--schedule", schedule, get_args(ScheduleName)),
        transport=_one_of("--transport", transport, get_args(TransportName)),
        reproducible=reproducible,
        insured=insured,
    )


def _one_of(option: str, given: str | None, allowed: tuple[Any, ...]) -> Any:
    if given is not None and given not in allowed:
        raise InputError(f"{option} is {given!r}; give {' or '.join(allowed)}")
    return given


def goal_from(text: str | None) -> Goal | None:
    """One that needs nothing else."""
    plain = [goal for goal in GOALS if goal != "weighted"]
    for goal in plain:
        if text == goal:
            return goal
    if text is not None:
        raise InputError(f"--goal is {text!r}; give {', '.join(plain[:-1])} or {plain[-1]}")
    return None


def weighted_goal_from(text: str | None, hour_worth: str | None) -> tuple[Goal | None, float | None]:
    """The goal, and what an hour is worth: who says so weighs time against money, and has no other goal."""
    if hour_worth is None:
        return goal_from(text), None
    if text is not None:
        raise InputError(f"--goal is {text!r} and --hour-worth {hour_worth!r}; give one of them")
    return "weighted", parse_usd(hour_worth)


def quotas_from(texts: Sequence[str] | None) -> dict[str, int]:
    """How many members may stand on what."""
    quotas: dict[str, int] = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        quota = small_number(number.strip())
        if not name or quota is None or quota < 0:
            raise InputError(f"--quota is {text!r}; write an offer and a number, for example aws.lambda=10")
        quotas[name.strip()] = quota
    return quotas


def profiles_from(paths: Sequence[Path] | None, job: Path) -> Profile | dict[str, Profile] | None:
    """The profiles in these files; several go by the names of their offers, as `zooid profile` names its files."""
    if not paths:
        return None
    read = {_offer_in(path, job): read_file(path, Profile) for path in paths}
    if len(read) < len(paths):
        raise InputError(f"several profiles are given for one offer; their files are {', '.join(map(str, paths))}")
    return next(iter(read.values())) if len(read) == 1 else read


def _offer_in(path: Path, job: Path) -> str:
    """`digits.aws.lambda.1769.profile.json` is of `aws.lambda.1769`, `digits.profile.json` of this machine."""
    return path.name.removesuffix(".json").removesuffix(".profile").removeprefix(job.stem).strip(".") or LOCAL


def checkpoints_from(every: str | None, keep: int | None) -> CheckpointRule | None:
    """The rule that the options state; None where they state none."""
    if every is None and keep is None:
        return None
    kept = DEFAULT_RULE.keep if keep is None else keep
    if every is None:
        return CheckpointRule(every_s=DEFAULT_RULE.every_s, keep=kept)
    if steps := _STEPS.fullmatch(every.strip()):
        return CheckpointRule(every_steps=int(steps[1]), keep=kept)
    try:
        return CheckpointRule(every_s=parse_duration_s(every), keep=kept)
    except UnitError as error:
        raise InputError(
            f"--checkpoint-every is {every!r}; write a time or a number of steps, as 10m or 200steps"
        ) from error


def ends_from(only: str | None) -> tuple[LinkEnd, ...]:
    """What to measure links to: everything, or the one end that is named."""
    for end in ENDS:
        if only == end:
            return (end,)
    if only is not None:
        raise InputError(f"--only is {only!r}; give {' or '.join(ENDS)} for links, or {ALL_REDUCE}")
    return ENDS


def read_file(path: Path, kind: type[AnyFileRecord]) -> AnyFileRecord:
    """A record from a file that the user names."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return decode_record(data, kind, str(path))


def write_file(path: Path, record: FileRecord) -> None:
    """A record into a file, whole or not at all."""
    with replaced_whole(path) as staged:
        staged.write_bytes(encode_record(record))
