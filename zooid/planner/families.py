"""Families of plans whose members all run on one offer.

A family fixes the offer, the transport, the layout and the grain size. Its cuts and its schedule are open. Lower bounds
prune most families before any of their plans is drafted.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import get_args

import numpy as np
from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.plan import (
    Limits,
    OwnTransportName,
    Plan,
    ScheduleName,
    StagePlan,
    TransportName,
    num_holders,
)
from zooid.core.plans.profile import Profile
from zooid.core.resources.offer import Offer
from zooid.planner.drafts import Draft, draft
from zooid.planner.family_bounds import StepFloor, least_step_s
from zooid.planner.market import Market
from zooid.planner.member_sizes import holdable_bytes, missing_bytes
from zooid.planner.partition import Partition, StageTable, best_partitions, smallest_need
from zooid.predictor import (
    DirectedLink,
    gradient_copies,
    least_memory_bytes,
    run_cost,
    stage_memory_table,
    startup_s,
    total_usd,
)
from zooid.predictor.equations.array_checks import Array
from zooid.schedule.samples import even_shares

MAX_PARTITIONS = 3
"""Number of the closed form's best partitions that are simulated, for each family on the front."""


@dataclass(frozen=True, eq=False)
class FamilyTables:
    """What all families on one offer with one transport and one grain size share. It is computed once, when needed."""

    market: Market
    offer: Offer
    transport: TransportName
    grain_size: int
    _step_floors: dict[bool, StepFloor] = field(default_factory=dict, repr=False)

    @property
    def profile(self) -> Profile:
        return self.market.world.profile_of(self.offer)

    @cached_property
    def links(self) -> tuple[DirectedLink, ...]:
        """The links that a message between two members crosses."""
        return self.market.links_of(self.offer, is_direct=self.transport != "store")

    @cached_property
    def num_grains(self) -> int:
        """Number of grains of a step."""
        return math.ceil(self.profile.batch_size / self.grain_size)

    @cached_property
    def least_crossing_bytes(self) -> float:
        """The smallest message that crosses any cut."""
        return min((layer.boundary.at(self.grain_size) for layer in self.profile.layers[:-1]), default=0.0)

    def step_floor(self, *, crowded: bool) -> StepFloor:
        """Lower bounds of stages whose members share a machine, or do not."""
        if crowded not in self._step_floors:
            down_bytes_per_s = self.market.downlink(self.offer)
            floor = StepFloor(self.profile, self.grain_size, self.links, down_bytes_per_s, crowded=crowded)
            self._step_floors[crowded] = floor
        return self._step_floors[crowded]


@dataclass(frozen=True, eq=False)
class FamilyGroup:
    """Families that differ only in their number of stages, and what they share."""

    tables: FamilyTables
    num_replicas: int
    stage_counts: range
    least_memory_bytes: int
    """Memory that some member needs at least, however the model is cut."""
    _least_steps_s: dict[bool, Array] = field(default_factory=dict, repr=False)

    @property
    def num_grains(self) -> int:
        """Number of grains of a step that the busiest replica computes."""
        return math.ceil(self.tables.num_grains / self.num_replicas)

    @cached_property
    def stage_table(self) -> StageTable:
        """Closed-form times of every possible stage."""
        tables = self.tables
        return StageTable.of_profile(
            tables.profile, tables.grain_size, self.num_grains, tables.links, self.num_replicas
        )

    @cached_property
    def partitions(self) -> dict[int, list[Partition]]:
        """The closed form's best partitions, by number of stages."""
        return best_partitions(self.stage_table, self.stage_counts, max_each=MAX_PARTITIONS)

    def least_step_s(self, num_stages: int, *, crowded: bool) -> float:
        """Lower bound of a step over all partitions into this number of stages."""
        if crowded not in self._least_steps_s:
            self._least_steps_s[crowded] = self.tables.step_floor(crowded=crowded).min_steps_s(
                self.num_grains,
                self.num_replicas,
                self.stage_counts[-1],
                is_reducing=self.tables.market.world.library is None,
            )
        return float(self._least_steps_s[crowded][num_stages])


@dataclass(frozen=True, eq=False)
class Family:
    """All partitions and schedules of one layout, on one offer and with one grain size."""

    group: FamilyGroup
    plan: Plan
    """One plan of the family. Its cuts and its schedule are arbitrary."""
    schedule: ScheduleName | None
    """The schedule that the limits require, if any."""
    partition_bound_s: float | None = None
    """Lower bound of a step over all partitions. None until `sharpened` computes it."""

    @property
    def market(self) -> Market:
        return self.group.tables.market

    @cached_property
    def lower_bound(self) -> tuple[float, float]:
        """Lower bounds of the run's seconds and dollars, however the model is cut."""
        tables, market = self.group.tables, self.market
        profile = tables.profile
        step_s = max(least_step_s(self.plan, market, tables.least_crossing_bytes), self.partition_bound_s or 0.0)
        starting_s = startup_s(self.plan, market.world)
        run_s = starting_s + step_s * profile.num_samples * profile.epochs / profile.batch_size
        return run_s, total_usd(run_cost(self.plan.member_offers, run_s, starting_s))

    @property
    def missing_bytes(self) -> int:
        """Memory that the tightest member lacks at least, however the model is cut."""
        return missing_bytes(self.group.least_memory_bytes, self.group.tables.offer, keeps_speed=True)

    def sharpened(self) -> "Family":
        """The same family with a tighter lower bound, which takes longer to compute."""
        crowded = self.group.tables.offer.platform == "local" and self.plan.num_members > 1
        return replace(self, partition_bound_s=self.group.least_step_s(len(self.plan.stages), crowded=crowded))

    def drafts(self, max_partitions: int = 1) -> list[Draft]:
        """The best partitions by the closed form, in all schedules; all partitions if there are few.

        If none of them fits its members' memory, these are the best that fit, or the one with the smallest need.
        """
        group, tables, num_stages = self.group, self.group.tables, len(self.plan.stages)
        partitions = group.partitions[num_stages]
        if math.comb(len(tables.profile.layers) - 1, num_stages - 1) > MAX_PARTITIONS:
            partitions = partitions[:max_partitions]
        drafts = self._drafts(partitions)
        if num_stages == 1 or _any_fits(drafts):
            return drafts
        copies = gradient_copies(self.plan, even_shares(tables.num_grains, group.num_replicas))
        for kept in dict.fromkeys((min(group.num_grains, num_stages), 1)):  # as first and last stages of 1F1B keep
            needed = np.zeros_like(group.stage_table.forward_s)
            needed[:-1] = stage_memory_table(tables.market.profile, tables.grain_size, kept, **copies)
            fits = needed <= holdable_bytes(tables.offer, keeps_speed=True)
            limited = replace(group.stage_table, fits=fits)
            drafts = self._drafts(best_partitions(limited, [num_stages], max_each=max_partitions)[num_stages])
            if _any_fits(drafts):
                return drafts
        return self._drafts([smallest_need(needed, num_stages)])

    def _drafts(self, partitions: Sequence[Partition]) -> list[Draft]:
        plans = [
            structs.replace(self.plan, stages=stages, schedule=schedule, ahead=ahead)
            for stages in map(self._stages, partitions)
            for schedule, ahead in schedules(self.schedule, len(stages))
        ]
        return [draft(plan, self.market, keeps_speed=True) for plan in plans]

    def _stages(self, partition: Partition) -> tuple[StagePlan, ...]:
        return tuple(
            structs.replace(stage, first_layer=first, end_layer=end)
            for stage, (first, end) in zip(self.plan.stages, partition, strict=True)
        )


def _any_fits(drafts: Sequence[Draft]) -> bool:
    return any(draft.missing_bytes <= 0 for draft in drafts)


def families(market: Market, limits: Limits) -> Iterator[Family]:
    """All families that offers, quotas and limits allow."""
    if limits.transport == "nccl" and all(market.world.profile_of(o).device.kind != "cuda" for o in market.offers):
        profile = market.profile
        raise PlanError(
            f"the transport nccl is for GPUs, but {profile.job} was measured on {profile.device.name}; give tcp or gloo"
        )

    @cache
    def memory_bytes(grain_size: int, num_replicas: int) -> int:
        return least_memory_bytes(market.profile, grain_size, num_replicas=num_replicas)

    for offer in market.offers:
        profile = market.world.profile_of(offer)
        max_members = market.max_members_on(offer, limits.max_members)
        for transport in transports(market, offer, limits):
            tables = [FamilyTables(market, offer, transport, grain_size) for grain_size in grain_sizes(profile)]
            for num_replicas, is_insured in replica_counts(limits, offer, transport, max_members):
                max_stages = max_members // num_holders(num_replicas, is_insured=is_insured)
                stage_counts = _counts(limits.num_stages, min(max_stages, len(profile.layers)))
                groups = [
                    FamilyGroup(own, num_replicas, stage_counts, memory_bytes(own.grain_size, num_replicas))
                    for own in tables
                    if own.num_grains >= num_replicas
                ]
                for num_stages in stage_counts:
                    example = market.plan(
                        [(stage, stage + 1) for stage in range(num_stages)],
                        (offer,) * num_stages,
                        num_replicas=num_replicas,
                        grain_size=1,
                        transport=transport,
                        schedule=limits.schedule or "1f1b",
                        reproducible=limits.reproducible,
                        insured=is_insured,
                    )
                    for group in groups:
                        plan = structs.replace(example, grain_size=group.tables.grain_size)
                        yield Family(group, plan, limits.schedule)


def replica_counts(
    limits: Limits, offer: Offer, transport: TransportName, max_members: int
) -> Iterator[tuple[int, bool]]:
    """Numbers of replicas to try, and whether they are insured.

    A single replica on an offer whose members are lost is tried with copies, too, even if nobody asks for them.
    """
    for num_replicas in _counts(limits.num_replicas, max_members):
        yield num_replicas, limits.insured
        may_copy = num_replicas == 1 and max_members > 1 and transport in get_args(OwnTransportName)
        if may_copy and not limits.insured and offer.losses_per_s:
            yield num_replicas, True


def transports(market: Market, offer: Offer, limits: Limits) -> list[TransportName]:
    """The transport that the limits require; otherwise the store and TCP, as far as their links are known."""
    if limits.transport is not None:
        if not market.links_of(offer, is_direct=limits.is_direct):
            raise PlanError(_unknown_link(offer, limits.transport))
        return [limits.transport]
    supported: tuple[TransportName, ...] = ("store", "tcp") if offer.accepts_connections else ("store",)
    known = [transport for transport in supported if market.links_of(offer, is_direct=transport != "store")]
    if not known:
        raise PlanError(_unknown_link(offer, "store"))
    return known


def _unknown_link(offer: Offer, transport: TransportName) -> str:
    if transport == "store":
        return f"the profile holds no links between site {offer.site!r} and the store; profile on that site first"
    return (
        f"members are to be connected over {transport}, but no link between members at {offer.site!r} is known; "
        "measure it with `zooid probe --only peers` and give the file with --links"
    )


def schedules(required: ScheduleName | None, num_stages: int) -> list[tuple[ScheduleName, int]]:
    """Schedules to try, each with its `ahead`. A single stage needs no pipeline, and then 1F1B keeps the least."""
    if num_stages == 1:
        return [("1f1b", 0)]
    every: list[tuple[ScheduleName, int]] = [("1f1b", 0), ("1f1b", 1), ("gpipe", 0)]
    return [(name, ahead) for name, ahead in every if required in (None, name)]


def grain_sizes(profile: Profile) -> list[int]:
    """The measured grain sizes and halvings of the batch that fit memory; the job's own grain size if it has one."""
    measured = [point.num_samples for point in profile.layers[0].points]
    if len(measured) == 1:
        return measured
    halvings = [profile.batch_size // 2**exponent for exponent in range(6)]
    return sorted({size for size in (*measured, *halvings) if 1 <= size <= profile.largest_grain})


def _counts(required: int | None, largest: int) -> range:
    return range(required or 1, min(required or largest, largest) + 1)
