"""Takes members away from a run in turn, and measures how long it stands still, beside torchrun's elastic restart.

`python -m benchmarks.recovery` measures both sides in one run, with the same model, data and time of a step; the last
line is JSON. What a run does not survive is null there, and its reason is printed. `--busy 300` is another
measurement: five minutes of an undisturbed run on cores that are busy. `--picture FILE` draws one recovery.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path

from benchmarks.recovery.busy import endure
from benchmarks.recovery.elastic import restarts
from benchmarks.recovery.losses import Kind, Laboratory, Loss, Place, Recovery
from benchmarks.recovery.picture import save
from lab.load import ForeignLoad
from lab.namespaces import missing_privilege
from lab.nursery import nursery
from zooid.core.plans.plan import TransportName

LAYOUTS = ((4, 1), (2, 2))
INSURED_LAYOUT = (1, 4)
_MOMENTS = (0.2, 0.5, 0.8)


def losses(
    layouts: Iterable[tuple[int, int]], kind: Kind = "kill", transport: TransportName = "tcp", place: Place = "folder"
) -> list[Loss]:
    """Every member of every layout in turn, at different moments of a step."""
    moments = cycle(_MOMENTS)
    return [
        Loss(replicas, stages, f"r{replica}s{stage}", kind, transport, place, next(moments))
        for replicas, stages in layouts
        for replica in range(replicas)
        for stage in range(stages)
    ]


def _measure(laboratory: Laboratory, wanted: Sequence[Loss]) -> list[Recovery]:
    """All of them, or only the first if the run does not go on after it."""
    found: list[Recovery] = []
    for loss in wanted:
        found.append(laboratory.lose(loss))
        _say(_line(found[-1]))
        if found[-1].recovery_s is None and len(found) == 1:
            break
    return found


def _line(recovery: Recovery) -> str:
    loss = recovery.loss
    what = f"{loss.layout}, {loss.transport}, {loss.place}, {loss.kind} {loss.member} at {loss.moment:.0%} of a step"
    if recovery.recovery_s is None:
        return f"{what}: it did not go on: {recovery.why_not}"
    noticed = "" if recovery.detection_s is None else f", noticed after {recovery.detection_s:.3f} s"
    return (
        f"{what}: {recovery.recovery_s:.3f} s beyond a step of {recovery.step_s:.3f} s{noticed}, "
        f"{recovery.steps_lost} steps lost, {recovery.redone_share:.2f} of the lost grains redone"
    )


def _median(values: Iterable[float | None]) -> float | None:
    """None if any value is missing: a run that did not go on has no median."""
    known = list(values)
    return None if not known or None in known else round(statistics.median(v for v in known if v is not None), 3)


def _beyond_detection(found: Sequence[Recovery]) -> float | None:
    return _median(
        None if each.recovery_s is None or each.detection_s is None else each.recovery_s - each.detection_s
        for each in found
    )


def recovery(folder: Path, *, quick: bool) -> dict[str, float | int | None]:
    layouts = LAYOUTS[:1] if quick else LAYOUTS
    with nursery() as home, Laboratory(home, folder) as laboratory:
        direct = _measure(laboratory, losses(layouts)[:2] if quick else losses(layouts))
        far = _measure(laboratory, losses(layouts, place="far store")[: 1 if quick else 8])
        store = _measure(laboratory, losses(layouts, transport="store")[: 1 if quick else 8])
        stopped = _measure(laboratory, losses(LAYOUTS[:1], "stop")[: 1 if quick else 2])
        insured = _measure(laboratory, losses([INSURED_LAYOUT])[: 1 if quick else 4])
        lacking = missing_privilege()
        if lacking is None:
            parted = _measure(laboratory, losses(LAYOUTS[:1], "partition", place="namespaces")[: 1 if quick else 2])
        else:
            parted = []
            _say(f"no partitions: network namespaces need {lacking}; run as root")
    restarted = restarts(folder / "torchrun", (2,) if quick else (2, 0, 3))
    for each in restarted:
        _say(f"torchrun: {each.recovery_s:.3f} s beyond a step of {each.step_s:.3f} s, {each.steps_lost} steps lost")
    survived = [each for each in (*direct, *far, *store, *stopped, *insured, *parted) if each.recovery_s is not None]
    times = [each.recovery_s for each in direct if each.recovery_s is not None]
    return {
        "direct_recovery_s": _median(each.recovery_s for each in direct),
        "direct_worst_s": round(max(times), 3) if len(times) == len(direct) else None,
        "direct_latency_recovery_s": _median(each.recovery_s for each in far),
        "store_recovery_s": _median(each.recovery_s for each in store),
        "stop_recovery_s": _beyond_detection(stopped),
        "stop_detection_s": _median(each.detection_s for each in stopped),
        "partition_recovery_s": _beyond_detection(parted),
        "partition_detection_s": _median(each.detection_s for each in parted),
        "insured_recovery_s": _median(each.recovery_s for each in insured),
        "insured_steps_lost": sum(each.steps_lost for each in insured),
        "torchrun_restart_s": _median(each.recovery_s for each in restarted),
        "steps_lost": sum(each.steps_lost for each in survived),
        "redone_share": _median(each.redone_share for each in direct),
        "redone_share_worst": max(
            (each.redone_share for each in direct if each.redone_share is not None), default=None
        ),
    }


def _draw(laboratory: Laboratory, file: Path) -> int:
    found = laboratory.lose(Loss(4, 1, "r2s0", moment=0.6))
    _say(_line(found))
    if found.story is None:
        return 1
    save(found.story, file)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="take members away from a run, and measure how long it stands still")
    parser.add_argument("--busy", type=float, metavar="SECONDS", help="train undisturbed for so long on busy cores")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw one recovery as SVG instead")
    parser.add_argument("--quick", action="store_true", help="a short form: fewer losses")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that the laboratory is cleared away
    with tempfile.TemporaryDirectory(prefix="zooid-recovery-") as text:
        folder = Path(text)
        if given.busy is not None:
            with nursery() as home:
                endured = endure(home, folder, given.busy)
            print(json.dumps(endured))
            return 1 if endured["roster_changes"] or endured["members_lost"] else 0
        if given.picture is not None:
            with nursery() as home, Laboratory(home, folder) as laboratory:
                return _draw(laboratory, given.picture)
        with ForeignLoad() as load:
            found = recovery(folder, quick=given.quick)
    print(json.dumps({**found, "foreign_cores": round(load.num_cores, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
