"""The first member's judgement, before every step, of whether the limits of the run allow another one."""

import logging
from collections.abc import Callable

from zooid.core.errors import ObjectNotFound, RecordError, StoreUnavailable
from zooid.core.runs import keys
from zooid.core.runs.allowance import EXIT_S, Allowance
from zooid.schedule.step_window import StepWindow
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record

logger = logging.getLogger(__name__)


class LimitWatch:
    """Knows the limits and the cost of the run from the store, and its pace from the member's own votes."""

    def __init__(self, store: ObjectStore, claim: int) -> None:
        self._store = store
        self._key = keys.allowance(claim)
        self._allowance: Allowance | None = None
        self._window = StepWindow()
        self._checkpoint_s: Callable[[], float] = lambda: 0.0

    def begin(self, checkpoint_s: Callable[[], float], now_s: float) -> None:
        """Begin under another roster. `checkpoint_s` returns the time that a checkpoint takes."""
        self._checkpoint_s = checkpoint_s
        self._window = StepWindow()
        self._window.add(now_s)

    def look(self) -> None:
        """Read the limits and the cost, which the coordinator renews as long as it lives."""
        try:
            self._allowance = read_record(self._store, self._key, Allowance)
        except ObjectNotFound:
            return
        except (RecordError, StoreUnavailable) as error:
            logger.warning("the limits of the run cannot be read, and stay as they were: %s", error)

    def vote(self, now_s: float) -> str:
        """Note that a step is about to be committed, and say why it must be the last; empty if it need not."""
        self._window.add(now_s)
        return self.reason(now_s)

    def reason(self, now_s: float) -> str:
        """Say why no further step may begin now; empty if one may."""
        if self._allowance is None:
            return ""
        step_s = self._window.next_step_s or 0.0
        return self._allowance.reason_to_stop(now_s, step_s, self._checkpoint_s() + EXIT_S)
