"""Options that several commands share, and the conversion of their texts into records."""

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from msgspec import structs

from zooid.catalog import sized_offer
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
from zooid.core.text import quoted
from zooid.core.units import parse_duration_s, parse_usd, small_number

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="Python file that defines `job = zooid.Job(…)`.")]
MovedJobFile = Annotated[Path | None, typer.Option(help="The job file, if it has moved since the run began.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file, as written by `zooid plan`.")]
RunFolder = Annotated[str, typer.Argument(metavar="URL", help="Folder of the run: s3://bucket/run-7, file:///…")]
Store = Annotated[
    str | None, typer.Option(help="Folder of the run in object storage: s3://bucket/run-7, gs://…, az://…, file:///…")
]
StoreAt = Annotated[
    str | None,
    typer.Option(
        metavar="LOCATION",
        help="Location of the store for its prices, such as aws.us-east-1.",
        show_default="where members are",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        help="Where members run: local, local:OFFER at its prices, limited:OFFER with its size, too, or your own "
        "machines: ssh, ssh.NAME, slurm.PARTITION, ray.",
        show_default="local",
    ),
]
OnSeveral = Annotated[
    list[str] | None,
    typer.Option(
        help="Where members may run: local, local:OFFER at its prices, limited:OFFER with its size, too, or your own "
        "machines: ssh, ssh.NAME, slurm.PARTITION, ray; repeatable.",
        show_default="local",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Return once training has begun; it goes on in the background.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Layout = Annotated[str | None, typer.Option(metavar="AxB", help="Fix the layout: A replicas of B stages, such as 2x2.")]
Members = Annotated[int | None, typer.Option(help="Maximum number of members.", show_default=str(DEFAULT_MAX_MEMBERS))]
Deadline = Annotated[str | None, typer.Option(help="Maximum duration of the run, such as 2h or 45m.")]
Budget = Annotated[str | None, typer.Option(help="Maximum cost of the run in dollars, such as 5.")]
GoalOption = Annotated[
    str | None,
    typer.Option("--goal", help="Goal within the limits: balanced, fastest or cheapest.", show_default="balanced"),
]
Schedule = Annotated[str | None, typer.Option(help="Fix the pipeline schedule: gpipe or 1f1b.")]
Transport = Annotated[
    str | None,
    typer.Option(
        help="Transport between members: store; tcp or gloo if they can connect; nccl between GPUs.",
        show_default="store",
    ),
]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Train the same bits in every layout, whatever members are lost.")
]
Insured = Annotated[
    bool, typer.Option("--insured", help="Keep every stage on at least two members, so that a lost one costs no step.")
]
LinksFile = Annotated[
    Path | None,
    typer.Option("--links", help="Links between members, as written by `zooid probe`, for direct transports."),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Folder of an earlier run of the same model, whose measurements correct the prediction; repeatable.",
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="auto|TIME|STEPS",
        help="Interval between two checkpoints: 10m, 200steps, or auto, by the expected losses of members.",
        show_default="auto",
    ),
]
Interruptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OFFER=N",
        help="Expected losses of a member per hour on offers with this name or this beginning; repeatable.",
        show_default="those of the catalog",
    ),
]
KeepCheckpoints = Annotated[int | None, typer.Option(help="Number of checkpoints to keep.", show_default="2")]
PageFile = Annotated[Path, typer.Option(help="File to which the picture is written, as an HTML page.")]
PerfettoFile = Annotated[
    Path | None, typer.Option(help="File to which a trace for Perfetto or chrome://tracing is written.")
]

AUTO = "auto"
"""The value of `--checkpoint-every` that lets the expected losses decide."""
ALL_REDUCE = "all-reduce"
"""The value of `zooid probe --only` that measures all-reduces instead of links."""

_RATE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
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
    """Return the limits that the options set; None if they set none."""
    texts = (layout, members, deadline, budget, schedule, transport)
    if not (reproducible or insured) and all(text is None for text in texts):
        return None
    num_replicas = num_stages = None
    if layout is not None:
        num_replicas, num_stages = parse_layout("--layout", layout)
        members = num_holders(num_replicas, is_insured=insured) * num_stages if members is None else members
    return Limits(
        deadline_s=None if deadline is None else parse_duration_s(deadline),
        budget_usd=None if budget is None else parse_usd(budget),
        num_replicas=num_replicas,
        num_stages=num_stages,
        max_members=DEFAULT_MAX_MEMBERS if members is None else members,
        schedule=one_of("--schedule", schedule, get_args(ScheduleName)),
        transport=one_of("--transport", transport, get_args(TransportName)),
        reproducible=reproducible,
        insured=insured,
    )


def parse_layout(option: str, text: str) -> tuple[int, int]:
    """Parse the numbers of replicas and stages."""
    match = _LAYOUT.fullmatch(text.strip())
    if match is None or 0 in (layout := (int(match[1]), int(match[2]))):
        raise InputError(f"{option} is {text!r}; write REPLICASxSTAGES, for example 2x2")
    return layout


def date_from(text: str | None) -> str | None:
    """Check a date, such as 2026-08-22."""
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise InputError(f"--date is {quoted(text)!r}; give a day such as 2026-08-22") from None


def one_of(option: str, given: str | None, allowed: tuple[Any, ...]) -> Any:
    """Return the given text, if any, after checking that it is one of the allowed ones."""
    if given is not None and given not in allowed:
        raise InputError(f"{option} is {given!r}; give {', '.join(allowed[:-1])} or {allowed[-1]}")
    return given


def goal_from(text: str | None) -> Goal | None:
    """Return the goal that the option names; the weighted goal needs another option."""
    goal: Goal | None = one_of("--goal", text, tuple(goal for goal in GOALS if goal != "weighted"))
    return goal


def weighted_goal_from(text: str | None, hour_worth: str | None) -> tuple[Goal | None, float | None]:
    """Return the goal and the worth of an hour, which selects the weighted goal."""
    if hour_worth is None:
        return goal_from(text), None
    if text is not None:
        raise InputError(f"--goal is {text!r} and --hour-worth is {hour_worth!r}; give one of them")
    return "weighted", parse_usd(hour_worth)


def quotas_from(texts: Sequence[str] | None) -> dict[str, int]:
    """Return the maximum number of members by offer name."""
    quotas: dict[str, int] = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        quota = small_number(number.strip())
        if not name or quota is None or quota < 0:
            raise InputError(f"--quota is {text!r}; write an offer and a number, for example aws.lambda=10")
        quotas[name.strip()] = quota
    return quotas


def interruptions_from(texts: Sequence[str] | None) -> dict[str, float] | None:
    """Return the losses of a member per hour by offer name; None if none are given."""
    rates: dict[str, float] = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        rate = _RATE.fullmatch(number.strip())
        if not name or rate is None:
            raise InputError(
                f"--interruptions is {text!r}; write an offer and its losses of a member per hour, for example "
                "aws.ec2.p3=0.1"
            )
        rates[name.strip()] = float(rate[0])
    return rates or None


def profiles_from(paths: Sequence[Path] | None, job: Path) -> Profile | dict[str, Profile] | None:
    """Read the profiles in these files; several are returned by offer, which the names of the files contain.

    So is a single one of a size of an offer, since the times on its other sizes follow from it.
    """
    if not paths:
        return None
    profiles = {_offer_in(path, job): read_file(path, Profile) for path in paths}
    if len(profiles) < len(paths):
        raise InputError(f"{', '.join(map(str, paths))} hold several profiles of one offer; give one for each offer")
    [*others, name] = profiles
    return profiles if others or sized_offer(name) is not None else profiles[name]


def _offer_in(path: Path, job: Path) -> str:
    """Parse the offer in a file name: `digits.aws.lambda.1769.profile.json`, or `digits.profile.json` for local."""
    return path.name.removesuffix(".json").removesuffix(".profile").removeprefix(job.stem).strip(".") or LOCAL


def checkpoints_from(every: str | None, keep: int | None) -> CheckpointRule | None:
    """Return the checkpoint rule that the options set; None if they set none."""
    if every is None and keep is None:
        return None
    num_kept = DEFAULT_RULE.keep if keep is None else keep
    if every is None or every.strip() == AUTO:
        return structs.replace(DEFAULT_RULE, keep=num_kept)
    if steps := _STEPS.fullmatch(every.strip()):
        return CheckpointRule(every_steps=int(steps[1]), keep=num_kept)
    try:
        return CheckpointRule(every_s=parse_duration_s(every), keep=num_kept)
    except UnitError as error:
        raise InputError(
            f"--checkpoint-every is {every!r}; write {AUTO}, a time or a number of steps, for example 10m or 200steps"
        ) from error


def ends_from(only: str | None) -> tuple[LinkEnd, ...]:
    """Return the ends to which links are measured: the named one, or all."""
    end: LinkEnd | None = one_of("--only", only, (*ENDS, ALL_REDUCE))
    return ENDS if end is None else (end,)


def read_file(path: Path, kind: type[AnyFileRecord]) -> AnyFileRecord:
    """Read a record from a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a readable file") from error
    return decode_record(data, kind, str(path))


def read_optional(path: Path | None, kind: type[AnyFileRecord]) -> AnyFileRecord | None:
    """Read a record from a file, if one is given."""
    return None if path is None else read_file(path, kind)


def write_file(path: Path, record: FileRecord) -> None:
    """Write a record to a file, atomically."""
    with replaced_whole(path) as staged:
        staged.write_bytes(encode_record(record))
