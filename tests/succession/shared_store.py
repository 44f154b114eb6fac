"""What the processes of a random schedule write to and read from the store."""

from dataclasses import dataclass, field

from tests.succession.process import Sums
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.roster import Answer, Joining, Roster, StepNumbers


@dataclass
class Store:
    """What all members can read. Rosters and checkpoints are create-only."""

    rosters: list[Roster]
    answers: dict[int, dict[str, Answer]] = field(default_factory=dict)
    joining: dict[int, dict[str, Joining]] = field(default_factory=dict)
    checkpoints: dict[int, tuple[tuple[Sums, StepNumbers], ...]] = field(default_factory=lambda: {0: ()})

    def roster(self, change: int) -> Roster | None:
        return self.rosters[change] if change < len(self.rosters) else None

    def create_roster(self, roster: Roster) -> Roster:
        """The roster that counts: this one, or the one that came before it."""
        if len(self.rosters) == roster.change:
            earlier = {name for each in self.rosters[:-1] for name in each.stages} - self.rosters[-1].stages.keys()
            assert not earlier & roster.stages.keys(), "a name is used twice"
            self.rosters.append(decode_record(encode_record(roster), Roster, "roster"))
        return self.rosters[roster.change]

    def put_answer(self, answer: Answer) -> None:
        written = decode_record(encode_record(answer), Answer, "answer")
        self.answers.setdefault(answer.change, {})[answer.member] = written

    def put_joining(self, joining: Joining) -> None:
        written = decode_record(encode_record(joining), Joining, "joining")
        self.joining.setdefault(joining.change, {})[joining.member] = written

    def create_checkpoint(self, history: tuple[tuple[Sums, StepNumbers], ...]) -> None:
        self.checkpoints.setdefault(len(history), history)

    def read_answers(self, change: int) -> list[Answer]:
        return list(self.answers.get(change, {}).values())

    def read_joining(self, change: int) -> list[Joining]:
        return list(self.joining.get(change, {}).values())
