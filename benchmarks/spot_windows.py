"""Windows of recorded spot availability, replayed with real members, beside the same windows in simulated time.

Windows of at most 12 hours are drawn from each trace with a seed, among those in which something changes. A job takes
two hours on all wanted members on demand. Its members are processes that compute small gradients in slept time, boot as
long as the catalog says, and are killed by the trace. Traces with more than 4 instances are divided by a whole number.
One factor shortens all times. It is the largest at which members boot and join within one sample of the trace, and at
which a run that has lost all members trains again. What that takes on this machine is measured first, and the policy
reckons with it.

The run is steered by the policy whose simulated runs `python -m benchmarks.spot` plays through whole traces. The first
window of a trace has a deadline of 1.5 times the time on demand. The second has twice that time, and half of the cost
on demand as its budget, and so on in turn.

- `held`: the job has ended by its deadline. With a budget, it has stayed within it, and has ended by its deadline or
  said that nothing can hold the limits: `told_h` is when it said so.
- `usd_vs_on_demand`: the cost beside that of members on demand from the start
- `usd_vs_oracle`: the cost beside a lower bound for any run that knows the trace, whose members start in no time
- `restart_vs_on_demand`: the cost of a simulated run that restarts from its last checkpoint after every loss
- `simulated_vs_on_demand`, `real_vs_simulated`: the cost of the simulated run, and of the real one beside it
- `change_s`, `sample_s`: the longest time from the choice of a fleet until it trained, and one sample of the trace
- `lost`, `switches`, `resumes`, `redone`: members that were killed, fleets that were chosen while training, how often
  the run was resumed because all members were lost, and steps that were trained again
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

from benchmarks.harness import Row, run_benchmark
from benchmarks.spot import BUDGET_FRACTION, DATA, MEMBER, SPOT_PAIR, read_traces
from lab.load import ForeignLoad
from lab.spot_windows import divided, draw
from lab.spot_world import Trace
from lab.window_picture import draw as draw_window
from lab.window_replay import Calibration, Rental, WindowReplay, calibrate, holds, largest_factor
from zooid import catalog

HOURS, QUICK_HOURS = 2.0, 0.5
"""Time of a job on all wanted members on demand."""
SETTINGS = ((1.5, None), (2.0, BUDGET_FRACTION))
"""Deadline and budget of a trace's first window, of its second, and so on in turn."""
STEP_S = 0.1
"""Time of a step on all wanted members, on this machine."""
CALIBRATION_FACTOR = 100.0
MAX_FACTOR = 90.0


def rental() -> Rental:
    spot, on_demand = (catalog.offer(name).usd_per_hour for name in SPOT_PAIR)
    return Rental(MEMBER, catalog.offer(MEMBER).usd_per_hour * spot / on_demand)


def replays(trace: Trace, num_windows: int, hours: float, seed: int, measured: Calibration) -> Iterator[WindowReplay]:
    """Draw windows of a trace with their jobs."""
    boot_s = catalog.offer(MEMBER).startup_s
    assert boot_s is not None
    longest_step_s = STEP_S * divided(trace)[0].num_wanted  # on a single member
    join_s = measured.start_s + 2 * longest_step_s  # new members wait for the end of a step, and are guests in the next
    factor = min(MAX_FACTOR, largest_factor(trace.gap_s, boot_s, max(join_s, measured.restart_s)))
    longest_s = hours * 3600 * max(deadline for deadline, _ in SETTINGS)
    for _, window, (deadline, budget) in zip(
        range(num_windows), draw(trace, longest_s, seed), cycle(SETTINGS), strict=False
    ):
        yield WindowReplay(
            window=window,
            rental=rental(),
            calibration=measured,
            factor=factor,
            step_s=STEP_S * factor,
            num_steps=round(hours * 3600 / (STEP_S * factor)),
            deadline=deadline,
            budget=budget,
        )


def compare(replay: WindowReplay, folder: Path, seed: int, picture: Path | None = None) -> Row:
    """Replay a window with real members, and play it in simulated time. The real run is drawn to the picture."""
    world, simulated, restarted = replay.world, replay.simulate(), replay.simulate_restarts()
    with ForeignLoad() as foreign:
        real = replay.run(folder, seed)
    if picture is not None:
        picture.write_text(draw_window(replay, real))
    return {
        "trace": replay.window.trace.name,
        "from_h": round(replay.window.from_s / 3600, 1),
        "wanted": replay.window.trace.num_wanted,
        "divisor": replay.window.divisor,
        "factor": replay.factor,
        "deadline": replay.deadline,
        "budget": replay.budget,
        "held": holds(real, world, replay.factor),
        "told_h": None if real.warned_s is None else round(real.warned_s * replay.factor / 3600, 2),
        "usd_vs_on_demand": round(real.usd / world.on_demand_usd, 3),
        "usd_vs_oracle": round(real.usd / world.least_usd, 3),
        "restart_vs_on_demand": round(restarted.usd / world.on_demand_usd, 3),
        "simulated_vs_on_demand": round(simulated.usd / world.on_demand_usd, 3),
        "real_vs_simulated": round(real.usd / simulated.usd, 3) if simulated.usd else None,
        "time_vs_on_demand": round(real.end_s * replay.factor / world.on_demand_s, 3),
        "change_s": round(max(real.changes_s(), default=0.0), 2),
        "sample_s": round(replay.window.trace.gap_s / replay.factor, 2),
        "lost": real.market.num_killed,
        "switches": real.num_switches,
        "resumes": real.num_resumes,
        "redone": real.num_redone,
        "foreign_cores": round(foreign.num_cores, 2),
    }


def measure(
    traces: Sequence[Trace], num_windows: int, seed: int, picture: Path | None
) -> Callable[[bool], Iterator[Row]]:
    def rows(quick: bool) -> Iterator[Row]:
        chosen = traces[-1:] if quick else traces
        hours = QUICK_HOURS if quick else HOURS
        with tempfile.TemporaryDirectory(prefix="zooid-windows-") as name:
            folder = Path(name)
            measured = calibrate(folder / "calibration", rental(), CALIBRATION_FACTOR, 4, STEP_S * CALIBRATION_FACTOR)
            print(
                f"seed {seed}; beside boot delays, members start in {measured.start_s:.2f} s here, a run restarts in "
                f"{measured.restart_s:.2f} s, and a step takes {1000 * measured.excess_s:.0f} ms longer than planned",
                file=sys.stderr,
            )
            for trace in chosen:
                for number, replay in enumerate(replays(trace, num_windows, hours, seed, measured)):
                    yield compare(replay, folder / f"{trace.name}-{number}", seed + number, picture)

    return rows


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the traces")
    parser.add_argument("--trace", default="", help="a part of the names of the traces to use")
    parser.add_argument("--windows", type=int, default=1, help="number of windows of each trace")
    parser.add_argument("--seed", type=int, default=11, help="decides which windows are drawn, and who is killed")
    parser.add_argument("--picture", type=Path, help="file for a drawing of the last window, as SVG")
    given, rest = parser.parse_known_args()
    traces = [trace for trace in read_traces(given.data) if given.trace in trace.name]
    if not traces:
        print(f"skipped: no such spot traces (*.json) in {given.data}; --data names another folder", file=sys.stderr)
        return
    run_benchmark(
        "windows of recorded spot availability, with real members",
        measure(traces, given.windows, given.seed, given.picture),
        lambda quick: given.windows * (1 if quick else len(traces)),
        arguments=rest,
    )


if __name__ == "__main__":
    main()
