"""A process that waits to join takes its seat, however fast the members change over."""

from types import SimpleNamespace
from typing import cast

import pytest

from zooid.core.abort import Abort
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.core.runs.spec import WorkerSpec
from zooid.store import ObjectStore, open_store
from zooid.worker.member.invitation import await_seat
from zooid.worker.peers import Peers

FIRST, GUEST = "r0s0", "r1s0-1"
NUMBERS = StepNumbers(loss_sum=1.0, weight=1.0, square_sums=(1.0,), is_finite=True)


def roster(change: int, guests: tuple[RosterSeat, ...] = (), attempt: int = 0) -> Roster:
    member = RosterMember(name=FIRST, stage=0, replica=0)
    return Roster(
        run="run",
        number=0,
        change=change,
        resume_step=change,
        members=(member,),
        shares=(2,),
        guests=guests,
        attempt=attempt,
        ruling=Ruling(kind="planned", numbers=NUMBERS) if change else None,
    )


def planned(change: int) -> PlannedChange:
    """A change that gives the guest a seat."""
    members = tuple(RosterMember(name=name, stage=0, replica=replica) for replica, name in enumerate((FIRST, GUEST)))
    return PlannedChange(
        run="run", number=0, change=change, attempt=1, cause="two were asked for", members=members, shares=(1, 1)
    )


def spec_in(store: ObjectStore) -> WorkerSpec:
    return WorkerSpec(
        run="run", member=GUEST, store=store.url, job_file="job.py", num_threads=1, task="train", timeout_s=10.0
    )


@pytest.fixture
def store() -> ObjectStore:
    """Members that have already begun a roster with the guest, before it looked for the first time."""
    made = open_store("memory://invitation")
    made.put(keys.roster(0, 1), encode_record(roster(1)))
    made.put(keys.planned_change(0, 1, 1), encode_record(planned(1)))
    made.put(keys.roster(0, 2), encode_record(roster(2, (RosterSeat(name=GUEST, stage=0),), attempt=1)))
    return made


@pytest.mark.timeout(20)
def test_a_guest_whose_hosts_have_begun_between_two_looks_joins_them(store: ObjectStore) -> None:
    connected: list[tuple[int, int]] = []

    def connect(change: PlannedChange, before: Roster, abort: Abort) -> Peers:
        connected.append((change.change, before.change))
        return cast(Peers, None)

    hosts, _ = await_seat(spec_in(store), store, roster(0), connect, lambda peers: None, Abort())
    assert hosts.change == 2
    assert connected == [(1, 1)]


@pytest.mark.timeout(20)
def test_a_process_whose_hosts_have_changed_without_it_waits_for_their_next_change() -> None:
    """Such as when new shares were agreed on at the moment at which its seat was planned."""
    store = open_store("memory://left-out")
    store.put(keys.planned_change(0, 1, 1), encode_record(planned(1)))
    store.put(keys.roster(0, 1), encode_record(roster(1)))
    connected: list[int] = []
    disconnected: list[int] = []

    def connect(change: PlannedChange, before: Roster, abort: Abort) -> Peers:
        connected.append(change.change)
        if change.change == 1:  # the others go on without it, and the coordinator plans the seat anew
            store.put(keys.roster(0, 2), encode_record(roster(2)))
            store.put(keys.planned_change(0, 2, 1), encode_record(planned(2)))
        else:
            store.put(keys.roster(0, 3), encode_record(roster(3, (RosterSeat(name=GUEST, stage=0),), attempt=1)))
        return cast(Peers, SimpleNamespace(lost=(), number=change.change))

    def disconnect(peers: Peers) -> None:
        disconnected.append(cast(SimpleNamespace, peers).number)

    hosts, peers = await_seat(spec_in(store), store, roster(0), connect, disconnect, Abort())
    assert hosts.change == 3
    assert cast(SimpleNamespace, peers).number == 2
    assert connected == [1, 2]
    assert disconnected == [1]
