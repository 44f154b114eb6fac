"""Every order in which the members of a run may act while a planned change is carried out.

What members do besides, such as surveys, is that of the model without planned changes. A member goes on under a planned
roster as soon as it has seen the votes before it. That roster may never come into the store, or another one may.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.succession import planned
from tests.succession import process as acts
from tests.succession.model import Actor, Model, Shelved, World
from tests.succession.process import EXCLUDED, OUTSIDE, Process
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster


class ChangingModel(Model):
    """All worlds that can be reached from one roster, for which a change is planned."""

    def __init__(
        self, first: Roster, change: PlannedChange, *, num_steps: int, max_rosters: int, first_ready: int = 0
    ) -> None:
        """All members are ready for the change from the vote on the step `first_ready` on."""
        self._change = change
        self._first_ready = first_ready
        self._first_names = frozenset(first.stages)
        joiners = len(change.joiners(first))
        super().__init__(first, num_joiners=joiners, num_steps=num_steps, max_rosters=max_rosters)

    def moves(self, world: World, rank: int) -> Iterator[World]:
        yield from super().moves(world, rank)
        yield from self.confirming(world, rank)

    @property
    def _kinds(self) -> tuple[Callable[[World, int], Iterator[World]], ...]:
        return (self.training, self.confirming, self.obeying, self.writing, self.answering)

    def training(self, world: World, rank: int) -> Iterator[World]:
        actor = self._actors[world[rank]]
        if self._is_leaving(actor):
            return
        for following in super().training(world, rank):
            if actor.process.has_voted and actor.planned is not None:
                assert self._is_stored(world, actor), f"a step is committed under a roster that is not stored: {actor}"
            yield following

    def confirming(self, world: World, rank: int) -> Iterator[World]:
        """The first member of a planned roster writes it, if nobody has replaced the one before."""
        actor = self._actors[world[rank]]
        if self._has_to_write(actor):
            assert actor.planned is not None
            roster = self._rosters[actor.planned]
            if self._num_stored(world) == roster.change:
                self._check_seats(world, roster)
                number = self._acting(replace(actor, has_written=True), actor.process, roster)
                yield self._with((*world, actor.planned), rank, number)

    def answering(self, world: World, rank: int) -> Iterator[World]:
        actor = self._actors[world[rank]]
        process = actor.process
        if process.roster < 0:
            return
        if self._is_leaving(actor):
            if self._num_stored(world) == process.roster + 1:
                yield from super().answering(world, rank)
        elif self._is_guest(world, rank):
            yield self._with(world, rank, self._ending(world[rank]))
        elif actor.planned is None or self._is_stored(world, actor):
            yield from super().answering(world, rank)
        elif self._num_stored(world) == process.roster and not self._has_to_write(actor):
            for retreated in self._retreating(world[rank], world[-1]):
                yield self._with(world, rank, retreated)

    def writing(self, world: World, rank: int) -> Iterator[World]:
        if self._num_stored(world) < self.max_rosters:
            yield from super().writing(world, rank)

    def obeying(self, world: World, rank: int) -> Iterator[World]:
        actor = self._actors[world[rank]]
        process, num_stored = actor.process, self._num_stored(world)
        stored = world[len(self.ranks) :]
        if process.roster == OUTSIDE:
            hosts = self._change.change + 1
            if hosts < num_stored:
                yield self._with(world, rank, self._arriving(world[rank], stored[hosts]))
        elif process.roster < 0:
            return
        elif not self._is_leaving(actor) and actor.planned is not None and not self._is_stored(world, actor):
            if num_stored > process.roster:  # another roster has won
                retreated = self._retreating(world[rank], stored[process.roster - 1])[0]
                yield self._with(world, rank, self._obeying(retreated, stored[process.roster]))
        elif process.roster + 1 < num_stored:
            if self._is_guest(world, rank):
                yield self._with(world, rank, self._ending(world[rank]))
            else:
                yield self._with(world, rank, self._obeying(world[rank], stored[process.roster + 1]))

    def asking(self, world: World, rank: int) -> Iterator[World]:
        """Nobody asks: those who join are named in the planned change."""
        return iter(())

    def _check_seats(self, world: World, roster: Roster) -> None:
        """Whoever gets a seat by a plan has the state for it, unless it has given up."""
        seated = {seat.name for seat in (*roster.members, *roster.copies)}
        for actor in self.actors(world):
            process = actor.process if actor.shelved is None else actor.shelved.process
            if process.name in seated and process.roster != EXCLUDED:
                num_held = len(process.history) + (process.held is not None)
                assert process.has_state, f"a planned roster seats a process without state: {process}"
                assert num_held >= roster.resume_step, f"a planned roster seats a process that lacks a step: {process}"

    # What an actor becomes, as its number

    def _arriving(self, own: int, hosts: int) -> int:
        actor, roster = self._actors[own], self._rosters[hosts]
        if actor.name not in {seat.name for seat in roster.guests}:
            return self._ending(own)
        return self._acting(actor, planned.arrived(actor.process, roster), roster)

    def _taking(self, own: int, roster: int, source: int) -> int:
        actor, obeyed = self._actors[own], self._rosters[roster]
        if not obeyed.guests:
            return super()._taking(own, roster, source)
        return self._acting(actor, planned.hosted(actor.process, self._actors[source].process, obeyed), obeyed)

    def _committing(self, own: int, roster: int) -> int:
        actor, obeyed = self._actors[own], self._rosters[roster]
        process = acts.committed(actor.process, obeyed, len(self._voters(roster)))
        following = planned.following(obeyed, self._change, process, self._first_ready)
        if following is None or process.state.num_applied == self.num_steps:
            return self._acting(actor, process, obeyed)
        actor = replace(actor, planned=self._roster_number(following), has_written=False)
        if actor.name not in {seat.name for seat in following.seats}:
            return self._leaving(actor, process)
        return self._acting(actor, planned.switched(process, following), following)

    def _leaving(self, actor: Actor, process: Process) -> int:
        """It waits until the roster that leaves it out is in the store."""
        return self._number(replace(actor, process=process))

    def _retreating(self, own: int, before: int) -> list[int]:
        """It answers a survey of the roster before. What it did under the planned one, it keeps until it knows more."""
        actor, roster = self._actors[own], self._rosters[before]
        assert actor.planned is not None
        if actor.name not in roster.stages:
            return [self._ending(own)]  # it was a guest there
        process, answer = acts.released(planned.retreated(actor.process, roster), roster, has_computed=False)
        retreated = replace(actor, process=process, answers=(*actor.answers, answer), planned=None, has_written=False)
        attempted = self._rosters[actor.planned]
        shelved = [
            Shelved(actor.planned, *acts.released(actor.process, attempted, has_computed=has_computed))
            for has_computed in acts.may_have_computed(actor.process, attempted)
        ]
        return [self._number(replace(retreated, shelved=each)) for each in shelved]

    def _obeying(self, own: int, roster: int) -> int:
        actor, obeyed = self._actors[own], self._rosters[roster]
        if actor.process.roster < 0:
            return own
        shelved = actor.shelved
        actor = replace(actor, planned=None, has_written=False, shelved=None)
        if not obeyed.is_planned:
            return self._acting(actor, acts.obeying(actor.process, obeyed, ()), obeyed)
        if shelved is not None and shelved.roster == roster:
            return self._number(replace(actor, process=shelved.process, answers=(*actor.answers, shelved.answer)))
        process = planned.caught_up(actor.process, obeyed)
        if process.roster < 0:
            return self._number(replace(actor, process=process))
        process, answer = acts.released(process, obeyed, has_computed=False)
        return self._number(replace(actor, process=process, answers=(*actor.answers, answer)))

    def _ending(self, own: int) -> int:
        actor = self._actors[own]
        return self._number(
            replace(actor, process=planned.ended(actor.process), planned=None, has_written=False, shelved=None)
        )

    # Where an actor stands

    def _num_stored(self, world: World) -> int:
        return len(world) - len(self.ranks)

    def _is_leaving(self, actor: Actor) -> bool:
        return actor.planned is not None and self._rosters[actor.planned].change != actor.process.roster

    def _is_stored(self, world: World, actor: Actor) -> bool:
        """Whether the planned roster that the actor is under is in the store."""
        place = len(self.ranks) + actor.process.roster
        return place < len(world) and world[place] == actor.planned

    def _has_to_write(self, actor: Actor) -> bool:
        return (
            actor.planned is not None
            and not self._is_leaving(actor)
            and not actor.has_written
            and self._rosters[actor.planned].seats[0].name == actor.name
        )

    def _is_guest(self, world: World, rank: int) -> bool:
        """Whether it is a guest of its roster. Guests do not answer surveys."""
        return self._names[rank] not in self._stages(self._obeyed(world, rank))

    def _has_given_up(self, world: World, rank: int) -> bool:
        """Whether a process that joined had no seat yet, as far as the store says, when it had to answer a survey."""
        joins = self._names[rank] not in self._first_names
        return joins and self._actors[world[rank]].process.roster == EXCLUDED

    def _may_vote(self, actor: Actor, roster: Roster) -> bool:
        return not self._has_to_write(actor)

    def _obeyed(self, world: World, rank: int) -> int:
        actor = self._actors[world[rank]]
        if actor.planned is not None and not self._is_leaving(actor):
            return actor.planned
        return super()._obeyed(world, rank)

    def _unfinished(self, world: World) -> list[int]:
        """Guests and those who leave have to come to an end as well."""
        newest = self._num_stored(world) - 1
        present = [(rank, self._actors[world[rank]].process) for rank in self.ranks]
        return [
            rank
            for rank, process in present
            if process.roster >= 0 and (process.roster != newest or not self._is_done(process))
        ]

    def _first_read(self, number: int, rosters: tuple[int, ...]) -> tuple[int, ...]:
        process = self._actors[number].process
        steps = list(super()._first_read(number, rosters))
        if process.roster == OUTSIDE:
            return (0,) * len(steps)
        if 0 <= process.roster < len(rosters):
            steps[process.roster + 1] = 0  # it may go on under a planned one
        return tuple(steps)
