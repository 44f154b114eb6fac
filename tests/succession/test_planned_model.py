"""A planned change may be disturbed at any moment: every order of events ends, and in one history."""

import pytest

from tests.succession.mutants import Mutant
from tests.succession.planned_cases import SMALL
from tests.succession.planned_mutants import PLANNED_MUTANTS
from zooid.core.errors import ZooidError


@pytest.mark.parametrize("name", SMALL)
def test_every_order_of_events_in_a_planned_change_ends_in_one_history(name: str) -> None:
    """Larger cases take minutes: `python -m tests.succession`."""
    model = SMALL[name]()
    worlds = model.explore()
    kinds = {roster.ruling.kind for world in worlds for roster in model.rosters(world) if roster.ruling is not None}
    assert {"planned", "unfinished"} <= kinds, "neither the change nor a survey was tried"
    assert model.check_ends(worlds, max_lost=2) > 300


@pytest.mark.parametrize("mutant", PLANNED_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_of_planned_changes_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.install(monkeypatch)
    model = SMALL[mutant.case]()
    with pytest.raises((AssertionError, ZooidError), match=mutant.message):
        model.check_ends(model.explore(), max_lost=1)
