"""The rule that derives the next roster from the answers of survivors; any survivor derives the same one.

A step is committed when all members of a roster, copies included, have voted for it, and a member that votes is
prepared. So if any member applied step k, every survivor was prepared for it. If a stage has survivors but none of them
was prepared, nobody applied step k.

New processes join in the same way as others leave. They are newcomers until they have confirmed the state of their
stage; until then they do not count as survivors of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Answer, Joining, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.samples import even_shares, split_grains

Pipeline = tuple[str, ...]
"""The names of a pipeline's members, in stage order."""


def successor(
    roster: Roster,
    answers: Sequence[Answer],
    *,
    checkpoint_step: Callable[[], int],
    num_grains: Callable[[int], int],
    joiners: Sequence[Joining] = (),
) -> Roster:
    """The roster that replaces this one, with members that have answered and processes that ask to join.

    Complete pipelines stay together and keep their grains. Members of broken pipelines, copies and joiners form new
    ones, up to the planned number; any others become copies. `num_grains` maps a step to its number of grains.
    `checkpoint_step` returns the step of the last checkpoint. It is asked only if all members roll back to it.

    Raises ScheduleError if too few members are left for one pipeline.
    """
    current = [answer for answer in answers if answer.change == roster.change]
    answer_of = {answer.member: answer for answer in _compatible(roster, current)}
    answered = {name: answer_of[name] for name in roster.stages if name in answer_of}
    holders = {name: answer for name, answer in answered.items() if answer.has_state}
    accepted = _accepted(roster, joiners)
    stateless = [*(name for name in answered if name not in holders), *accepted]
    if not answered or len(answered) + len(accepted) < roster.num_stages:
        raise ScheduleError(
            f"{len(answered) + len(accepted)} members are left for {roster.num_stages} stages; each stage needs one"
        )
    step, ruling = _ruling(roster, holders)
    keeps_state = ruling.kind != "rolled_back"
    if not keeps_state:
        step = checkpoint_step()
    num_planned = roster.num_planned_replicas or roster.num_replicas
    pipelines, copies = (
        _with_state(roster, list(holders), stateless, num_planned)
        if keeps_state
        else _without_state([*answered, *accepted], roster.num_stages, num_planned)
    )
    weights = [_weight(roster, pipeline) for pipeline in pipelines]
    shares = tuple(len(grains) for grains in split_grains(sum(roster.shares), weights))
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
        plan=roster.plan,
        former=(*roster.former, *(seat.name for seat in roster.seats if seat.name not in answered)),
        num_planned_replicas=num_planned,
        ruling=ruling,
        is_between_steps=ruling.kind == "unfinished" and any(each.is_between_steps for each in holders.values()),
        optimizer_settings=roster.optimizer_settings,
    )
    if not keeps_state:
        return next_roster
    finished = {name for name, answer in holders.items() if answer.has_finished and ruling.kind == "unfinished"}
    return _with_grains(roster, next_roster, pipelines, num_grains(next_roster.first_computed), finished)


def _compatible(roster: Roster, answers: Sequence[Answer]) -> list[Answer]:
    """The answers of members that can reach one another; of two that cannot, one is left out.

    Members that have lost the fewest others come first, then the order of the roster decides.
    """
    names = {answer.member for answer in answers}
    unreachable = {answer.member: (names & set(answer.suspects)) - {answer.member} for answer in answers}
    for name, others in list(unreachable.items()):
        for other in others:
            unreachable[other] = unreachable[other] | {name}
    order = {name: index for index, name in enumerate(roster.stages)}
    kept: list[Answer] = []
    for answer in sorted(answers, key=lambda each: (len(unreachable[each.member]), order.get(each.member, len(order)))):
        if not unreachable[answer.member] & {other.member for other in kept}:
            kept.append(answer)
    return kept


def grains_of(roster: Roster, step: int, num_grains: int) -> Sequence[tuple[int, ...]]:
    """The grains of each replica in a step of this roster.

    The writer of a roster may not have known that a new batch size begins with the roster's first step. Its division of
    that step is then of another number of grains, and does not count.
    """
    if roster.grains and step == roster.first_computed:
        divided = {grain for numbers in roster.grains for grain in numbers}
        if divided == set(range(num_grains)):
            return roster.grains
    return split_grains_of(roster, num_grains)


def split_grains_of(roster: Roster, num_grains: int) -> Sequence[tuple[int, ...]]:
    """Divide the grains of a step among the replicas by the shares of this roster.

    Shares that are as equal as whole grains allow mean equal parts, also in a step with another number of grains.
    """
    is_even = roster.shares == even_shares(sum(roster.shares), roster.num_replicas)
    return split_grains(num_grains, (1,) * roster.num_replicas if is_even else roster.shares)


def uncomputed_grains_of(roster: Roster, step: int, num_grains: int) -> Sequence[tuple[int, ...]]:
    """The grains of each replica in a step, without those that it computed before the roster began."""
    grains = grains_of(roster, step, num_grains)
    if not roster.computed or step != roster.first_computed:
        return grains
    return [
        tuple(grain for grain in planned if grain not in computed)
        for planned, computed in zip(grains, roster.computed, strict=True)
    ]


def _ruling(roster: Roster, holders: Mapping[str, Answer]) -> tuple[int, Ruling]:
    """The last step in question and the ruling on it, from the answers of members with the state of their stage.

    The step is 0 if all members roll back.
    """
    rolled_back = (0, Ruling(kind="rolled_back"))
    stages = [
        [answer for name, answer in holders.items() if roster.stages[name] == stage]
        for stage in range(roster.num_stages)
    ]
    if not all(stages) or any(answer.owes_checkpoint for answer in holders.values()):
        return rolled_back
    num_applied = max(answer.num_applied for answer in holders.values())
    decided = _decided(roster, holders, num_applied)
    if decided is not None:
        step, numbers = decided
        if not all(any(_holds(answer, step) for answer in stage) for stage in stages):
            return rolled_back  # a lost member may have applied it, and no survivor can
        if any(answer.num_applied <= step for answer in holders.values()):
            return step, Ruling(kind="stands", numbers=numbers)
    if len({(answer.is_between_steps, answer.num_evaluations) for answer in holders.values()}) > 1:
        return rolled_back  # only some have done the work between two steps, such as an evaluation
    if all(any(answer.is_prepared for answer in stage) for stage in stages):
        return num_applied, Ruling(kind="stands", numbers=_numbers(stages))
    return num_applied, Ruling(kind="unfinished")


def _decided(roster: Roster, holders: Mapping[str, Answer], num_applied: int) -> tuple[int, StepNumbers | None] | None:
    """The last step that all must apply, since a member did or the roster says so, with its numbers.

    None before the first step.
    """
    ruling = roster.ruling
    applied = next(
        (each.applied for each in holders.values() if each.num_applied == num_applied and each.applied), None
    )
    if ruling is not None and ruling.kind == "stands" and num_applied <= roster.first_computed:
        # Whoever has applied the step knows the vote on it, which the roster may not say.
        has_applied = num_applied == roster.first_computed
        return roster.resume_step, applied if has_applied and applied is not None else ruling.numbers
    if num_applied == 0:
        return None
    return num_applied - 1, applied


def _holds(answer: Answer, step: int) -> bool:
    """Whether the member has applied the step, or holds the gradients to apply it."""
    return answer.num_applied > step or (answer.num_applied == step and answer.is_prepared)


def _numbers(stages: Sequence[Sequence[Answer]]) -> StepNumbers:
    """The numbers of a step, from one prepared member of each stage; all members of a stage have the same."""
    prepared = [next(answer for answer in stage if answer.is_prepared) for stage in stages]
    return StepNumbers(
        loss_sum=prepared[-1].loss_sum,
        weight=prepared[-1].weight,
        square_sums=tuple(answer.square_sum for answer in prepared),
        is_finite=all(answer.is_finite for answer in prepared),
    )


def _accepted(roster: Roster, joiners: Sequence[Joining]) -> list[str]:
    """Names of processes that may join, in an order that does not depend on who asked first.

    A name that was used before is rejected: its first owner may wake up, and its messages would be confused.
    """
    names = {joining.member for joining in joiners if joining.change == roster.change}
    return sorted(names - roster.stages.keys() - set(roster.former))


def _with_state(
    roster: Roster, holders: Sequence[str], stateless: Sequence[str], num_planned: int
) -> tuple[list[Pipeline], list[RosterSeat]]:
    """Pipelines in which members with state keep their stage, and copies.

    Members without state fill the empty seats. The rest of them become copies of the stages with the fewest copies.
    """
    complete = [
        pipeline for replica in range(roster.num_replicas) if set(pipeline := roster.pipeline(replica)) <= set(holders)
    ]
    taken = {name for pipeline in complete for name in pipeline}
    unseated = [
        [name for name in holders if roster.stages[name] == stage and name not in taken]
        for stage in range(roster.num_stages)
    ]
    max_new = min(num_planned - len(complete), (len(holders) - len(taken) + len(stateless)) // roster.num_stages)
    num_new = next(
        number
        for number in range(max_new, -1, -1)
        if sum(max(0, number - len(names)) for names in unseated) <= len(stateless)
    )
    waiting = iter(stateless)
    new = [
        tuple(names[number] if number < len(names) else next(waiting) for names in unseated)
        for number in range(num_new)
    ]
    copies = [RosterSeat(name=name, stage=stage) for stage, names in enumerate(unseated) for name in names[num_new:]]
    for name in waiting:
        num_copies = Counter(copy.stage for copy in copies)
        fewest = min(range(roster.num_stages), key=lambda stage: num_copies[stage])
        copies.append(RosterSeat(name=name, stage=fewest))
    return [*complete, *new], copies


def _without_state(names: Sequence[str], num_stages: int, num_planned: int) -> tuple[list[Pipeline], list[RosterSeat]]:
    """Pipelines of members that read their state from a checkpoint, and copies of the stages in turn."""
    num_seated = min(len(names) // num_stages, num_planned) * num_stages
    pipelines = [tuple(names[first : first + num_stages]) for first in range(0, num_seated, num_stages)]
    copies = [RosterSeat(name=name, stage=number % num_stages) for number, name in enumerate(names[num_seated:])]
    return pipelines, copies


def _weight(roster: Roster, pipeline: Pipeline) -> int:
    """The smallest share of a pipeline's members under the last roster; new members count as average ones."""
    average = -(-sum(roster.shares) // roster.num_replicas)
    shares = {member.name: roster.shares[member.replica] for member in roster.members}
    return max(1, min(shares.get(name, average) for name in pipeline))


def _with_grains(
    roster: Roster, next_roster: Roster, pipelines: Sequence[Pipeline], num_grains: int, finished: Set[str]
) -> Roster:
    """The next roster, with its first step divided so that complete pipelines keep their grains."""
    last_grains = grains_of(roster, next_roster.first_computed, num_grains)
    replicas = {roster.pipeline(replica): replica for replica in range(roster.num_replicas)}
    grains = [list(last_grains[replicas[pipeline]]) if pipeline in replicas else [] for pipeline in pipelines]
    kept = {grain for numbers in grains for grain in numbers}
    computed = [
        tuple(numbers) if finished >= set(names) else () for numbers, names in zip(grains, pipelines, strict=True)
    ]
    targets = [len(numbers) for numbers in split_grains(num_grains, next_roster.shares)]
    for grain in sorted(set(range(num_grains)) - kept):
        neediest = max(range(len(grains)), key=lambda replica: (targets[replica] - len(grains[replica]), -replica))
        grains[neediest].append(grain)
    return structs.replace(
        next_roster,
        grains=tuple(tuple(sorted(numbers)) for numbers in grains),
        computed=tuple(computed) if any(computed) else (),
    )
