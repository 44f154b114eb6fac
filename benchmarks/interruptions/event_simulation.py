"""One run with random losses, event by event: what the closed form of the predictor averages over.

Every seat is lost at random moments, also while its member starts. Steps are discrete: a member joins when a step
begins, is a guest for one step, and then takes its seat. A checkpoint counts once it is written.
"""

import random
from dataclasses import dataclass, field

from zooid.predictor.losses.availability import SeatRisk
from zooid.predictor.losses.handovers import overlap_s
from zooid.predictor.losses.run_losses import RunRisk
from zooid.schedule.successor_lead import successor_lead_s


@dataclass(frozen=True)
class SimulatedRun:
    """What happened in one simulated run."""

    run_s: float
    num_losses: int
    num_rollbacks: int
    num_handovers: int
    lives_s: tuple[tuple[float, ...], ...]
    """Billed seconds of every member that held, or was to hold, each seat."""


@dataclass
class _Seat:
    """One seat with the member that holds it, and the one that starts for it."""

    risk: SeatRisk
    stage: int
    next_loss_s: float
    held: bool = False
    launched_s: float = 0.0
    """Launch of the member that holds the seat."""
    pending_s: float | None = 0.0
    """Launch of the member that is to hold it next."""
    is_guest: bool = False
    lives_s: list[float] = field(default_factory=list)

    @property
    def ready_s(self) -> float:
        """When somebody holds the seat, or could."""
        if self.held:
            return 0.0
        return (self.pending_s or 0.0) + self.risk.startup_s


class _Run:
    def __init__(self, risk: RunRisk, random_numbers: random.Random) -> None:
        self.risk = risk
        self.random = random_numbers
        self.seats = [
            _Seat(seat, stage, self._time_to_loss(seat)) for stage, seats in enumerate(risk.stages) for seat in seats
        ]
        self.now_s = 0.0
        self.done = self.saved = 0
        self.saved_at_s = 0.0
        self.writing: tuple[int, float] | None = None
        self.num_losses = self.num_rollbacks = self.num_handovers = 0
        undisturbed_s = risk.startup_s + risk.num_steps * risk.step_s
        self.is_limited = [
            seat.risk.lifetime_s is not None and undisturbed_s > seat.risk.lifetime_s for seat in self.seats
        ]

    def _successor_s(self, seat: _Seat) -> float:
        """When the successor of the member that holds a seat is started."""
        assert seat.risk.lifetime_s is not None
        has_joined = self.num_handovers or any(other.launched_s > 0 for other in self.seats if other.held)
        joining_s = overlap_s(seat.risk, self.risk.step_s) if has_joined else 0.0
        return seat.launched_s + seat.risk.lifetime_s - successor_lead_s(seat.risk.lifetime_s, joining_s)

    def _time_to_loss(self, seat: SeatRisk) -> float:
        return self.random.expovariate(seat.losses_per_s) if seat.losses_per_s else float("inf")

    def simulate(self) -> SimulatedRun:
        self._start()
        while True:
            while self.done < self.risk.num_steps:
                self._advance()
            if self._save_last():
                break
        for seat in self.seats:
            if seat.held:
                seat.lives_s.append(self.now_s - seat.launched_s)
            if seat.pending_s is not None and seat.pending_s < self.now_s:
                seat.lives_s.append(self.now_s - seat.pending_s)
        return SimulatedRun(
            self.now_s,
            self.num_losses,
            self.num_rollbacks,
            self.num_handovers,
            tuple(tuple(seat.lives_s) for seat in self.seats),
        )

    def _start(self) -> None:
        while True:
            ready_s = max(self.risk.startup_s, *(seat.ready_s for seat in self.seats))
            seat = self._next_lost()
            if seat.next_loss_s >= ready_s:
                break
            self._lose(seat)
        self.now_s = self.saved_at_s = ready_s
        for seat in self.seats:
            self._take_seat(seat)

    def _next_lost(self) -> _Seat:
        return min(self.seats, key=lambda seat: seat.next_loss_s)

    def _lose(self, seat: _Seat) -> bool:
        """Lose the member of a seat, and return whether it was in the roster."""
        at_s = seat.next_loss_s
        self.num_losses += 1
        seat.next_loss_s = at_s + self._time_to_loss(seat.risk)
        was_held, seat.held, seat.is_guest = seat.held, False, False
        if was_held:
            seat.lives_s.append(at_s - seat.launched_s)
            seat.pending_s = at_s + self.risk.loss_pause_s if seat.pending_s is None else seat.pending_s
        else:
            assert seat.pending_s is not None
            seat.lives_s.append(max(0.0, at_s - seat.pending_s))
            seat.pending_s = max(at_s, seat.pending_s)
        return was_held

    def _take_seat(self, seat: _Seat) -> None:
        if seat.held:
            seat.lives_s.append(self.now_s - seat.launched_s)
            self.num_handovers += 1
        assert seat.pending_s is not None
        seat.held, seat.is_guest, seat.launched_s, seat.pending_s = True, False, seat.pending_s, None

    def _slowdown(self) -> float:
        holders = [0] * len(self.risk.stages)
        for seat in self.seats:
            holders[seat.stage] += seat.held
        full, now = self.risk.num_replicas, min(self.risk.num_replicas, *holders)
        return 1.0 if now == full else self.risk.slowdown * (full - 1) / now

    def _advance(self) -> None:
        """Run one step, or as many as nothing happens in."""
        risk = self.risk
        pause_s = self._change_roster()
        timing = risk.checkpoints
        if self.writing is not None and self.writing[1] <= self.now_s:
            self.saved, self.writing = self.writing[0], None
        is_due = timing.interval_s is not None and self.now_s - self.saved_at_s >= timing.interval_s
        if is_due and self.writing is None and self.done > self.saved:
            self.saved_at_s = self.now_s + timing.pause_s
            self.writing = (self.done, self.saved_at_s + timing.write_s)
            pause_s += timing.pause_s
        step_s = risk.step_s * self._slowdown()
        if not pause_s and not any(seat.is_guest for seat in self.seats):
            free = int(min(risk.num_steps - self.done, (self._next_event_s() - self.now_s) // step_s))
            if free > 0:
                self.done += free
                self.now_s += free * step_s
                return
        if self._pass(pause_s + step_s, step_s):
            self.done += 1

    def _change_roster(self) -> float:
        """Give guests their seats, and invite whoever has started; return the pause."""
        guests = [seat for seat in self.seats if seat.is_guest]
        for seat in guests:
            self._take_seat(seat)
        for seat, is_limited in zip(self.seats, self.is_limited, strict=True):
            if seat.held and seat.pending_s is None and is_limited:
                launch_s = self._successor_s(seat)
                seat.pending_s = launch_s if launch_s <= self.now_s else None
            if seat.pending_s is not None and seat.pending_s + seat.risk.startup_s <= self.now_s:
                seat.is_guest = True
        return self.risk.change_pause_s if guests else 0.0

    def _next_event_s(self) -> float:
        moments = [self._next_lost().next_loss_s]
        timing = self.risk.checkpoints
        if timing.interval_s is not None:
            moments.append(max(self.saved_at_s + timing.interval_s, self.writing[1] if self.writing else 0.0))
        for seat, is_limited in zip(self.seats, self.is_limited, strict=True):
            if seat.pending_s is not None:
                moments.append(seat.pending_s + seat.risk.startup_s)
            elif is_limited:
                moments.append(self._successor_s(seat))
        return min(moments)

    def _pass(self, seconds: float, step_s: float = 0.0) -> bool:
        """Let time pass with the losses in it; return False if one of them has cost a rollback."""
        risk, end_s, slowdown = self.risk, self.now_s + seconds, self._slowdown()
        while (seat := self._next_lost()).next_loss_s < end_s:
            at_s = seat.next_loss_s
            holders = [other for other in self.seats if other.stage == seat.stage and other.held]
            was_computing = seat.held and seat.risk.work > 0 and holders[0] is seat
            if not self._lose(seat):
                continue
            if not risk.survives_losses or len(holders) == 1:
                self._roll_back(at_s)
                return False
            if risk.num_replicas == 1 and was_computing:
                end_s = at_s + step_s
            elif step_s:
                before, slowdown = slowdown, self._slowdown()
                end_s += (slowdown - before) * risk.step_s
            end_s += risk.loss_pause_s
        self.now_s = end_s
        return True

    def _roll_back(self, at_s: float) -> None:
        risk = self.risk
        self.num_rollbacks += 1
        if self.writing is not None and self.writing[1] <= at_s:
            self.saved = self.writing[0]
        begin_s = at_s + risk.loss_pause_s
        if len(risk.stages) == 1:
            begin_s = at_s
            self._start_all_again(at_s)
        while True:
            # everybody waits until each stage has somebody, and then reads the checkpoint
            together_s = max(begin_s, *(self._stage_ready_s(stage) for stage in range(len(risk.stages))))
            seat = self._next_lost()
            if seat.next_loss_s >= together_s + risk.checkpoints.read_s:
                break
            at_s = seat.next_loss_s
            self._lose(seat)
            if self._stage_ready_s(seat.stage) > at_s:
                begin_s = max(begin_s, at_s + risk.loss_pause_s)
        self.now_s = self.saved_at_s = together_s + risk.checkpoints.read_s
        self.done, self.writing = self.saved, None
        for each in self.seats:
            each.is_guest = False
            if not each.held and each.ready_s <= together_s:
                self._take_seat(each)

    def _start_all_again(self, at_s: float) -> None:
        """End the members that still start, and start all at this moment, since nobody else is left."""
        for seat in self.seats:
            if seat.pending_s is not None and seat.pending_s < at_s:
                seat.lives_s.append(at_s - seat.pending_s)
            if seat.held:  # of a run that ends with any of its members
                seat.lives_s.append(at_s - seat.launched_s)
            seat.held, seat.pending_s = False, at_s

    def _stage_ready_s(self, stage: int) -> float:
        ready = [seat.ready_s for seat in self.seats if seat.stage == stage]
        is_complete = not self.risk.survives_losses or len(self.risk.stages) == 1
        return max(ready) if is_complete else min(ready)

    def _save_last(self) -> bool:
        """Write the last checkpoint; return False if a loss meanwhile has cost a rollback."""
        timing = self.risk.checkpoints
        waiting_s = max(0.0, self.writing[1] - self.now_s) if self.writing is not None else 0.0
        return self._pass(waiting_s + timing.pause_s + timing.write_s)


def simulate_run(risk: RunRisk, random_numbers: random.Random) -> SimulatedRun:
    """Simulate one run of a risk."""
    return _Run(risk, random_numbers).simulate()
