"""Srifty's episode of a lost spot instance (§5.4), with real members and one factor on all times.

ResNet50 is trained for 400 steps with a batch of 1024 on two p3.8xlarge spot instances, 512 samples each. They boot for
150 s. After step 200, one of them is killed with SIGKILL, and no p3 can be had any more. The run must end within 500 s.
Srifty went on with 8 g3.8xlarge, 64 samples each, beside the p3 that was left, and ended after 419 s.

Members are processes that compute the gradients of a small model, and sleep for the rest of the time that the paper
prints: 152 s for 400 steps of two p3 with 512 samples, and 101 s for 200 steps of g3 with 64 (§5.4); 0.58 s for a step
of g4dn with 64 (§5.2, case 1). Quotas are 2, 8 and 8 instances; prices and boot delays are those of the catalog. The
planner searches for a fleet when the member is lost, and the policy chooses.

In zooid, the p3 that is left takes over all samples at once, and trains while others boot. The second row is an episode
in which that does not suffice: the member is lost after step 50, and the limit is 425 s.

- `fleet`: members on which the run ended, and `new_p3` the number of p3 that were started after the loss
- `lost_s`, `ready_s`, `end_s`: when the member was lost, when the new fleet trained, and the end, in unscaled time
- `weight_difference`: the largest difference from the weights of a run that was not disturbed
- `factor`: by how much time is shortened, and `steps`: the number of steps that were trained, of which each stands for
  equally many of the episode
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.load import ForeignLoad
from lab.market_run import MarketRun
from lab.scaled_job import ScaledJob, scaled_job, scaled_offer
from zooid.core.plans.plan import Limits
from zooid.core.resources.offer import Offer
from zooid.core.resources.spot_trace import SpotTrace, TraceMetadata
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, FleetChosen, MemberExited, Metered, RosterChanged, StepCommitted
from zooid.core.runs.steering import Steering
from zooid.platforms.local.spot_market import SpotMarket, Supply

BATCH, GRAIN = 1024, 32
NUM_STEPS = 400
P3, G3, G4DN = (f"aws.ec2.{family}.8xlarge.spot" for family in ("p3", "g3", "g4dn"))
QUOTAS = {P3: 2, G3: 8, G4DN: 8}
SAMPLE_S = {P3: 152 / 400 / 512, G3: 101 / 200 / 64, G4DN: 0.58 / 64}
"""Time of one sample on each instance, from the printed times of steps."""
WHOLE, MERGED, SHORT = (2.5, 1), (2.5, 4), (8.0, 8)
"""Factors on time, each with the number of steps of the episode for which one step stands: with many members, steps
are longer, since they share this machine's cores. The last one is for a quick look."""
_FOR_EVER_S = 1e9


@dataclass(frozen=True)
class Episode:
    name: str
    lost_after: int
    """Number of steps after which a member is killed."""
    limit_s: float


EPISODES = (Episode("as in the paper", 200, 500.0), Episode("lost sooner, less time", 50, 425.0))


def up(number: int) -> SpotTrace:
    """A trace in which this number of instances is always up."""
    return SpotTrace(metadata=TraceMetadata(gap_seconds=_FOR_EVER_S), data=(number,))


def play(
    episode: Episode, job: ScaledJob, offers: Sequence[Offer], factor: float, num_merged: int, folder: Path
) -> MarketRun:
    """Run the job, and take one p3 out of the market in mid-run. A step stands for `num_merged` of the episode."""
    p3 = offers[0]
    boot_s = {offer.name: (offer.startup_s or 0.0) * factor for offer in offers}
    supplies = {offer.name: Supply(boot_s=boot_s[offer.name]) for offer in offers}
    supplies[p3.name] = Supply(up(2), boot_s[p3.name])

    def take(event: Event) -> None:
        if isinstance(event, StepCommitted) and event.step + 1 == round(episode.lost_after / num_merged):
            supplies[p3.name] = Supply(up(1), boot_s[p3.name])  # the market kills one of two members

    pair = job.plan([(p3, BATCH // GRAIN // 2)] * 2)
    return MarketRun(
        job=job,
        fleets=[pair],
        first=pair,
        market=SpotMarket(supplies, speed=factor, opens_with_members=True),
        url=(folder / "run").as_uri(),
        steering=Steering(
            offers=tuple(offers),
            quotas={f"local:{name}": quota for name, quota in QUOTAS.items()},
            max_members=sum(QUOTAS.values()),
            look_s=10.0 / factor,
            time_factor=factor,
        ),
        limits=Limits(deadline_s=episode.limit_s / factor),
        checkpoints=CheckpointRule(),
        on_event=take,
    ).play()


def row_of(episode: Episode, run: MarketRun, factor: float, difference: float) -> Row:
    assert run.opened_at_s is not None
    [lost] = [event for event in run.events if isinstance(event, MemberExited)]
    after = [event for event in run.events if event.at_s > lost.at_s]
    chosen = [event for event in after if isinstance(event, FleetChosen)]
    planned = [event for event in after if isinstance(event, RosterChanged) and event.ruling == "planned"]
    bills = [event for event in run.events if isinstance(event, Metered)]
    offers = {member.member: member.offer for bill in bills for member in bill.running}
    before = {member.member for bill in bills if bill.at_s < lost.at_s for member in bill.running}
    [*_, last] = [event for event in run.events if isinstance(event, RosterChanged)]
    fleet = Counter(offers[member] for member in last.members)
    return {
        "episode": episode.name,
        "factor": factor,
        "steps": run.job.whole.num_steps,
        "lost_s": round((lost.at_s - run.opened_at_s) * factor, 1),
        "fleet": " + ".join(f"{number} {name.split('.')[2]}" for name, number in sorted(fleet.items(), reverse=True)),
        "because": chosen[-1].because if chosen else "the present fleet holds the limit",
        "new_p3": sum(P3 in offer for member, offer in offers.items() if member not in before),
        "ready_s": round((planned[-1].at_s - run.opened_at_s) * factor, 1) if planned else None,
        "end_s": round(run.end_s * factor, 1),
        "limit_s": episode.limit_s,
        "held": run.result is not None and not run.stopped and run.end_s * factor <= episode.limit_s,
        "usd": round(run.usd, 4),
        "weight_difference": difference,
    }


def largest_difference(url: str, other_url: str) -> float:
    one, other = zooid.load_checkpoint(url), zooid.load_checkpoint(other_url)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def compare(episode: Episode, factor: float, num_merged: int, folder: Path) -> Row:
    """Play an episode, and train the same job without any disturbance. A step stands for `num_merged`."""
    offers = [scaled_offer(name, factor) for name in QUOTAS]
    grain_s = {f"local:{name}": GRAIN * sample_s * num_merged / factor for name, sample_s in SAMPLE_S.items()}
    job = scaled_job(folder, NUM_STEPS // num_merged, BATCH // GRAIN, grain_s)
    undisturbed = (folder / "undisturbed").as_uri()
    zooid.train(job.file, store=undisturbed, plan=job.whole)
    with ForeignLoad() as foreign:
        run = play(episode, job, offers, factor, num_merged, folder)
    row = row_of(episode, run, factor, largest_difference(run.url, undisturbed))
    return {**row, "foreign_cores": round(foreign.num_cores, 2)}


def measure(quick: bool) -> Iterator[Row]:
    for episode, scale in ((EPISODES[0], SHORT),) if quick else zip(EPISODES, (WHOLE, MERGED), strict=True):
        factor, num_merged = scale
        print(f"{factor:g} s of the episode pass in one second; a step stands for {num_merged}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="zooid-episode-") as name:
            yield compare(episode, factor, num_merged, Path(name))


if __name__ == "__main__":
    run_benchmark("Srifty's episode", measure, lambda quick: 1 if quick else len(EPISODES))
