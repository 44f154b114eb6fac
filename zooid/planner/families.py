"""Plans whose members are all alike, by families: an offer, a layout and a grain size, of which only the cuts and the
schedule are open. A family has a bound of its own, so that most of them need not be looked into."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, ScheduleName, TransportName, num_holders
from zooid.core.plans.profile import Profile
from zooid.core.resources.offer import Offer
from zooid.planner.drafts import Draft, draft
from zooid.planner.market import Market
from zooid.planner.partition import Partition, StageTable, best_partitions, smallest_need
from zooid.planner.partition.step_floor import StepFloor
from zooid.predictor import Proposal, host_cores, least_memory_bytes, run_cost, stage_memory_table, startup_s, total_usd
from zooid.predictor.equations.array_checks import Array
from zooid.predictor.step_bounds import downlink, latency_s, reduced_share
from zooid.schedule.samples import even_shares

PARTITIONS_EACH = 3
"""Of each family that turns out well, so many of the closed form's best cuts are simulated."""


@dataclass(frozen=True)
class Family:
    """All members on one offer, so many replicas and stages, grains of one size."""

    market: Market
    offer: Offer
    transport: TransportName
    num_replicas: int
    num_stages: int
    stage_counts: range
    """Those of all families that differ from this one in nothing else."""
    grain_size: int
    schedule: ScheduleName | None
    """Where only one is allowed."""
    reproducible: bool = False
    insured: bool = False
    at_least_s: float | None = None
    """Of a step, where all its cuts were looked at."""

    @property
    def num_members(self) -> int:
        return num_holders(self.num_replicas, is_insured=self.insured) * self.num_stages

    @property
    def offers(self) -> tuple[str, ...]:
        return (self.offer.name,) * self.num_stages

    @property
    def num_grains(self) -> int:
        """Of a step."""
        return math.ceil(self.market.profile.batch_size / self.grain_size)

    @property
    def own_grains(self) -> int:
        """Of the replica that has most."""
        return math.ceil(self.num_grains / self.num_replicas)

    @cached_property
    def least(self) -> tuple[float, float]:
        """Seconds and dollars that no run of the family is below, wherever it is cut.

        A pipeline takes what `_pipeline_s` says at least; a stage in the middle takes in what crosses two cuts, each no
        smaller than the smallest there is; one stage has a k-th of the gradients or more; in the end there is a vote.
        """
        world = self.market.world
        example = self._proposal(tuple((at, at + 1) for at in range(self.num_stages)), "1f1b", 0)
        cores = host_cores(example, world)
        how = {"crowded": cores is not None and self.num_members > 1, "is_direct": self.transport != "store"}
        profile = world.profile_of(self.offer)
        whole = world.stage_times(self.offer, (0, len(profile.layers)), self.grain_size, **how)
        grain_s = whole.forward_s + whole.backward_s
        ways = self.market.ways_of(self.offer, is_direct=self.transport != "store")
        message_s = latency_s(ways)
        step_s = self.own_grains * grain_s
        down = downlink(world.ways, self.offer.site)
        if self.num_stages > 1:
            crossing = min(layer.boundary.at(self.grain_size) for layer in profile.layers[:-1])
            passing_s = message_s + sum(crossing / way.bytes_per_s for way in ways)
            step_s = _pipeline_s(grain_s, passing_s * (crossing > 0), self.own_grains, self.num_stages)
            step_s = max(step_s, self.own_grains * crossing * (1 if self.num_stages == 2 else 2) / down)
        if cores is not None:
            step_s = max(step_s, self.num_grains * grain_s / cores)
        reduced = sum(bucket.num_bytes for bucket in whole.buckets)
        if self.num_replicas > 1 and reduced and world.library is None:
            reduce_s = message_s + reduced_share(self.num_replicas) * reduced / self.num_stages / down
            begin_s = self.own_grains * grain_s - whole.backward_s if self.num_stages == 1 else 0.0
            step_s = max(step_s, begin_s + reduce_s)
        if self.num_members > 1 and world.library is None:
            step_s += message_s  # the others hear of it
        step_s = max(step_s, self.at_least_s or 0.0)
        starting_s = startup_s(example, world)
        run_s = starting_s + step_s * profile.num_samples * profile.epochs / profile.batch_size
        return run_s, total_usd(run_cost([self.offer] * self.num_members, run_s, starting_s))

    @property
    def order(self) -> tuple[ScheduleName, int]:
        """The schedule that counts where it is not chosen yet."""
        return self.schedule or "1f1b", 0

    @property
    def layout(self) -> str:
        return f"{self.num_replicas}x{self.num_stages}"

    def missing_bytes_at_least(self, known: "Known") -> int:
        """What its tightest member lacks at least."""
        return known.least_memory_bytes(self) - self.offer.memory_bytes

    def drafts(self, known: "Known", most: int = 1) -> list[Draft]:
        """The best cuts in all schedules, all cuts where there are few; where none of them fits its members, the best
        that do, or the one with the smallest need."""
        found = self._drafts(known.partitions_of(self, most))
        if self.num_stages == 1 or any(made.missing_bytes <= 0 for made in found):
            return found
        profile, table = self.market.profile, known.table_of(self)
        example = self._proposal(((0, len(profile.layers)),), "1f1b", 0)
        copies = example.gradient_copies(even_shares(self.num_grains, self.num_replicas))
        for kept in dict.fromkeys((min(self.own_grains, self.num_stages), 1)):  # as first and last stages of 1F1B do
            needed = np.zeros_like(table.forward_s)
            needed[:-1] = stage_memory_table(profile, self.grain_size, kept, **copies)
            smaller = replace(table, fits=needed <= self.offer.memory_bytes)
            partitions = best_partitions(smaller, [self.num_stages], max_each=most)[self.num_stages]
            fitting = self._drafts(partitions)
            if any(made.missing_bytes <= 0 for made in fitting):
                return fitting
        return self._drafts([smallest_need(needed, self.num_stages)])

    def _drafts(self, partitions: Sequence[Partition]) -> list[Draft]:
        return [
            draft(self._proposal(partition, schedule, ahead), self.market)
            for partition in partitions
            for schedule, ahead in schedules(self.schedule, self.num_stages)
        ]

    def _proposal(self, partition: Partition, schedule: ScheduleName, ahead: int) -> Proposal:
        return Proposal(
            partition=partition,
            offers=(self.offer,) * self.num_stages,
            num_replicas=self.num_replicas,
            grain_size=self.grain_size,
            schedule=schedule,
            ahead=ahead,
            transport=self.transport,
            reproducible=self.reproducible,
            insured=self.insured,
        )


def _pipeline_s(grain_s: float, crossing_s: float, num_grains: int, num_stages: int) -> float:
    """What no pipeline beats whose stages take so much for a grain, all together, and whose cuts so much, each way.

    Stage s computes M grains, after one has come up to it and before its last one goes down from it: the step is no
    shorter than V = Σ_{i<s} (t_i + 2c) + M t_s. V is least where it is the same for all s: t_s = (V − Σ …) / M, linear
    in V, and Σ t = T gives V. Without cuts V = T / (1 − (1 − 1/M)^k).
    """
    slope = offset = 0.0  # of the sum so far: slope · V − offset
    for stage in range(num_stages):
        slope, offset = (
            slope + (1 - slope) / num_grains,
            offset + (2 * crossing_s * stage - offset) / num_grains,
        )
    return (grain_s + offset) / slope


class Known:
    """What families have in common: tables of stages and their best cuts do not depend on the number of stages."""

    def __init__(self) -> None:
        self._tables: dict[object, StageTable] = {}
        self._partitions: dict[object, dict[int, list[Partition]]] = {}
        self._bytes: dict[object, int] = {}
        self._floors: dict[object, StepFloor] = {}
        self._steps_s: dict[object, Array] = {}

    def sharper(self, family: Family) -> Family:
        """The same with a better bound of its own."""
        market, is_direct = family.market, family.transport != "store"
        is_crowded = family.offer.platform == "local" and family.num_members > 1
        on = (family.offer.name, family.transport, family.grain_size, is_crowded)
        if on not in self._floors:
            self._floors[on] = StepFloor(
                market.world.profile_of(family.offer),
                family.grain_size,
                market.ways_of(family.offer, is_direct=is_direct),
                downlink(market.world.ways, family.offer.site),
                crowded=is_crowded,
            )
        key = (*on, family.num_replicas)
        if key not in self._steps_s:
            is_reducing = market.world.library is None
            self._steps_s[key] = self._floors[on].min_steps_s(
                family.own_grains, family.num_replicas, family.stage_counts[-1], is_reducing=is_reducing
            )
        return replace(family, at_least_s=float(self._steps_s[key][family.num_stages]))

    def table_of(self, family: Family) -> StageTable:
        key = (family.offer.name, family.transport, family.grain_size, family.num_replicas)
        if key not in self._tables:
            profile = family.market.world.profile_of(family.offer)
            ways = family.market.ways_of(family.offer, is_direct=family.transport != "store")
            self._tables[key] = StageTable.of_profile(
                profile, family.grain_size, family.own_grains, ways, family.num_replicas
            )
        return self._tables[key]

    def partitions_of(self, family: Family, most: int) -> list[Partition]:
        key = (family.offer.name, family.transport, family.grain_size, family.num_replicas)
        if key not in self._partitions:
            table = self.table_of(family)
            self._partitions[key] = best_partitions(table, family.stage_counts, max_each=PARTITIONS_EACH)
        found = self._partitions[key][family.num_stages]
        are_all = math.comb(len(family.market.profile.layers) - 1, family.num_stages - 1) <= PARTITIONS_EACH
        return found if are_all else found[:most]

    def least_memory_bytes(self, family: Family) -> int:
        key = (family.grain_size, family.num_replicas)
        if key not in self._bytes:
            profile, replicas = family.market.profile, family.num_replicas
            self._bytes[key] = least_memory_bytes(profile, family.grain_size, num_replicas=replicas)
        return self._bytes[key]


def families(market: Market, limits: Limits) -> Iterator[Family]:
    """Everything that offers, quotas and limits allow."""
    if limits.transport == "nccl" and all(market.world.profile_of(o).device.kind != "cuda" for o in market.offers):
        profile = market.profile
        raise PlanError(
            f"the transport nccl is for GPUs, but {profile.job} was measured on {profile.device.name}; give tcp or gloo"
        )
    for offer in market.offers:
        profile = market.world.profile_of(offer)
        most = market.most_on(offer, limits.max_members)
        for transport in transports(market, offer, limits):
            for num_replicas in _counts(limits.num_replicas, most):
                most_stages = most // num_holders(num_replicas, is_insured=limits.insured)
                stage_counts = _counts(limits.num_stages, min(most_stages, len(profile.layers)))
                for num_stages, grain_size in itertools.product(stage_counts, grain_sizes(profile)):
                    if math.ceil(profile.batch_size / grain_size) >= num_replicas:
                        yield Family(
                            market=market,
                            offer=offer,
                            transport=transport,
                            num_replicas=num_replicas,
                            num_stages=num_stages,
                            stage_counts=stage_counts,
                            grain_size=grain_size,
                            schedule=limits.schedule,
                            reproducible=limits.reproducible,
                            insured=limits.insured,
                        )


def transports(market: Market, offer: Offer, limits: Limits) -> list[TransportName]:
    """The one that is asked for; otherwise the store, and connections where their links are known."""
    if limits.transport is not None:
        if not market.ways_of(offer, is_direct=limits.is_direct):
            raise PlanError(_unknown(offer, limits.transport))
        return [limits.transport]
    both: tuple[TransportName, ...] = ("store", "tcp") if offer.accepts_connections else ("store",)
    known = [each for each in both if market.ways_of(offer, is_direct=each != "store")]
    if not known:
        raise PlanError(_unknown(offer, "store"))
    return known


def _unknown(offer: Offer, transport: TransportName) -> str:
    if transport == "store":
        return f"the profile holds no links between site {offer.site!r} and the store; profile on that site first"
    return (
        f"members are to be connected over {transport}, but no link between members at {offer.site!r} is known; "
        "measure it with `zooid probe --only peers` and give the file with --links"
    )


def schedules(pinned: ScheduleName | None, num_stages: int) -> list[tuple[ScheduleName, int]]:
    """A single stage needs no pipeline: one grain after the other keeps the least. 1F1B comes in both kinds."""
    if num_stages == 1:
        return [("1f1b", 0)]
    both: list[tuple[ScheduleName, int]] = [("1f1b", 0), ("1f1b", 1), ("gpipe", 0)]
    return [(name, ahead) for name, ahead in both if pinned in (None, name)]


def grain_sizes(profile: Profile) -> list[int]:
    """Those that were measured, and even parts of the batch, as far as they fit; a job's own grain size alone."""
    measured = [point.num_samples for point in profile.layers[0].points]
    if len(measured) == 1:
        return measured
    parts = [profile.batch_size // 2**halvings for halvings in range(6)]
    return sorted({size for size in (*measured, *parts) if 1 <= size <= profile.largest_grain})


def _counts(pinned: int | None, most: int) -> range:
    return range(pinned or 1, min(pinned or most, most) + 1)
