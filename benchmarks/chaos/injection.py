"""Carries out the faults of a trial: each when its moment has come, and undone when its time is over."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.trials import Fault
from lab.attempts import Attempt
from lab.footprints import last_applied, read_footprints
from lab.namespaces import Member, Star, cut, mend
from lab.nursery import Nursery


@dataclass(frozen=True)
class Homes:
    """The star of namespaces, and which of them each member lives in."""

    lab: Star
    members: Mapping[str, Member]


class Injector:
    """Watches a run by the footprints of its members, and disturbs it."""

    def __init__(self, faults: Sequence[Fault], folder: Path, home: Nursery, homes: Homes | None) -> None:
        """`folder` is the one with the job file of the run."""
        self._waiting = list(faults)
        self._folder = folder
        self._home = home
        self._homes = homes
        self._undoing: list[tuple[float, Callable[[], None]]] = []
        """What undoes a fault, and when on the monotonic clock."""
        self.fired: list[tuple[Fault, int]] = []
        """Faults that have happened, with the process id of the coordinator of that time."""

    def poll(self, attempt: Attempt) -> None:
        """Do what is due."""
        now_s = time.monotonic()
        for due_s, undo in [each for each in self._undoing if each[0] <= now_s]:
            self._undoing.remove((due_s, undo))
            undo()
        if self._waiting:
            num_steps, since_s = last_applied(self._folder)
            fault = self._waiting[0]
            if num_steps > fault.after_step or (num_steps == fault.after_step and now_s >= since_s + fault.delay_s):
                self._try(fault, attempt)

    def end(self) -> None:
        """Undo what is not undone yet."""
        for _, undo in self._undoing:
            undo()
        self._undoing.clear()

    @property
    def missed(self) -> list[Fault]:
        """Faults that have not happened, since their process had ended or not yet begun to train."""
        return self._waiting

    def lost(self, attempt: Attempt) -> set[str]:
        """Members that the others may have had to go on without, under this coordinator."""
        return {fault.member for fault, pid in self.fired if pid == attempt.pid and fault.is_loss}

    def _try(self, fault: Fault, attempt: Attempt) -> None:
        """Carry the fault out, unless its victim is not training: faults while members start are another matter."""
        trained = {
            int(name.rpartition("-")[2])
            for name, lines in read_footprints(self._folder).items()
            if any(line.what == "applied" for line in lines)
        }
        at_work = {name: pid for pid, name in self._home.members().items() if pid in trained}
        if not at_work or (fault.member and fault.member not in at_work):
            return
        with suppress(ProcessLookupError):  # it has just ended by itself
            self._carry_out(fault, at_work.get(fault.member, attempt.pid))
            self._waiting.remove(fault)
            self.fired.append((fault, attempt.pid))

    def _carry_out(self, fault: Fault, pid: int) -> None:
        match fault.kind:
            case "kill" | "coordinator":
                os.kill(pid, signal.SIGKILL)
            case "stop" | "pause":
                os.kill(pid, signal.SIGSTOP)
                if fault.lasts_s is not None:
                    self._undo_later(fault.lasts_s, lambda: _go_on(pid))
            case "partition" | "blink":
                assert self._homes is not None
                lab, member = self._homes.lab, self._homes.members[fault.member]
                cut(lab, member)
                self._undo_later(fault.lasts_s or float("inf"), lambda: mend(lab, member))

    def _undo_later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undoing.append((time.monotonic() + seconds, undo))


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):  # it was ended meanwhile
        os.kill(pid, signal.SIGCONT)
