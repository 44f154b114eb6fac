"""A model of a run whose members may vanish: real rules of steps and rosters, and every order in which members may act.

No move stands for a crash. Every member may stop acting at any moment, for a while or for good, because any order of
moves is possible; and any member may take any other for lost. What a member has sent or written stays.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from zooid.core.errors import ScheduleError
from zooid.core.roster import Answer, Roster, RosterMember, StepNumbers
from zooid.schedule.samples import split_grains
from zooid.schedule.steps import Phase, StepState
from zooid.schedule.succession import grains_of, successor

NUM_GRAINS = 4
CHECKPOINT_STEP = 0

Attempt = tuple[int, int]
"""A roster and a step. Sums that are made under different rosters may differ in rounding."""
World = tuple[int, ...]
"""The number of each member, then the number of each roster."""


@dataclass(frozen=True)
class Member:
    """One process: its state, and everything that it has told others."""

    name: str
    state: StepState
    roster: int = 0
    """Number of the roster that it obeys; EXCLUDED if a roster does not name it."""
    history: tuple[Attempt, ...] = ()
    """The sums that its parameters contain, in order."""
    held: Attempt | None = None
    """The reduced gradients that it holds."""
    is_settled: bool = True
    """False until all members of its roster hold the step that stands."""
    contributed: frozenset[Attempt] = frozenset()
    votes: frozenset[Attempt] = frozenset()
    answers: tuple[Answer, ...] = ()

    @property
    def has_answered(self) -> bool:
        return any(answer.change == self.roster for answer in self.answers)


EXCLUDED = -1


class Model:
    """All worlds that can be reached from one layout."""

    def __init__(self, num_replicas: int, num_stages: int, *, num_steps: int, max_rosters: int) -> None:
        self.num_steps = num_steps
        self.max_rosters = max_rosters
        self.num_members = num_replicas * num_stages
        self._members: list[Member] = []
        self._member_numbers: dict[Member, int] = {}
        self._rosters: list[Roster] = []
        shares = tuple(len(share) for share in split_grains(NUM_GRAINS, (1,) * num_replicas))
        seats = [(replica, stage) for replica in range(num_replicas) for stage in range(num_stages)]
        first = Roster(
            run="run",
            number=0,
            resume_step=0,
            members=tuple(RosterMember(name=f"m{r}{s}", stage=s, replica=r) for r, s in seats),
            shares=shares,
        )
        members = [self._begun(Member(member.name, StepState.resumed(0))) for member in first.members]
        self.start: World = (*(self._number(member) for member in members), self._roster_number(first))
        self._seats = cache(self._seats_of)
        self._successor = cache(self._checked_successor)
        self._forgetting = cache(self._without_stale)

    def members(self, world: World) -> list[Member]:
        return [self._members[number] for number in world[: self.num_members]]

    def rosters(self, world: World) -> list[Roster]:
        return [self._rosters[number] for number in world[self.num_members :]]

    def moves(self, world: World, rank: int) -> Iterator[World]:
        """Every world that the next action of this member can lead to."""
        yield from self.training(world, rank)
        yield from self.obeying(world, rank)
        yield from self.answering(world, rank)
        yield from self.writing(world, rank)

    def training(self, world: World, rank: int) -> Iterator[World]:
        """What a member does in a step: it is prepared when all of its stage have contributed, and applies when all
        have voted. It contributes and votes as soon as it can: a message that nobody has received yet changes nothing.
        """
        member = self._members[world[rank]]
        if member.roster == EXCLUDED or not member.state.is_bound:
            return
        state, attempt = member.state, (member.roster, member.state.step)
        seats = self._seats(world[self.num_members + member.roster])
        everyone = [other for other in self.members(world) if other.name in seats]
        stage = [other for other in everyone if seats[other.name] == seats[member.name]]
        if state.phase is Phase.RUNNING and not member.is_settled:  # it lacks the step that stands
            for other in stage:
                if other.roster == member.roster and other.held is not None and other.held[1] == state.step:
                    yield self._with(world, rank, _voting(replace(member, state=state.prepare(), held=other.held)))
        elif state.phase is Phase.RUNNING:
            if all(attempt in other.contributed for other in stage):
                yield self._with(world, rank, _voting(replace(member, state=state.prepare(), held=attempt)))
        elif member.is_settled and state.phase is Phase.APPLIED:
            return  # the run is over
        elif all(attempt in other.votes for other in everyone):
            applied = member if state.phase is Phase.APPLIED else _applied(member)
            yield self._with(world, rank, self._begun(replace(applied, is_settled=True)))

    def answering(self, world: World, rank: int) -> Iterator[World]:
        """A member suspects another one, or hears of a suspicion."""
        member = self._members[world[rank]]
        may_answer = member.roster != EXCLUDED and member.roster + 1 < self.max_rosters
        if may_answer and not member.has_answered:
            answers = (*member.answers, _answer(member))
            yield self._with(world, rank, replace(member, state=member.state.release(), answers=answers))

    def writing(self, world: World, rank: int) -> Iterator[World]:
        """Rosters that a member may write, whichever answers it has seen beside its own. The first writer wins."""
        member = self._members[world[rank]]
        if not member.has_answered or len(world) > self.num_members + member.roster + 1:
            return
        answers = [a for other in self.members(world) for a in other.answers if a.change == member.roster]
        for num_seen in range(len(answers), 0, -1):
            for seen in combinations(answers, num_seen):
                if any(answer.member == member.name for answer in seen):
                    written = self._successor(world[self.num_members + member.roster], seen)
                    if written is not None:
                        yield (*world, written)

    def obeying(self, world: World, rank: int) -> Iterator[World]:
        member = self._members[world[rank]]
        if member.roster != EXCLUDED and len(world) > self.num_members + member.roster + 1:
            number = world[self.num_members + member.roster + 1]
            yield self._with(world, rank, self._begun(self._obeying(member, number)))

    def explore(self) -> set[World]:
        """Every world that can be reached, each of them checked."""
        reached, todo = {self.start}, [self.start]
        while todo:
            world = todo.pop()
            self.check(world)
            for rank in range(self.num_members):
                for following in self.moves(world, rank):
                    if following not in reached:
                        reached.add(following)
                        todo.append(following)
        return reached

    def check(self, world: World) -> None:
        """Whoever was not rolled back has applied the same sums in the same order."""
        rollbacks = [r.ruling is not None and r.ruling.kind == "rolled_back" for r in self.rosters(world)]
        for one, other in combinations(self.members(world), 2):
            first, last = sorted((one.roster, other.roster))
            if first == EXCLUDED or any(rollbacks[first + 1 : last + 1]):
                continue
            common = min(len(one.history), len(other.history))
            assert one.history[:common] == other.history[:common], f"two histories: {one}, {other}"

    def wander(self, chance: random.Random, num_moves: int) -> World:
        """The world after so many random moves, each of them checked. Most moves belong to the training."""
        world, ranks = self.start, range(self.num_members)
        for _ in range(num_moves):
            calm = [move for rank in ranks for move in (*self.training(world, rank), *self.obeying(world, rank))]
            moves = calm if calm and chance.random() < 0.9 else [move for r in ranks for move in self.moves(world, r)]
            if not moves:
                break
            world = chance.choice(moves)
            self.check(world)
        return world

    def end_without(self, world: World, lost: Collection[int]) -> World:
        """The last world, if these ranks never act again and the others do what they can."""
        ranks = [rank for rank in range(self.num_members) if rank not in lost]
        while not self.has_ended(world, ranks):
            kinds = (self.training, self.obeying, self.writing, self.answering)
            following = next((move for kind in kinds for rank in ranks for move in kind(world, rank)), None)
            if following is None:
                break
            world = following
            self.check(world)
        return world

    def has_ended(self, world: World, ranks: Collection[int]) -> bool:
        """True if all steps are applied by everyone among these ranks whom the newest roster names."""
        return all(
            member.is_settled and member.state.is_bound and member.state.num_applied == self.num_steps
            for member in self.present(world, ranks)
        )

    def present(self, world: World, ranks: Collection[int]) -> list[Member]:
        """Those among these ranks whom the newest roster names."""
        return [m for m in (self._members[world[rank]] for rank in ranks) if m.name in self._seats(world[-1])]

    def _obeying(self, member: Member, number: int) -> Member:
        roster = self._rosters[number]
        if member.name not in self._seats(number):
            return Member(
                member.name,
                StepState.resumed(0).release(),
                EXCLUDED,
                votes=member.votes,
                contributed=member.contributed,
            )
        assert roster.ruling is not None
        state, history, held = member.state.obey(roster), member.history, member.held
        if roster.ruling.kind == "rolled_back":
            history = history[: roster.resume_step]
        if roster.ruling.kind == "stands":
            numbers = roster.ruling.numbers
            assert numbers is not None
            attempt = (int(numbers.weight), int(numbers.loss_sum))
            if state.phase is Phase.PREPARED:
                assert held == attempt, "it holds other sums than those that stand"
            elif state.phase is Phase.APPLIED:
                assert history[-1] == attempt, "it has applied other sums than those that stand"
            held = None if state.phase is Phase.RUNNING else attempt
        else:
            held = None  # sums of the roster before; the next ones may differ in rounding
        is_settled = roster.ruling.kind != "stands"
        obeying = replace(member, roster=roster.change, state=state, history=history, held=held, is_settled=is_settled)
        return obeying if is_settled or state.phase is Phase.RUNNING else _voting(obeying)

    def _begun(self, member: Member) -> Member:
        """The member in its next step, if it may begin one."""
        is_ready = member.roster != EXCLUDED and member.is_settled and member.state.phase is Phase.APPLIED
        if not is_ready or member.state.num_applied == self.num_steps:
            return member
        state = member.state.begin()
        return replace(member, state=state, contributed=member.contributed | {(member.roster, state.step)})

    def _checked_successor(self, roster_number: int, answers: tuple[Answer, ...]) -> int | None:
        """The next roster by the members' own rule; None if it needs more members."""
        roster = self._rosters[roster_number]
        try:
            new = successor(roster, answers, checkpoint_step=CHECKPOINT_STEP, num_grains=lambda step: NUM_GRAINS)
        except ScheduleError:
            return None
        assert new.ruling is not None
        assert new.stages.keys() == {answer.member for answer in answers}
        grains = grains_of(new, new.first_computed, NUM_GRAINS)
        assert sorted(grain for part in grains for grain in part) == list(range(NUM_GRAINS)), "each sample counts once"
        if new.ruling.kind != "rolled_back":
            before = grains_of(roster, new.first_computed, NUM_GRAINS)
            kept = {roster.pipeline(replica): before[replica] for replica in range(roster.num_replicas)}
            for replica in range(new.num_replicas):
                assert set(grains[replica]) >= set(kept.get(new.pipeline(replica), ())), "sums cannot be taken apart"
        return self._roster_number(new)

    def _seats_of(self, roster_number: int) -> dict[str, int]:
        """The stage of each member of a roster."""
        return self._rosters[roster_number].stages

    def _with(self, world: World, rank: int, member: Member) -> World:
        """The world with this member in place of the one that was, without what nobody can ask for any more."""
        numbers = [*world[:rank], self._number(member), *world[rank + 1 : self.num_members]]
        members = [self._members[number] for number in numbers]
        bound = frozenset(each.roster for each in members if each.state.is_bound)
        asked = min((each.roster for each in members if each.roster != EXCLUDED), default=0)
        return (*(self._forgetting(number, bound, asked) for number in numbers), *world[self.num_members :])

    def _without_stale(self, number: int, bound: frozenset[int], asked: int) -> int:
        """The member without messages of rosters to which nobody is bound, and without answers that were judged."""
        member = self._members[number]
        return self._number(
            replace(
                member,
                contributed=frozenset(attempt for attempt in member.contributed if attempt[0] in bound),
                votes=frozenset(attempt for attempt in member.votes if attempt[0] in bound),
                answers=tuple(answer for answer in member.answers if answer.change >= asked),
            )
        )

    def _number(self, member: Member) -> int:
        number = self._member_numbers.setdefault(member, len(self._members))
        if number == len(self._members):
            self._members.append(member)
        return number

    def _roster_number(self, roster: Roster) -> int:
        if roster not in self._rosters:
            self._rosters.append(roster)
        return self._rosters.index(roster)


def _voting(member: Member) -> Member:
    return replace(member, votes=member.votes | {(member.roster, member.state.step)})


def _applied(member: Member) -> Member:
    assert member.held is not None
    assert member.held[1] == member.state.step == len(member.history)
    return replace(member, state=member.state.apply(), history=(*member.history, member.held))


def _answer(member: Member) -> Answer:
    """The numbers say which sums they belong to."""
    is_prepared = member.state.phase is Phase.PREPARED
    roster, step = member.held if is_prepared and member.held is not None else (0, 0)
    return Answer(
        member=member.name,
        change=member.roster,
        num_applied=member.state.num_applied,
        is_prepared=is_prepared,
        loss_sum=float(step),
        weight=float(roster),
        applied=_numbers(member.history[-1]) if member.history else None,
    )


def _numbers(attempt: Attempt) -> StepNumbers:
    return StepNumbers(loss_sum=float(attempt[1]), weight=float(attempt[0]), square_sums=())


def run_schedule(layout: tuple[int, int], chance: random.Random) -> str:
    """Members act in a random order, then up to two of them are lost for good. How that ends, in a word."""
    num_replicas, num_stages = layout
    model = Model(num_replicas, num_stages, num_steps=3, max_rosters=3)
    world = model.wander(chance, num_moves=chance.randrange(60))
    lost = chance.sample(range(model.num_members), chance.randrange(min(3, model.num_members)))
    left = [rank for rank in range(model.num_members) if rank not in lost]
    model.max_rosters = 10
    end = model.end_without(world, lost)
    if len(model.present(end, left)) < num_stages:
        return "too few"
    assert model.has_ended(end, left), f"nobody goes on: {model.members(end)}"
    rulings = {roster.ruling.kind for roster in model.rosters(end) if roster.ruling is not None}
    return "rolled back" if "rolled_back" in rulings else "kept" if rulings else "undisturbed"
