"""From the answers of the survivors to the next roster: a pure rule, so that any survivor finds the same one.

A step is committed when all members of a roster have voted for it, copies included, and everyone who votes is
prepared. So if anyone applied step k, every survivor was prepared for it. If a stage has survivors but none of them was
prepared, nobody applied step k.

New processes may join in the same way as others leave. They are newcomers until they have confirmed the state of their
stage; until then they are no survivors of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Answer, Joining, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.samples import split_grains

Pipeline = tuple[str, ...]
"""Names of members in stage order."""


def successor(
    roster: Roster,
    answers: Sequence[Answer],
    *,
    checkpoint_step: int,
    num_grains: Callable[[int], int],
    joiners: Sequence[Joining] = (),
) -> Roster:
    """The roster that replaces this one. It names only members that have answered, and processes that ask to join.

    Whole pipelines stay together and keep their grains. Members of broken pipelines, copies and joiners make new ones,
    up to the number that was planned. Whoever is left over becomes a copy. `num_grains` maps a step to its number of
    grains.

    Raises ScheduleError if too few members are left for one pipeline.
    """
    given = {
        answer.member: answer
        for answer in _together(roster, [each for each in answers if each.change == roster.change])
    }
    answered = {name: given[name] for name in roster.stages if name in given}
    holders = {name: answer for name, answer in answered.items() if answer.has_state}
    accepted = _accepted(roster, joiners)
    stateless = [*(name for name in answered if name not in holders), *accepted]
    if not answered or len(answered) + len(accepted) < roster.num_stages:
        raise ScheduleError(
            f"{len(answered) + len(accepted)} members are left for {roster.num_stages} stages; each needs one"
        )
    step, ruling = _ruling(roster, holders, checkpoint_step)
    keeps_state = ruling.kind != "rolled_back"
    num_planned = roster.num_planned_replicas or roster.num_replicas
    pipelines, copies = (
        _paired(roster, list(holders), stateless, num_planned)
        if keeps_state
        else _dealt([*answered, *accepted], roster.num_stages, num_planned)
    )
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
        copies=tuple(copies),
        newcomers=tuple(stateless) if keeps_state else (),
        former=(*roster.former, *(name for name in roster.stages if name not in answered)),
        num_planned_replicas=num_planned,
        ruling=ruling,
        is_between_steps=ruling.kind == "unfinished" and any(each.is_between_steps for each in holders.values()),
        optimizer_settings=roster.optimizer_settings,
    )
    if not keeps_state:
        return next_roster
    finished = {name for name, answer in holders.items() if answer.has_finished and ruling.kind == "unfinished"}
    return _with_grains(roster, next_roster, pipelines, num_grains(next_roster.first_computed), finished)


def _together(roster: Roster, answers: Sequence[Answer]) -> list[Answer]:
    """Those who can go on together. Of two members that have lost one another, although both live, one is left out.

    Whoever has lost the fewest comes first, and then the order of the roster decides.
    """
    names = {answer.member for answer in answers}
    apart = {answer.member: (names & set(answer.suspects)) - {answer.member} for answer in answers}
    for name, others in list(apart.items()):
        for other in others:
            apart[other] = apart[other] | {name}
    places = {name: place for place, name in enumerate(roster.stages)}
    kept: list[Answer] = []
    for answer in sorted(answers, key=lambda each: (len(apart[each.member]), places.get(each.member, len(places)))):
        if not apart[answer.member] & {other.member for other in kept}:
            kept.append(answer)
    return kept


def grains_of(roster: Roster, step: int, num_grains: int) -> Sequence[tuple[int, ...]]:
    """The grains of each replica in a step of this roster."""
    if roster.grains and step == roster.first_computed:
        return roster.grains
    return split_grains(num_grains, roster.shares)


def uncomputed_grains_of(roster: Roster, step: int, num_grains: int) -> Sequence[tuple[int, ...]]:
    """The same without those that a replica has computed before the roster began."""
    grains = grains_of(roster, step, num_grains)
    if not roster.computed or step != roster.first_computed:
        return grains
    return [
        tuple(grain for grain in own if grain not in done) for own, done in zip(grains, roster.computed, strict=True)
    ]


def _ruling(roster: Roster, holders: Mapping[str, Answer], checkpoint_step: int) -> tuple[int, Ruling]:
    """The step that is in question, and what becomes of it, by the answers of all who have the state of their stage."""
    rolled_back = (checkpoint_step, Ruling(kind="rolled_back"))
    stages = [
        [answer for name, answer in holders.items() if roster.stages[name] == stage]
        for stage in range(roster.num_stages)
    ]
    if not all(stages) or any(answer.owes_checkpoint for answer in holders.values()):
        return rolled_back
    most = max(answer.num_applied for answer in holders.values())
    decided = _decided(roster, holders, most)
    if decided is not None:
        step, numbers = decided
        if not all(any(_holds(answer, step) for answer in stage) for stage in stages):
            return rolled_back  # a lost member may have applied it, and nobody is left who could
        if any(answer.num_applied <= step for answer in holders.values()):
            return step, Ruling(kind="stands", numbers=numbers)
    if len({(answer.is_between_steps, answer.num_evaluations) for answer in holders.values()}) > 1:
        return rolled_back  # some have done what comes between two steps, and others have not
    if all(any(answer.is_prepared for answer in stage) for stage in stages):
        return most, Ruling(kind="stands", numbers=_numbers(stages))
    return most, Ruling(kind="unfinished")


def _decided(roster: Roster, holders: Mapping[str, Answer], most: int) -> tuple[int, StepNumbers | None] | None:
    """The last step that has to be applied by all, since somebody did or the present roster says so; and its numbers.
    None before the first step."""
    ruling = roster.ruling
    if ruling is not None and ruling.kind == "stands" and most <= roster.first_computed:
        return roster.resume_step, ruling.numbers
    if most == 0:
        return None
    applied = next((each.applied for each in holders.values() if each.num_applied == most and each.applied), None)
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


def _accepted(roster: Roster, joiners: Sequence[Joining]) -> list[str]:
    """Names of those who may join, in an order that does not depend on who asked first.

    A name that was used before is refused: its first owner may wake up, and its messages would be mistaken.
    """
    names = {joining.member for joining in joiners if joining.change == roster.change}
    return sorted(names - roster.stages.keys() - set(roster.former))


def _paired(
    roster: Roster, holders: Sequence[str], stateless: Sequence[str], num_planned: int
) -> tuple[list[Pipeline], list[RosterSeat]]:
    """Pipelines in which everyone who has state keeps its stage, and the copies.

    Seats that nobody with state can take go to members without state. What is left of them becomes a copy of the stage
    with the fewest members.
    """
    whole = [
        pipeline for replica in range(roster.num_replicas) if set(pipeline := roster.pipeline(replica)) <= set(holders)
    ]
    taken = {name for pipeline in whole for name in pipeline}
    left = [
        [name for name in holders if roster.stages[name] == stage and name not in taken]
        for stage in range(roster.num_stages)
    ]
    most = min(num_planned - len(whole), (len(holders) - len(taken) + len(stateless)) // roster.num_stages)
    num_new = next(
        number for number in range(most, -1, -1) if sum(max(0, number - len(names)) for names in left) <= len(stateless)
    )
    waiting = iter(stateless)
    new = [
        tuple(names[number] if number < len(names) else next(waiting) for names in left) for number in range(num_new)
    ]
    copies = [RosterSeat(name=name, stage=stage) for stage, names in enumerate(left) for name in names[num_new:]]
    for name in waiting:
        num_copies = Counter(copy.stage for copy in copies)
        fewest = min(range(roster.num_stages), key=lambda stage: num_copies[stage])
        copies.append(RosterSeat(name=name, stage=fewest))
    return [*whole, *new], copies


def _dealt(names: Sequence[str], num_stages: int, num_planned: int) -> tuple[list[Pipeline], list[RosterSeat]]:
    """Pipelines of any members, who will read their weights from a checkpoint, and copies of the stages in turn."""
    num_seated = min(len(names) // num_stages, num_planned) * num_stages
    pipelines = [tuple(names[at : at + num_stages]) for at in range(0, num_seated, num_stages)]
    left = names[num_seated:]
    return pipelines, [RosterSeat(name=name, stage=number % num_stages) for number, name in enumerate(left)]


def _weight(roster: Roster, pipeline: Pipeline) -> int:
    """The share of a pipeline's slowest member under the roster before; others count as average members."""
    average = -(-sum(roster.shares) // roster.num_replicas)
    shares = {member.name: roster.shares[member.replica] for member in roster.members}
    return max(1, min(shares.get(name, average) for name in pipeline))


def _with_grains(
    roster: Roster, next_roster: Roster, pipelines: Sequence[Pipeline], num_grains: int, finished: Set[str]
) -> Roster:
    """The next roster, with its first step divided so that whole pipelines keep what they have of it."""
    before = grains_of(roster, next_roster.first_computed, num_grains)
    replicas = {roster.pipeline(replica): replica for replica in range(roster.num_replicas)}
    grains = [list(before[replicas[pipeline]]) if pipeline in replicas else [] for pipeline in pipelines]
    kept = {grain for part in grains for grain in part}
    computed = [tuple(own) if finished >= set(names) else () for own, names in zip(grains, pipelines, strict=True)]
    targets = [len(part) for part in split_grains(num_grains, next_roster.shares)]
    for grain in sorted(set(range(num_grains)) - kept):
        poorest = max(range(len(grains)), key=lambda replica: (targets[replica] - len(grains[replica]), -replica))
        grains[poorest].append(grain)
    return structs.replace(
        next_roster,
        grains=tuple(tuple(sorted(part)) for part in grains),
        computed=tuple(computed) if any(computed) else (),
    )
