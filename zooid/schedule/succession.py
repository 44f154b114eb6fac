"""From the answers of the survivors to the next roster: a pure rule, so that any survivor finds the same one.

A step is committed when all members of a roster have voted for it, and everyone who votes is prepared. So if anyone
applied step k, every survivor was prepared for it. If a stage has survivors but none of them was prepared, nobody
applied step k.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.roster import Answer, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.samples import split_grains

Pipeline = tuple[str, ...]
"""Names of members in stage order."""


def successor(
    roster: Roster, answers: Sequence[Answer], *, checkpoint_step: int, num_grains: Callable[[int], int]
) -> Roster:
    """The roster that replaces this one. It names only members that have answered.

    Whole pipelines stay together and keep their grains. The members of broken pipelines are paired anew, and whoever is
    left over becomes a copy of its stage. `num_grains` maps a step to its number of grains.

    Raises ScheduleError if too few members are left for one pipeline.
    """
    given = {answer.member: answer for answer in answers if answer.change == roster.change}
    survivors = {name: stage for name, stage in roster.stages.items() if name in given}
    answered = {name: given[name] for name in survivors}
    if len(survivors) < roster.num_stages:
        raise ScheduleError(f"{len(survivors)} members are left for {roster.num_stages} stages; each needs one")
    step, ruling = _ruling(roster, answered, checkpoint_step)
    keeps_state = ruling.kind != "rolled_back"
    pipelines, copies = _paired(roster, survivors) if keeps_state else _dealt(roster, survivors)
    weights = [_weight(roster, pipeline) for pipeline in pipelines]
    shares = tuple(len(share) for share in split_grains(sum(roster.shares), weights))
    next_roster = Roster(
        run=roster.run,
        number=roster.number,
        change=roster.change + 1,
        resume_step=step,
        members=tuple(
            RosterMember(name=name, stage=stage, replica=replica)
            for replica, pipeline in enumerate(pipelines)
            for stage, name in enumerate(pipeline)
        ),
        shares=shares,
        copies=tuple(RosterSeat(name=name, stage=stage) for name, stage in copies.items()),
        ruling=ruling,
        is_between_steps=ruling.kind == "unfinished" and any(each.is_between_steps for each in answered.values()),
        optimizer_settings=roster.optimizer_settings,
    )
    if not keeps_state:
        return next_roster
    return _with_grains(roster, next_roster, pipelines, num_grains(next_roster.first_computed))


def grains_of(roster: Roster, step: int, num_grains: int) -> Sequence[tuple[int, ...]]:
    """The grains of each replica in a step of this roster."""
    if roster.grains and step == roster.first_computed:
        return roster.grains
    return split_grains(num_grains, roster.shares)


def _ruling(roster: Roster, answered: Mapping[str, Answer], checkpoint_step: int) -> tuple[int, Ruling]:
    """The step that is in question, and what becomes of it."""
    rolled_back = (checkpoint_step, Ruling(kind="rolled_back"))
    stages = [
        [answer for name, answer in answered.items() if roster.stages[name] == stage]
        for stage in range(roster.num_stages)
    ]
    if not all(stages) or any(answer.owes_checkpoint for answer in answered.values()):
        return rolled_back
    most = max(answer.num_applied for answer in answered.values())
    decided = _decided(roster, answered, most)
    if decided is not None:
        step, numbers = decided
        if not all(any(_holds(answer, step) for answer in stage) for stage in stages):
            return rolled_back  # a lost member may have applied it, and nobody is left who could
        if any(answer.num_applied <= step for answer in answered.values()):
            return step, Ruling(kind="stands", numbers=numbers)
    if len({(answer.is_between_steps, answer.num_evaluations) for answer in answered.values()}) > 1:
        return rolled_back  # some have done what comes between two steps, and others have not
    if all(any(answer.is_prepared for answer in stage) for stage in stages):
        return most, Ruling(kind="stands", numbers=_numbers(stages))
    return most, Ruling(kind="unfinished")


def _decided(roster: Roster, answered: Mapping[str, Answer], most: int) -> tuple[int, StepNumbers | None] | None:
    """The last step that has to be applied by all, since somebody did or the present roster says so; and its numbers.
    None before the first step."""
    ruling = roster.ruling
    if ruling is not None and ruling.kind == "stands" and most <= roster.first_computed:
        return roster.resume_step, ruling.numbers
    if most == 0:
        return None
    applied = next((each.applied for each in answered.values() if each.num_applied == most and each.applied), None)
    return most - 1, applied


def _holds(answer: Answer, step: int) -> bool:
    """True if the member has applied the step, or holds the gradients to apply it."""
    return answer.num_applied > step or (answer.num_applied == step and answer.is_prepared)


def _numbers(stages: Sequence[Sequence[Answer]]) -> StepNumbers:
    """The numbers of a step, from one prepared member of each stage. All of a stage have the same ones."""
    prepared = [next(answer for answer in stage if answer.is_prepared) for stage in stages]
    return StepNumbers(
        loss_sum=prepared[-1].loss_sum,
        weight=prepared[-1].weight,
        square_sums=tuple(answer.square_sum for answer in prepared),
        is_finite=all(answer.is_finite for answer in prepared),
    )


def _paired(roster: Roster, survivors: Mapping[str, int]) -> tuple[list[Pipeline], dict[str, int]]:
    """As many pipelines as the rarest stage has members, and the stages of those members that are left over."""
    all_before = [roster.pipeline(replica) for replica in range(roster.num_replicas)]
    whole = [pipeline for pipeline in all_before if survivors.keys() >= set(pipeline)]
    taken = {name for pipeline in whole for name in pipeline}
    left = [
        [name for name, own_stage in survivors.items() if own_stage == stage and name not in taken]
        for stage in range(roster.num_stages)
    ]
    num_new = min(len(names) for names in left)
    new = list(zip(*(names[:num_new] for names in left), strict=True))
    return [*whole, *new], {name: stage for stage, names in enumerate(left) for name in names[num_new:]}


def _dealt(roster: Roster, survivors: Mapping[str, int]) -> tuple[list[Pipeline], dict[str, int]]:
    """Pipelines of any members, who will read their weights from a checkpoint, and copies of the first stages."""
    names = list(survivors)
    num_stages = roster.num_stages
    num_seated = len(names) // num_stages * num_stages
    pipelines = [tuple(names[at : at + num_stages]) for at in range(0, num_seated, num_stages)]
    return pipelines, {name: stage for stage, name in enumerate(names[num_seated:])}


def _weight(roster: Roster, pipeline: Pipeline) -> int:
    """The share of a pipeline's slowest member under the roster before; a copy counts as an average member."""
    average = -(-sum(roster.shares) // roster.num_replicas)
    shares = {member.name: roster.shares[member.replica] for member in roster.members}
    return max(1, min(shares.get(name, average) for name in pipeline))


def _with_grains(roster: Roster, next_roster: Roster, pipelines: Sequence[Pipeline], num_grains: int) -> Roster:
    """The next roster, with its first step divided so that whole pipelines keep what they have of it."""
    before = grains_of(roster, next_roster.first_computed, num_grains)
    replicas = {roster.pipeline(replica): replica for replica in range(roster.num_replicas)}
    grains = [list(before[replicas[pipeline]]) if pipeline in replicas else [] for pipeline in pipelines]
    kept = {grain for part in grains for grain in part}
    targets = [len(part) for part in split_grains(num_grains, next_roster.shares)]
    for grain in sorted(set(range(num_grains)) - kept):
        poorest = max(range(len(grains)), key=lambda replica: (targets[replica] - len(grains[replica]), -replica))
        grains[poorest].append(grain)
    return structs.replace(next_roster, grains=tuple(tuple(sorted(part)) for part in grains))
