"""A member of a random schedule: a process with its inbox."""

from dataclasses import dataclass, field

from tests.succession.network import TIMEOUT_S, Endpoint
from tests.succession.process import Attempt, Part, Process, Sums

NUM_STEPS = 6


@dataclass(kw_only=True)
class Member(Endpoint):
    """A process, what it has received, and what has become of it."""

    process: Process
    moved_s: float = 0.0
    """When it last got on in its steps."""
    answered: int = -1
    """The newest roster that it has answered a survey about."""
    answered_s: float = 0.0
    patience_s: float = TIMEOUT_S
    """How long it waits for answers before it writes the next roster itself."""
    asked: int | None = None
    lost: set[str] = field(default_factory=set)
    """Members that it has lost its connection to, as far as it has noticed."""
    num_saved: int = 0
    """Number of steps of the last checkpoint that it has written its part of."""
    parts: dict[Attempt, dict[str, Part]] = field(default_factory=dict)
    votes: dict[Attempt, dict[str, int]] = field(default_factory=dict)
    """Who has voted, and which checkpoint it had written its part of."""
    states: dict[int, list[Process]] = field(default_factory=dict)
    gradients: dict[Attempt, Sums] = field(default_factory=dict)
    spoken: set[tuple[str, Attempt]] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def is_active(self) -> bool:
        return self.fate == "here" and self.process.roster >= 0

    @property
    def is_done(self) -> bool:
        process = self.process
        has_all = process.has_state and process.is_settled and process.state.num_applied == NUM_STEPS
        return has_all and process.state.is_bound
