"""Every order in which the members of a run may act, each driving the real rules of steps and rosters.

No move stands for a crash. Every member may stop acting at any moment, for a while or for good, because any order of
moves is possible; and any member may take any other for lost. What a member has sent or written stays.

A member that answers in the middle of a step may have computed its grains or not: both are tried. Answers name members
that are lost only in models with `suspicions`: they multiply the worlds.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, islice, repeat
from operator import attrgetter
from typing import TypeVar

from tests.succession import process as acts
from tests.succession.process import NUM_GRAINS, OUTSIDE, Attempt, Part, Process
from tests.succession.rosters import check_roster
from zooid.core.errors import ScheduleError
from zooid.core.records import encode_record
from zooid.core.runs.roster import Answer, Joining, Roster
from zooid.schedule.step_state import Phase, StepState
from zooid.schedule.succession import successor

CHECKPOINT_STEP = 0
_ENOUGH_ROSTERS = 12
"""So many rosters always suffice to end a run in which nobody vanishes any more."""

_NEVER = 1 << 30

Item = TypeVar("Item")
World = tuple[int, ...]
"""The number of each actor, then the number of each roster."""


@dataclass(frozen=True)
class Actor:
    """A process, and everything that it has told others."""

    process: Process
    contributed: frozenset[tuple[Attempt, Part]] = frozenset()
    votes: frozenset[Attempt] = frozenset()
    answers: tuple[Answer, ...] = ()
    asked: int | None = None
    """Which roster it knew when it asked to join."""
    planned: int | None = None
    """Number of the planned roster that it goes on under, or that it waits for in order to leave."""
    has_written: bool = False
    """Whether it has written that roster, as its first member."""
    shelved: "Shelved | None" = None
    """What it did under a planned roster that was not in the store when it had to answer."""

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def has_answered(self) -> bool:
        return any(answer.change == self.process.roster for answer in self.answers)


@dataclass(frozen=True)
class Shelved:
    """What a process did under a planned roster, and what it will answer if that roster is stored after all."""

    roster: int
    process: Process
    answer: Answer


class Model:
    """All worlds that can be reached from one roster.

    What an actor becomes by one act depends on few things, and occurs in many worlds: it is worked out once.
    """

    def __init__(
        self,
        first: Roster,
        *,
        num_joiners: int = 0,
        num_steps: int,
        max_rosters: int,
        suspicions: Collection[tuple[str, str]] = (),
    ) -> None:
        """`suspicions` says who may name whom as lost when it answers. Whether it does is tried either way."""
        self._suspicions = suspicions
        self.num_steps = num_steps
        self.max_rosters = max_rosters
        self._actors: list[Actor] = []
        self._actor_numbers: dict[Actor, int] = {}
        self._contributed: list[dict[Attempt, Part]] = []
        """What each actor has contributed, by its number."""
        self._rosters: list[Roster] = []
        self._roster_numbers: dict[bytes, int] = {}
        members = [Process(seat.name, StepState.resumed(0), stage=seat.stage) for seat in first.seats]
        outside = StepState.resumed(0).release()
        joiners = [Process(f"j{number}", outside, OUTSIDE, has_state=False) for number in range(num_joiners)]
        self._names = [process.name for process in (*members, *joiners)]
        self.ranks = range(len(self._names))
        actors = [self._acting(Actor(process), process, first) for process in (*members, *joiners)]
        self.start: World = (*actors, self._roster_number(first))
        for cached in (
            *(
                "_seated",
                "_outlook",
                "_voters",
                "_mates",
                "_stages",
                "_successor",
                "_forgetting",
                "_first_read",
                "_check_pair",
                "_check_samples",
            ),
            *("_taking", "_receiving", "_preparing", "_committing", "_releasing", "_obeying"),
        ):
            setattr(self, cached, cache(getattr(self, cached)))

    def actors(self, world: World) -> list[Actor]:
        return [self._actors[number] for number in world[: len(self.ranks)]]

    def rosters(self, world: World) -> list[Roster]:
        return [self._rosters[number] for number in world[len(self.ranks) :]]

    def moves(self, world: World, rank: int) -> Iterator[World]:
        """Every world that the next action of this process can lead to."""
        yield from self.training(world, rank)
        yield from self.obeying(world, rank)
        yield from self.answering(world, rank)
        yield from self.writing(world, rank)
        yield from self.asking(world, rank)

    def training(self, world: World, rank: int) -> Iterator[World]:
        """What a member does in a step: it is prepared when all of its stage have contributed, and applies when all
        have voted. It contributes and votes as soon as it can: a message that nobody has received yet changes nothing.
        """
        own = world[rank]
        process = self._actors[own].process
        if process.roster < 0 or not process.state.is_bound:
            return
        roster = self._obeyed(world, rank)
        if process.computes:
            mates = self._mates(roster, process.stage)
            contributed = [self._contributed[world[mate]] for mate in mates]
            if all(process.attempt in parts for parts in contributed):
                added = tuple(parts[process.attempt] for parts in contributed)
                yield self._with(world, rank, self._preparing(own, roster, added))
        elif process.has_voted:
            voters = self._voters(roster)
            if all(process.attempt in self._actors[world[voter]].votes for voter in voters):
                yield self._with(world, rank, self._committing(own, roster))
        elif not process.has_state or process.lacks_gradients:
            for mate in self._mates(roster, process.stage):
                source = self._actors[world[mate]].process
                is_beside = (source.roster, source.is_planned) == (process.roster, process.is_planned)
                if mate == rank or not is_beside or not source.has_state:
                    continue
                if not process.has_state:
                    yield self._with(world, rank, self._taking(own, roster, world[mate]))
                elif source.state.phase is Phase.PREPARED:
                    yield self._with(world, rank, self._receiving(own, roster, world[mate]))

    def answering(self, world: World, rank: int) -> Iterator[World]:
        """A member suspects another one, or hears of a suspicion, or of a process that asks to join."""
        actor = self._actors[world[rank]]
        process = actor.process
        if 0 <= process.roster < self.max_rosters - 1 and process.state.is_bound and not actor.has_answered:
            for released in self._releasing(world[rank], self._obeyed(world, rank)):
                yield self._with(world, rank, released)

    def writing(self, world: World, rank: int) -> Iterator[World]:
        """Rosters that a member may write, whichever answers and joiners it has seen. The first writer wins.

        Answers come in the order of names, as the store lists them. Random schedules hand them over in any order.
        """
        actor, change = self._actors[world[rank]], len(world) - len(self.ranks) - 1
        if actor.process.roster != change or not actor.has_answered:
            return
        everyone = self.actors(world)
        answers = {a.member: a for other in everyone for a in other.answers if a.change == change}
        own = answers.pop(actor.name)
        asking = [Joining(member=other.name, change=change) for other in everyone if other.asked == change]
        for seen in _subsets(list(answers.values())):
            for joiners in _subsets(asking):
                ordered = tuple(sorted((own, *seen), key=attrgetter("member")))
                written = self._successor(world[-1], ordered, joiners)
                if written is not None:
                    yield self._tidy((*world, written))

    def obeying(self, world: World, rank: int) -> Iterator[World]:
        actor = self._actors[world[rank]]
        known = actor.asked if actor.process.roster == OUTSIDE else actor.process.roster
        if known is not None and 0 <= known < len(world) - len(self.ranks) - 1:
            yield self._with(world, rank, self._obeying(world[rank], world[len(self.ranks) + known + 1]))

    def asking(self, world: World, rank: int) -> Iterator[World]:
        """A new process asks to join the newest roster that it sees."""
        actor = self._actors[world[rank]]
        newest = len(world) - len(self.ranks) - 1
        if actor.process.roster == OUTSIDE and actor.asked is None and newest + 1 < self.max_rosters:
            yield self._with(world, rank, self._number(replace(actor, asked=newest)))

    def explore(self) -> set[World]:
        """Every world that can be reached, each of them checked."""
        reached, todo = {self.start}, [self.start]
        while todo:
            world = todo.pop()
            self.check(world)
            for rank in self.ranks:
                for following in self.moves(world, rank):
                    if following not in reached:
                        reached.add(following)
                        todo.append(following)
        return reached

    def check(self, world: World) -> None:
        """Samples count once, and whoever was not rolled back has applied the same sums in the same order."""
        numbers, rosters = world[: len(self.ranks)], world[len(self.ranks) :]
        for number in numbers:
            self._check_samples(number)
        for one, other in combinations(numbers, 2):
            self._check_pair(one, other, rosters)

    def check_ends(self, worlds: Collection[World], max_lost: int) -> int:
        """Whoever is lost for good in whichever world, the others come to an end. Returns the number of cases."""
        before, self.max_rosters = self.max_rosters, _ENOUGH_ROSTERS
        losses = list(chain.from_iterable(combinations(self.ranks, number) for number in range(max_lost + 1)))
        checked = set(worlds)
        for lost in losses:
            ending: set[World] = set()
            for start in worlds:
                world: World | None = start
                while world is not None and world not in ending:
                    ending.add(world)
                    world = self._next_without(world, frozenset(lost))
                    if world is not None and world not in checked:
                        self.check(world)
                        checked.add(world)
        self.max_rosters = before
        return len(losses) * len(worlds)

    def _next_without(self, world: World, lost: frozenset[int]) -> World | None:
        """What those who are left do next; None at the end."""
        unfinished, moves = self._outlook(world)
        if unfinished <= lost:
            return None
        following = next((move for rank, move in moves if rank not in lost), None)
        if following is None:
            is_short = self._num_together(world, lost) < self._rosters[world[-1]].num_stages
            assert is_short, f"nobody goes on: {self.actors(world)}, {self.rosters(world)}"
        return following

    def _outlook(self, world: World) -> tuple[frozenset[int], tuple[tuple[int, World], ...]]:
        """Those whom the newest roster names and who have not applied all steps; and what each process would do next.

        Whoever is lost, the first of these moves is made that is left. A new roster is only sought if nothing else is.
        """
        unfinished = self._unfinished(world)
        kinds = self._kinds
        moves: list[tuple[int, int, World]] = []
        for rank in self.ranks:
            possible = ((order, rank, move) for order, kind in enumerate(kinds) for move in kind(world, rank))
            moves += islice(possible, 1)
        return frozenset(unfinished), tuple((rank, move) for _, rank, move in sorted(moves))

    @property
    def _kinds(self) -> tuple[Callable[[World, int], Iterator[World]], ...]:
        """What members do, in the order in which they do it if nothing disturbs them."""
        return (self.training, self.obeying, self.writing, self.answering)

    def _unfinished(self, world: World) -> list[int]:
        newest = len(world) - len(self.ranks) - 1
        present = [(rank, self._actors[world[rank]].process) for rank in self._seated(world[-1])]
        return [rank for rank, process in present if process.roster != newest or not self._is_done(process)]

    def _obeyed(self, world: World, rank: int) -> int:
        """The roster that this process is under, as its number."""
        return world[len(self.ranks) + self._actors[world[rank]].process.roster]

    def _has_given_up(self, world: World, rank: int) -> bool:
        return False

    def _may_vote(self, actor: Actor, roster: Roster) -> bool:
        return True

    def _is_done(self, process: Process) -> bool:
        is_at_end = process.state.is_bound and process.state.num_applied == self.num_steps
        return process.has_state and process.is_settled and is_at_end

    def _num_together(self, world: World, lost: Collection[int]) -> int:
        """The least number of present members that a roster must seat: those who have lost nobody, and one more."""
        present = {rank for rank in self._seated(world[-1]) if rank not in lost and not self._has_given_up(world, rank)}
        names = {self._names[rank] for rank in present}
        named = [
            {answer.member, other}
            for actor in self.actors(world)
            for answer in actor.answers
            for other in answer.suspects
            if {answer.member, other} <= names
        ]
        apart = set().union(*named)
        return len(names - apart) + (1 if apart else 0)

    # What an actor becomes, as its number

    def _taking(self, own: int, roster: int, source: int) -> int:
        actor = self._actors[own]
        taken_over = acts.taken_over(actor.process, self._actors[source].process)
        return self._acting(actor, taken_over, self._rosters[roster])

    def _receiving(self, own: int, roster: int, source: int) -> int:
        actor, held = self._actors[own], self._actors[source].process.held
        assert held is not None
        return self._acting(actor, acts.received(actor.process, held), self._rosters[roster])

    def _preparing(self, own: int, roster: int, parts: tuple[Part, ...]) -> int:
        actor = self._actors[own]
        return self._acting(actor, acts.prepared(actor.process, parts), self._rosters[roster])

    def _committing(self, own: int, roster: int) -> int:
        actor, num_votes, obeyed = self._actors[own], len(self._voters(roster)), self._rosters[roster]
        return self._acting(actor, acts.committed(actor.process, obeyed, num_votes), obeyed)

    def _releasing(self, own: int, roster: int) -> list[int]:
        """The actor with each of the answers that it may give."""
        actor, replaced = self._actors[own], self._rosters[roster]
        suspected = [other for name, other in self._suspicions if name == actor.name and other in replaced.stages]
        given = [
            acts.released(actor.process, replaced, has_computed=has_computed, suspects=suspects)
            for has_computed in acts.may_have_computed(actor.process, replaced)
            for suspects in _subsets(suspected)
        ]
        return [
            self._number(replace(actor, process=process, answers=(*actor.answers, answer))) for process, answer in given
        ]

    def _obeying(self, own: int, roster: int) -> int:
        actor = self._actors[own]
        if actor.process.roster == OUTSIDE and actor.name not in self._stages(roster):
            return self._number(replace(actor, asked=None))  # it may ask again
        obeyed = self._rosters[roster]
        return self._acting(replace(actor, asked=None), acts.obeying(actor.process, obeyed, ()), obeyed)

    def _acting(self, actor: Actor, process: Process, roster: Roster) -> int:
        """The actor after it has begun its next step, contributed and voted, as far as it can."""
        process = acts.begun(process, self.num_steps)
        contributed = actor.contributed
        if process.computes:
            contributed |= {(process.attempt, acts.own_part(process, roster))}
        may_vote = process.has_voted and self._may_vote(actor, roster)
        votes = actor.votes | {process.attempt} if may_vote else actor.votes
        return self._number(replace(actor, process=process, contributed=contributed, votes=votes))

    def _successor(self, number: int, answers: tuple[Answer, ...], joiners: tuple[Joining, ...]) -> int | None:
        """The next roster by the members' own rule; None if it needs more members."""
        roster = self._rosters[number]
        try:
            new = successor(
                roster,
                answers,
                joiners=joiners,
                checkpoint_step=lambda: CHECKPOINT_STEP,
                num_grains=lambda step: NUM_GRAINS,
            )
        except ScheduleError:
            return None
        check_roster(roster, new, answers, joiners)
        return self._roster_number(new)

    def _check_samples(self, number: int) -> None:
        acts.check_samples(self._actors[number].process)

    def _check_pair(self, one: int, other: int, rosters: tuple[int, ...]) -> None:
        acts.check_agreement(
            self._actors[one].process, self._actors[other].process, [self._rosters[each] for each in rosters]
        )

    def _stages(self, number: int) -> dict[str, int]:
        return self._rosters[number].stages

    def _seated(self, number: int) -> list[int]:
        return [rank for rank, name in enumerate(self._names) if name in self._stages(number)]

    def _voters(self, number: int) -> list[int]:
        roster = self._rosters[number]
        return [self._names.index(seat.name) for seat in roster.seats[: roster.num_voters]]

    def _mates(self, number: int, stage: int) -> list[int]:
        return [self._names.index(name) for name in acts.peers(self._rosters[number], stage)]

    def _with(self, world: World, rank: int, number: int) -> World:
        return self._tidy((*world[:rank], number, *world[rank + 1 :]))

    def _tidy(self, world: World) -> World:
        """The world without messages that nobody will read any more, so that equal worlds are found equal."""
        numbers, rosters = world[: len(self.ranks)], world[len(self.ranks) :]
        first_read = tuple(map(min, *map(self._first_read, numbers, repeat(rosters))))
        return (*map(self._forgetting, numbers, repeat(first_read)), *rosters)

    def _first_read(self, number: int, rosters: tuple[int, ...]) -> tuple[int, ...]:
        """The first step of each roster that the actor will read messages about. The last one is not written yet."""
        process = self._actors[number].process
        steps = [_NEVER] * (len(rosters) + 1)
        if process.roster >= 0 and process.state.is_bound:
            steps[process.roster] = process.state.step
        for change, roster in enumerate(rosters):
            if process.roster in (change - 1, OUTSIDE) and process.name in self._stages(roster):
                steps[change] = 0  # it has not arrived yet
        return tuple(steps)

    def _forgetting(self, number: int, first_read: tuple[int, ...]) -> int:
        """The actor without messages about steps before the first that is read under each roster, and without answers
        about rosters that are replaced."""
        actor = self._actors[number]
        return self._number(
            replace(
                actor,
                contributed=frozenset(each for each in actor.contributed if each[0][1] >= first_read[each[0][0]]),
                votes=frozenset(each for each in actor.votes if each[1] >= first_read[each[0]]),
                answers=tuple(answer for answer in actor.answers if answer.change == len(first_read) - 2),
            )
        )

    def _number(self, actor: Actor) -> int:
        number = self._actor_numbers.setdefault(actor, len(self._actors))
        if number == len(self._actors):
            self._actors.append(actor)
            self._contributed.append(dict(actor.contributed))
        return number

    def _roster_number(self, roster: Roster) -> int:
        number = self._roster_numbers.setdefault(encode_record(roster), len(self._rosters))
        if number == len(self._rosters):
            self._rosters.append(roster)
        return number


def _subsets(items: Collection[Item]) -> Iterator[tuple[Item, ...]]:
    """All subsets, the largest first."""
    return chain.from_iterable(combinations(items, number) for number in range(len(items), -1, -1))
