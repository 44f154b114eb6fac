"""A coordinator relays what members tell: everything once, also where a later roster repeats it."""

from zooid.coordinator.runs.relay import Relay
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import Evaluated, Event
from zooid.core.runs.roster import Roster, RosterMember, Ruling, StepNumbers
from zooid.store import EventWriter, ObjectStore, open_store


def evaluated(step: int) -> Evaluated:
    return Evaluated(at_s=0.0, epoch=0, step=step, loss=1.0, metrics={}, num_samples=1, wall_s=0.1)


def write_roster(store: ObjectStore, change: int, ruling: Ruling | None = None) -> None:
    roster = Roster(
        run="run",
        number=0,
        change=change,
        resume_step=3 * change,
        members=(RosterMember(name=f"m{change}", stage=0, replica=0),),
        shares=(1,),
        ruling=ruling,
    )
    store.put(keys.roster(0, change), encode_record(roster))


def tell(store: ObjectStore, change: int, *steps: int) -> None:
    with EventWriter(store, "m0") as writer:
        writer.turn_to(0, change, f"m{change}")
        for step in steps:
            writer.write(evaluated(step))


def test_an_evaluation_that_the_next_first_member_tells_again_is_relayed_once() -> None:
    store, seen = open_store("memory://relay-once"), list[Event]()
    relay = Relay(store, seen.append)
    write_roster(store, 0)
    tell(store, 0, 3)
    relay.flush()
    write_roster(store, 1, Ruling(kind="unfinished"))
    tell(store, 1, 3, 6)
    relay.flush()
    assert seen == [evaluated(3), evaluated(6)]


def test_an_evaluation_that_is_made_again_after_a_rollback_is_relayed_again() -> None:
    store, seen = open_store("memory://relay-again"), list[Event]()
    relay = Relay(store, seen.append)
    write_roster(store, 0)
    tell(store, 0, 3, 6)
    relay.flush()
    write_roster(store, 1, Ruling(kind="rolled_back"))
    tell(store, 1, 6)
    relay.flush()
    assert seen == [evaluated(3), evaluated(6), evaluated(6)]


def test_an_event_that_a_leaving_member_writes_late_is_relayed_although_a_later_one_was() -> None:
    store = open_store("memory://relay-late")
    seen: list[int] = []
    relay = Relay(store, lambda event: seen.append(event.step) if isinstance(event, Evaluated) else None)
    write_roster(store, 0)
    write_roster(store, 1, Ruling(kind="planned", numbers=StepNumbers(loss_sum=0.0, weight=0.0, square_sums=())))
    tell(store, 1, 2)
    relay.flush()
    tell(store, 0, 1)
    relay.flush()
    relay.flush()
    assert seen == [2, 1]
