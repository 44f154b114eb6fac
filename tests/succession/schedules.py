"""Runs in which messages, answers and rosters take random times, and members vanish, stall, are cut off and join.

A schedule has a disturbed part, in which anything may happen, and a calm one, in which the run has to end.
"""

import random
from collections.abc import Callable

from tests.succession import process as acts
from tests.succession.member import NUM_STEPS, Member
from tests.succession.network import TIMEOUT_S, Network
from tests.succession.process import NUM_GRAINS, OUTSIDE, Attempt, Process
from tests.succession.rosters import check_roster, first_roster
from tests.succession.shared_store import Store
from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Answer, Joining, Roster
from zooid.schedule.step_state import Phase, StepState
from zooid.schedule.succession import successor

LAYOUTS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (2, 1, ()),
    (1, 2, (0, 1)),
    (2, 2, ()),
    (2, 2, (0, 1)),
    (3, 2, ()),
    (4, 1, ()),
    (1, 3, (1,)),
)
"""Replicas, stages, and the stages of copies in the first roster."""


class Schedule(Network):
    """One run, from its first roster to its end."""

    def __init__(self, first: Roster, chance: random.Random) -> None:
        super().__init__(chance)
        self.store = Store([first])
        self.happened: set[str] = set()
        self.members: dict[str, Member] = {}
        self._known_peers: dict[tuple[int, int], list[str]] = {}
        self._left: list[Process] = []
        """Members that a roster has left out, as they were before."""
        self._parted: set[frozenset[str]] = set()
        """Pairs of members between which nothing arrives any more."""
        for seat in first.seats:
            self._add(Member(process=Process(seat.name, StepState.resumed(0), stage=seat.stage)))
        self._plan_disturbances()

    def run(self) -> str:
        """Let everything happen, and say in a word how it ended."""
        for member in list(self.members.values()):
            self._act(member)
        while not self._has_ended():
            self.next_event()()
        if not any(member.is_active for member in self.members.values()):
            disturbed = self.happened & {"lost", "cut off", "stalled", "parted"}
            assert disturbed, "too few members, although none was disturbed"
            return "too few"
        rulings = {roster.ruling.kind for roster in self.store.rosters if roster.ruling is not None}
        return "rolled back" if "rolled_back" in rulings else "kept" if rulings else "one roster"

    def _has_ended(self) -> bool:
        newest = len(self.store.rosters) - 1
        return all(
            member.is_done and member.process.roster == newest for member in self.members.values() if member.is_active
        )

    # Chance

    def _plan_disturbances(self) -> None:
        chance, names = self.chance, list(self.members)
        for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
            self.at(chance.uniform(0, self.calm_s), lambda: self._disturb("lost"))
        for _ in range(chance.choice((0, 0, 1, 2, 3))):
            self.at(chance.uniform(0, self.calm_s), lambda: self._disturb("cut off"))
        for _ in range(chance.choice((0, 0, 1, 2))):
            self.at(chance.uniform(0, self.calm_s), lambda: self._disturb("stalled"))
        for _ in range(chance.choice((0, 1, 2))):
            self.at(chance.uniform(0, self.calm_s), lambda: self._disturb("suspected"))
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            self.at(chance.uniform(0, self.calm_s), self._part)
        for number in range(chance.choice((0, 0, 1, 2, 3))):
            joiner = Process(f"j{number}", StepState.resumed(0).release(), OUTSIDE, has_state=False)
            self.at(chance.uniform(0, self.calm_s), lambda joiner=joiner: self._add(Member(process=joiner)))  # type: ignore[misc]
        if chance.random() < 0.3:
            name = chance.choice(names)  # somebody asks to join by a name that is, or was, a member's
            self.at(chance.uniform(0, self.calm_s), lambda: self.store.put_joining(self._asking(name)))

    def _disturb(self, how: str) -> None:
        active = [member for member in self.members.values() if member.is_active]
        if not active:
            return
        self.happened.add(how)
        for member in self.chance.sample(active, 1 if how != "cut off" else self.chance.randint(1, len(active))):
            until_s = self.now_s + self.chance.uniform(0, 3 * TIMEOUT_S)
            if how == "lost":
                member.fate = "lost"
            elif how == "cut off":
                member.cut_until_s = until_s
            elif how == "stalled":
                member.stalled_until_s = until_s
            else:
                self._answer(member)

    def _part(self) -> None:
        """The connection between two members that live breaks for good."""
        active = [member.name for member in self.members.values() if member.is_active]
        if len(active) > 1:
            self.happened.add("parted")
            self._parted.add(frozenset(self.chance.sample(active, 2)))

    # What members do

    def _add(self, member: Member) -> None:
        self.members[member.name] = member
        member.moved_s = self.now_s
        self._watch(member)

    def _roster_of(self, member: Member) -> Roster:
        roster = self.store.roster(member.process.roster)
        assert roster is not None
        return roster

    def _tell(self, member: Member, names: list[str], tell: Callable[[Member], object]) -> None:
        def deliver(other: Member) -> None:
            tell(other)
            self._act(other)

        reached = [name for name in names if name in self.members and {name, member.name} not in self._parted]
        self.send(member, [self.members[name] for name in reached], deliver)

    def _peers(self, roster: Roster, stage: int) -> list[str]:
        key = (roster.change, stage)
        if key not in self._known_peers:
            self._known_peers[key] = acts.peers(roster, stage)
        return self._known_peers[key]

    def _act(self, member: Member) -> None:
        """Whatever the member can do in its steps now."""
        if not member.is_active:
            return
        roster = self._roster_of(member)
        while True:
            member.process = acts.begun(member.process, NUM_STEPS)
            self._speak(member, roster)
            following = self._next_in_step(member, roster)
            if following is None:
                return
            member.process, member.moved_s = following, self.now_s
            self._check(member)

    def _speak(self, member: Member, roster: Roster) -> None:
        process, name, attempt = member.process, member.name, member.process.attempt
        if process.computes and ("grains", attempt) not in member.spoken:
            member.spoken.add(("grains", attempt))
            self.when_awake(member, self.chance.uniform(0.5, 3.0), lambda: self._contribute(member, roster, attempt))
        if process.has_voted and ("vote", attempt) not in member.spoken:
            member.spoken.add(("vote", attempt))
            saved = member.num_saved
            everyone = [seat.name for seat in roster.seats]
            self._tell(member, everyone, lambda other: other.votes.setdefault(attempt, {}).update({name: saved}))

    def _contribute(self, member: Member, roster: Roster, attempt: Attempt) -> None:
        """The member has computed its grains, unless it has answered a survey in the meantime."""
        process, name = member.process, member.name
        if process.computes and process.attempt == attempt:
            part = acts.own_part(process, roster)
            member.spoken.add(("part", attempt))
            mates = self._peers(roster, process.stage)
            self._tell(member, mates, lambda other: other.parts.setdefault(attempt, {}).update({name: part}))

    def _next_in_step(self, member: Member, roster: Roster) -> Process | None:
        process = member.process
        if not process.state.is_bound:
            return None
        if not process.has_state:
            sources = member.states.get(process.roster, [])
            if not sources:
                return None
            self.happened.add("state handed over")
            return acts.taken_over(process, self.chance.choice(sources))
        if process.lacks_gradients:
            held = member.gradients.get(process.attempt)
            return acts.received(process, held) if held is not None else None
        if process.computes:
            parts = member.parts.get(process.attempt, {})
            is_complete = parts.keys() >= set(self._peers(roster, process.stage))
            return acts.prepared(process, parts.values()) if is_complete else None
        votes = member.votes.get(process.attempt, {})
        voters = [seat.name for seat in roster.seats[: roster.num_voters]]
        if not process.has_voted or not votes.keys() >= set(voters):
            return None
        committed = acts.committed(process, roster, len(voters))
        self._save(member, committed, roster, {votes[name] for name in voters})
        return committed

    def _save(self, member: Member, process: Process, roster: Roster, saved: set[int]) -> None:
        """Checkpoints are written beside the training; one is complete when all have said that they wrote their part.
        An excluded member may complete one late."""
        num_steps = process.state.num_applied
        if num_steps % 2 == 0:
            member.num_saved = num_steps
        if len(saved) == 1 and (step := saved.pop()) > 0 and roster.members[0].name == member.name:
            history = process.history[:step]
            self.request(member, lambda: self.store.create_checkpoint(history), lambda _: None)

    def _watch(self, member: Member) -> None:
        """Look around once in a while: for a time-out, for a newer roster, for processes that ask to join."""
        if member.fate != "here":
            return
        change = member.asked if member.process.roster == OUTSIDE else member.process.roster
        if change is None:
            self.request(member, lambda: len(self.store.rosters) - 1, lambda newest: self._ask(member, newest))
        else:
            self.request(
                member,
                lambda: (self.store.roster(change + 1), self.store.read_joining(change)),
                lambda seen: self._see(member, change, *seen),
            )
        is_late = self.now_s - member.moved_s > TIMEOUT_S and not member.is_done
        if member.is_active and is_late:
            self._answer(member)
        self.when_awake(member, self.chance.uniform(1, 4), lambda: self._watch(member))

    def _see(self, member: Member, change: int, following: Roster | None, joining: list[Joining]) -> None:
        known = member.asked if member.process.roster == OUTSIDE else member.process.roster
        if member.fate != "here" or known != change:
            return
        if following is not None:
            self._obey(member, following)
        elif joining and member.is_active and member.name == self._roster_of(member).members[0].name:
            roster = self._roster_of(member)
            if any(each.member not in roster.stages and each.member not in roster.former for each in joining):
                self._answer(member)

    def _ask(self, member: Member, newest: int) -> None:
        if member.process.roster == OUTSIDE and member.asked is None:
            member.asked = newest
            joining = Joining(member=member.name, change=newest)
            self.request(member, lambda: self.store.put_joining(joining), lambda _: None)

    def _asking(self, name: str) -> Joining:
        return Joining(member=name, change=len(self.store.rosters) - 1)

    def _answer(self, member: Member) -> None:
        """Answer, tell the others of the survey, and look for the answers of the others."""
        roster = self._roster_of(member) if member.is_active else None
        if roster is None or member.answered >= roster.change:
            return
        member.answered = roster.change
        member.process, answer = acts.released(
            member.process,
            roster,
            has_computed=self._has_computed(member, roster),
            suspects=self._noticed(member, roster),
        )
        member.answered_s = self.now_s
        member.patience_s = self.chance.choice((0.5, 2.0, TIMEOUT_S, TIMEOUT_S))
        change = roster.change
        self.request(member, lambda: self.store.put_answer(answer), lambda _: None)
        others = [seat.name for seat in roster.seats if seat.name != member.name]
        self._tell(member, others, lambda other: self._answer(other) if other.process.roster == change else None)
        self.when_awake(member, self.delay_s(), lambda: self._look(member, change))

    def _has_computed(self, member: Member, roster: Roster) -> bool:
        """Whether its pipeline has computed its grains of the step under way, as far as that is open.

        A member that has contributed may still lack a message to or from a neighbour. One that has not may be about to.
        """
        if not any(acts.may_have_computed(member.process, roster)):
            return False
        has_contributed = ("part", member.process.attempt) in member.spoken
        return self.chance.random() < (0.8 if has_contributed else 0.3)

    def _noticed(self, member: Member, roster: Roster) -> tuple[str, ...]:
        """Members that it has lost, as far as it has noticed. It does not forget them."""
        is_cut_off = member.cut_until_s > self.now_s
        for other in (self.members[name] for name in roster.stages if name != member.name):
            is_silent = other.fate != "here" or max(other.cut_until_s, other.stalled_until_s) > self.now_s
            is_parted = {member.name, other.name} in self._parted
            if (is_cut_off or is_silent or is_parted) and self.chance.random() < (0.7 if is_parted else 0.3):
                member.lost.add(other.name)
        return tuple(sorted(member.lost))

    def _look(self, member: Member, change: int) -> None:
        if member.is_active and member.process.roster == change:
            self.request(
                member,
                lambda: (self.store.roster(change + 1), self.store.read_answers(change)),
                lambda seen: self._judge(member, change, *seen),
            )
            self.when_awake(member, self.chance.uniform(0.3, 1.5), lambda: self._look(member, change))

    def _judge(self, member: Member, change: int, following: Roster | None, answers: list[Answer]) -> None:
        """Obey the next roster, or write it if nobody else will answer."""
        if not member.is_active or member.process.roster != change:
            return
        if following is not None:
            self._obey(member, following)
            return
        roster, waited_s = self._roster_of(member), self.now_s - member.answered_s
        names = {answer.member for answer in answers}
        if member.name not in names or (names < roster.stages.keys() and waited_s < member.patience_s):
            return
        joiners = self.store.read_joining(change)
        seen = answers * 2 if self.chance.random() < 0.1 else self.chance.sample(answers, len(answers))
        try:
            new = successor(
                roster,
                seen,
                joiners=joiners,
                checkpoint_step=lambda: max(self.store.checkpoints),
                num_grains=lambda step: NUM_GRAINS,
            )
        except ScheduleError:
            if waited_s > 3 * TIMEOUT_S:
                member.fate = "too few"
            return
        check_roster(roster, new, answers, joiners)
        if names - new.stages.keys():
            self.happened.add("answered and left out")
        self.request(member, lambda: self._create(new), lambda found: self._obey(member, found))

    def _create(self, roster: Roster) -> Roster:
        found = self.store.create_roster(roster)
        if found != roster:
            self.happened.add("rival rosters")
        if roster.ruling is not None:
            self.happened.add(roster.ruling.kind)
        return found

    def _obey(self, member: Member, roster: Roster) -> None:
        known = member.asked if member.process.roster == OUTSIDE else member.process.roster
        if member.fate != "here" or known != roster.change - 1:
            return
        if member.process.roster == OUTSIDE and member.name in roster.stages:
            self.happened.add("joined")
        if member.name not in roster.stages:
            if member.process.roster == OUTSIDE:
                member.asked = None  # it asks again
            else:
                self._left.append(member.process)
                member.fate = "left out"
            return
        before = self.store.roster(member.process.roster) if member.process.roster >= 0 else None
        member.process = acts.obeying(member.process, roster, self.store.checkpoints.get(roster.resume_step, ()))
        if member.process.kept:
            assert before is not None
            has_kept_before = before.first_computed == roster.first_computed and acts.keeps_sums(member.process, before)
            self.happened.update(("sums kept", "sums kept twice") if has_kept_before else ("sums kept",))
        member.moved_s, member.num_saved = self.now_s, 0
        self._check(member)
        self._hand_over(member, roster)
        self._act(member)

    def _hand_over(self, member: Member, roster: Roster) -> None:
        """Send gradients and state to those of its stage who may lack them."""
        process = member.process
        if not process.has_state:
            return
        others = [name for name in self._peers(roster, process.stage) if name != member.name]
        held = process.held
        if held is not None and process.state.phase is Phase.PREPARED:
            self._tell(member, others, lambda other: other.gradients.update({process.attempt: held}))
        new = [name for name in others if name in roster.newcomers]
        self._tell(member, new, lambda other: other.states.setdefault(process.roster, []).append(process))

    def _check(self, member: Member) -> None:
        acts.check_samples(member.process)
        for other in (*(each.process for each in self.members.values()), *self._left):
            acts.check_agreement(member.process, other, self.store.rosters)


def run_schedule(number: int, seed: int) -> tuple[str, set[str]]:
    """Run the schedule of this number; layouts take turns. Returns how it ended, and what happened in it."""
    chance = random.Random(f"{seed} {number}")
    num_replicas, num_stages, copies = LAYOUTS[number % len(LAYOUTS)]
    schedule = Schedule(first_roster(num_replicas, num_stages, copies), chance)
    return schedule.run(), schedule.happened
