"""Members may vanish, wake up and join at any moment: every order of events ends, and in one history."""

from collections import Counter

import pytest

from tests.succession.model import Model
from tests.succession.mutants import MUTANTS, Mutant
from tests.succession.rosters import first_roster
from tests.succession.schedules import run_schedule
from zooid.core.errors import ZooidError

SMALL = {
    "2x1": ((2, 1), (), 0, 2, 3),
    "1x2": ((1, 2), (), 0, 3, 3),
    "1x2 with a copy": ((1, 2), (1,), 0, 1, 2),
    "2x1 with a joiner": ((2, 1), (), 1, 1, 2),
    "1x2 with a joiner": ((1, 2), (), 1, 1, 2),
    "2x1 with suspicions": ((2, 1), (), 0, 1, 3),
    "3x1 with suspicions": ((3, 1), (), 0, 1, 2),
}
"""Layout, stages of copies, and how many joiners, steps and rosters there are."""
SUSPICIONS = {
    "2x1 with suspicions": (("m00", "m10"), ("m10", "m00")),
    "3x1 with suspicions": (("m00", "m10"), ("m10", "m20"), ("m20", "m00")),
}
"""Who may have lost whom. In a circle of three, a member may only learn from others that it is lost."""
NUM_SCHEDULES = 100


def small_model(name: str) -> Model:
    layout, copies, num_joiners, num_steps, max_rosters = SMALL[name]
    first = first_roster(*layout, copies)
    return Model(
        first,
        num_joiners=num_joiners,
        num_steps=num_steps,
        max_rosters=max_rosters,
        suspicions=SUSPICIONS.get(name, ()),
    )


@pytest.mark.parametrize("name", SMALL)
def test_every_order_of_events_ends_in_one_history(name: str) -> None:
    """Histories are checked in every world. Larger layouts take minutes: `python -m tests.succession`."""
    model = small_model(name)
    worlds = model.explore()
    assert len(worlds) > 300
    assert model.check_ends(worlds, max_lost=2) > 2000


def test_every_order_of_events_with_two_replicas_of_two_stages() -> None:
    assert len(Model(first_roster(2, 2), num_steps=1, max_rosters=2).explore()) > 15_000


def test_random_schedules_end_in_one_history() -> None:
    """The faults are counted: a schedule in which nothing happens shows nothing."""
    ends, happened = Counter[str](), Counter[str]()
    for number in range(NUM_SCHEDULES):
        end, faults = run_schedule(number, seed=5)
        ends[end] += 1
        happened.update(faults)
    assert ends["kept"] > ends["too few"] > 0
    faults_of_members = ("lost", "cut off", "stalled", "parted", "joined", "answered and left out")
    expected = (*faults_of_members, "state handed over", "sums kept", "rival rosters", "stands", "rolled_back")
    assert all(happened[fault] > NUM_SCHEDULES // 20 for fault in expected), happened
    assert happened["sums kept twice"] > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found by the case or the schedules that it names, and says what is wrong."""
    mutant.install(monkeypatch)
    with pytest.raises((AssertionError, ZooidError), match=mutant.message):
        _try_case(mutant.case)


def _try_case(name: str) -> None:
    if name == "schedules":
        for number in range(NUM_SCHEDULES):
            run_schedule(number, seed=8)
    else:
        model = small_model(name)
        model.check_ends(model.explore(), max_lost=1)
