"""Runs on a market of this machine: a window of a spot trace, and Srifty's episode, both in a few seconds."""

from pathlib import Path

import pytest

import zooid
from benchmarks import spot_windows, srifty_episode
from lab.spot_windows import Window, divided, draw
from lab.spot_world import Trace
from lab.window_picture import draw as draw_window
from lab.window_replay import Calibration, WindowReplay, holds
from zooid.core.runs.events import MemberExited, StepCommitted

pytestmark = pytest.mark.timeout(120)

CALIBRATION = Calibration(start_s=0.5, excess_s=0.02, prepare_s=20.0)
"""It allows for a busy machine."""


def test_a_run_that_loses_all_members_goes_on_when_the_policy_finds_a_fleet(tmp_path: Path) -> None:
    """The only spot instance is lost in mid-run; nobody trains until the offer is no longer avoided."""
    replay = WindowReplay(
        window=Window(Trace("made", 300.0, (1, 1, 0, *(1,) * 200)), 1, 0, 100),
        rental=spot_windows.rental(),
        calibration=CALIBRATION,
        factor=150.0,
        step_s=15.0,
        num_steps=60,
        deadline=8.0,
    )
    run = replay.run(tmp_path / "window", seed=1)
    assert holds(run, replay.world, replay.factor), run.stopped
    assert (run.market.num_killed, run.num_resumes) == (1, 1)
    [lost] = [event for event in run.events if isinstance(event, MemberExited)]
    steps = [event for event in run.events if isinstance(event, StepCommitted)]
    assert sorted({event.step for event in steps}) == [*range(60)]
    after = [event.at_s - lost.at_s for event in steps if event.at_s > lost.at_s]
    assert after[0] * replay.factor > 300.0 + 150.0, "the offer is avoided for 300 s, and a machine boots for 150 s"
    assert run.usd < replay.world.on_demand_usd * 2
    undisturbed = (tmp_path / "undisturbed").as_uri()
    zooid.train(run.job.file, store=undisturbed, plan=run.job.whole)
    assert srifty_episode.largest_difference(run.url, undisturbed) < 1e-9
    assert "deadline" in draw_window(replay, run)


def test_the_planner_leaves_out_an_offer_that_is_gone(tmp_path: Path) -> None:
    """One of two p3 is lost. With so much time, the other one goes on alone, and no p3 is started."""
    row = srifty_episode.compare(srifty_episode.Episode("short", 200, 20_000.0), 50.0, 50, tmp_path)
    assert row["held"]
    assert (row["fleet"], row["new_p3"]) == ("1 p3", 0)
    assert isinstance(row["weight_difference"], float)
    assert row["weight_difference"] < 1e-9


def test_windows_are_drawn_by_their_seed_where_something_changes() -> None:
    trace = Trace("made", 300.0, (*(16,) * 50, 7, *(0,) * 50))
    small, divisor = divided(trace)
    assert (small.num_wanted, divisor) == (4, 4)
    first, again, other = (next(draw(trace, 3600.0, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first.available) == 12
    assert len(set(first.available)) > 1
