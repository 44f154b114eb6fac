"""A run without computing: the same actions, members, groups and messages, while compute sleeps its profiled time.

So a plan can be tried on real links before you pay for the cores, and many members fit on one machine.
"""

import time

import torch
from torch import distributed as dist

from zooid.core.abort import Abort
from zooid.core.records import encode_record
from zooid.core.resources.process_memory import peak_resident_bytes
from zooid.core.runs import keys
from zooid.core.runs.events import MemberTrained, StepCommitted
from zooid.core.runs.spec import RehearsalSpec
from zooid.schedule.actions import Action, Kind
from zooid.schedule.buckets import reduces_early
from zooid.schedule.checks import check_schedule
from zooid.schedule.grain_tree import Deal
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import split_grains
from zooid.schedule.step_state import vote_elements
from zooid.store import EventWriter, ObjectStore
from zooid.store.rosters import read_roster
from zooid.store.stored_records import read_plan
from zooid.worker.gradients.tree_reduce import ReduceBuffer, ReduceQueue
from zooid.worker.member.seat import Seat
from zooid.worker.peers import open_peers
from zooid.worker.step.cut_messages import Messenger
from zooid.worker.step.executor import Executor
from zooid.worker.step.pending import Pending, begin_all_reduce, begin_broadcast
from zooid.worker.step.step_meter import StepMeter

_CPU = torch.device("cpu")


def rehearse(spec: RehearsalSpec, store: ObjectStore, abort: Abort) -> None:
    """Take a seat, and run the steps of the spec. All members but copies, which compute nothing, record each step."""
    plan, roster = read_plan(store, spec.roster), read_roster(store, spec.roster)
    ties = tuple(tie.stages for tie in spec.ties)
    peers = open_peers(spec, store, plan, roster, _CPU, abort)
    seat = Seat(roster, roster.rank_of(spec.member), _CPU, peers.groups(roster, ties, lambda stage, guest: False))
    buckets = tuple(len(stage.buckets) for stage in spec.stages)
    shape = StepShape(plan.schedule, len(spec.stages), plan.ahead, buckets, ties)
    num_grains = -(-plan.batch_size // plan.grain_size)
    schedule = shape.step(split_grains(num_grains, roster.shares))
    check_schedule(schedule)
    deal = Deal(schedule.grains) if plan.reproducible else None
    replica = seat.replica
    stage = _RehearsedStage(spec, seat, len(schedule.grains[replica or 0]), abort, deal)
    executor = Executor(seat.name, stage, abort)
    meter = StepMeter(store, seat)
    recordings = []
    with EventWriter(store, spec.member, spec.roster) as events:
        seat.barrier()
        for step in range(spec.num_steps):  # without a barrier between steps, as in training
            start_s = time.perf_counter()
            stage.begin_step()
            if replica is None:
                stage.commit()
                continue
            actions, needs = schedule.lists[replica][seat.stage], schedule.needs[replica][seat.stage]
            recording = executor.run(actions, needs)
            recordings.append(recording)
            meter.note(step, recording)
            if seat.rank == 0:
                events.write(
                    StepCommitted(
                        at_s=time.time(),
                        step=step,
                        epoch=0,
                        loss=0.0,
                        num_samples=plan.batch_size,
                        step_s=time.perf_counter() - start_s,
                    )
                )
        meter.finish()
        for step, recording in enumerate(recordings):
            store.put(keys.timeline(step, spec.member), encode_record(recording.timeline()))
        seat.barrier()
        events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))
    peers.end(is_clean=True)
    peers.close(is_clean=True)


class _RehearsedStage:
    """Behaves towards other members as a stage does, without computing."""

    def __init__(self, spec: RehearsalSpec, seat: Seat, num_grains: int, abort: Abort, deal: Deal | None) -> None:
        """`deal` gives each replica its grains, if gradients are added in a tree over grains."""
        self._stage = spec.stages[seat.stage]
        self._seat = seat
        self._abort = abort
        self._num_grains = num_grains
        self._messenger = Messenger(seat)
        bytes_in = round(spec.stages[seat.stage - 1].out_bytes) if seat.stage > 0 else 0
        bytes_out = round(self._stage.out_bytes)
        self._message_bytes = {
            Kind.SEND_FORWARD: bytes_out,
            Kind.RECEIVE_BACKWARD: bytes_out,
            Kind.RECEIVE_FORWARD: bytes_in,
            Kind.SEND_BACKWARD: bytes_in,
        }
        sizes = [-(-bucket.num_bytes // 4) for bucket in self._stage.buckets]
        self._buckets = [torch.zeros(size) for size in sizes]
        self._deal = deal
        self._buffers = [
            ReduceBuffer(torch.zeros(0), size, deal, seat.replica or 0) for size in sizes if deal is not None
        ]
        self._ties = [torch.zeros(-(-tie.num_bytes // 4)) for tie in spec.ties]
        self.begin_step()

    def begin_step(self) -> None:
        self._num_backwards_left = self._num_grains
        self._works: list[list[dist.Work]] = []
        self._queue = ReduceQueue()

    def compute(self, action: Action) -> None:
        match action.kind:
            case Kind.FORWARD:
                self._abort.sleep(self._stage.forward_s)
            case Kind.BACKWARD:
                self._backward()
            case _:
                self.commit()

    def commit(self) -> None:
        """Exchange gradients with the copies, vote, and update."""
        if self._seat.groups.copies is not None:
            gradients = torch.zeros(sum(bucket.num_bytes for bucket in self._stage.buckets), dtype=torch.uint8)
            begin_broadcast(gradients, 0, self._seat.groups.copies).wait()
        self._seat.add_up([0.0] * vote_elements(self._seat.roster.num_stages, self._seat.roster.num_replicas))
        self._abort.sleep(self._stage.update_s)

    def begin(self, action: Action) -> Pending:
        assert action.number is not None
        match action.kind:
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                message = torch.zeros(self._message_bytes[action.kind], dtype=torch.uint8)
                return self._messenger.send(action.kind, action.number, message)
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                message = torch.empty(self._message_bytes[action.kind], dtype=torch.uint8)
                return self._messenger.receive(action.kind, action.number, message)
            case Kind.REDUCE:
                return Pending(self._reduce(action.number))
            case _:
                return Pending([begin_all_reduce(self._ties[action.number], self._seat.groups.ties[action.number])])

    def _backward(self) -> None:
        """Sleep as long as a backward takes. The last one of a step begins each reduce at its profiled time."""
        self._num_backwards_left -= 1
        whole_s = self._stage.backward_s
        if self._num_backwards_left > 0 or not reduces_early(self._seat.stage):
            self._abort.sleep(whole_s)
            return
        begin_s = time.perf_counter()
        for number, bucket in enumerate(self._stage.buckets[:-1]):
            self._abort.sleep(max(0.0, begin_s + bucket.at_share * whole_s - time.perf_counter()))
            self._reduce(number)
        self._abort.sleep(max(0.0, begin_s + whole_s - time.perf_counter()))

    def _reduce(self, number: int) -> list[dist.Work]:
        group = self._seat.groups.stage
        if group is None:
            return []
        while (next_number := len(self._works)) <= number:
            if self._deal is not None:
                works = self._queue.begin([self._buffers[next_number]], self._deal, group)
            else:
                works = [begin_all_reduce(self._buckets[next_number], group)]
            self._works.append(works)
        return self._works[number]
