"""A run as somebody sees it who looks at its folder alone."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from zooid.core.plans.plan import Plan
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.events import Event
from zooid.core.runs.roster import Roster

RunState = Literal[
    "not begun", "preparing", "listening", "training", "unattended", "interrupted", "stopped", "complete"
]
"""State of a run:

- `not begun`: the folder holds no run, or one without initial weights.
- `preparing`: a coordinator measures, plans or writes the initial weights.
- `listening`: it is not known yet whether the coordinator on another machine is alive.
- `training`: members train, and a coordinator supervises them.
- `unattended`: members train although their coordinator is lost.
- `interrupted`: nobody trains, and steps are left.
- `stopped`: a person has stopped the run with `zooid stop`, and steps are left.
- `complete`: all steps are done, or the job has stopped the run early.
"""
ENDED: tuple[RunState, ...] = ("interrupted", "stopped", "complete")
"""States in which nobody trains."""
assert set(ENDED) < set(get_args(RunState))


@dataclass(frozen=True)
class ObservedRun:
    """Everything that a run's folder tells at one moment."""

    store: str
    """URL of the run's folder."""
    state: RunState
    at_s: float
    """Unix time of the observation, on the observer's clock."""
    events: list[Event]
    """All events that count, from the beginning of the run."""
    num_earlier: int = 0
    """Number of events from before the present members, that is, before the run was last resumed."""
    first_roster: Roster | None = None
    """The first roster of the present members; None before they are started."""
    roster: Roster | None = None
    """The roster by which the present members train."""
    plan: Plan | None = None
    """The plan of the present members."""
    gone: frozenset[str] = frozenset()
    """Members of the roster whose processes are known to have ended although they did not say so."""
    saved_step: int | None = None
    """Step of the last complete checkpoint if nobody trains; None if somebody does, or if there is none."""
    ledger: Ledger = field(default_factory=Ledger)
    """Ledger of a checkpoint, if the run is so long that only a sample of its events was read."""
    ledger_step: int = 0
    """Step of that checkpoint."""
    num_steps: int | None = None
    """Number of steps of the whole run; None if it is not known."""
