"""Profiles and links corrected by what the members of a run have measured.

Computing: the layers of a stage share one factor for their forwards and one for their backwards, measured over
predicted. Layers that an offer has not run get the factor of all that it has run, because a machine that is slower than
planned is so for every layer. Offers that were not in the run keep their profiles. Members with the same work on the
same offer share a factor: that of their mean speed.

Links: see `link_fit`. Both are found together, because members of one machine contend for its cores.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.correction import Correction
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.machine_sites import inside_of, link_ends, outer_site
from zooid.core.runs.step_measurements import StepMeasurements
from zooid.predictor.learned.correction_rows import correction_rows
from zooid.predictor.learned.link_fit import Ends, LinkFactors, capped, fit_links
from zooid.predictor.learned.measured_step import MeasuredStep, Seat, measured_step, simulated_step
from zooid.predictor.learned.scaled_profile import ComputeFactors, scaled_profile
from zooid.predictor.machine_links import member_sites
from zooid.predictor.prediction import World, host_cores, lay_out, layout_of
from zooid.predictor.simulation.layout import Looks, directed_links
from zooid.predictor.simulation.step import simulate_step

_MAX_ROUNDS = 6
"""Without shared cores, the first round is exact."""
_QUARTILE_RANGE = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""

_Work = tuple[str, int]
"""An offer's name and a stage."""
_Factors = dict[_Work, ComputeFactors]


@dataclass(frozen=True)
class Corrected:
    """Profiles by offer and links, as a run has corrected them."""

    profiles: dict[str, Profile]
    links: tuple[Link, ...]
    corrections: tuple[Correction, ...]
    """What was corrected, and by how much."""


def corrected(
    profiles: Mapping[str, Profile],
    links: Sequence[Link],
    plan: Plan,
    members: Sequence[StepMeasurements],
    *,
    looks: Looks = "store",
    run: str = "",
) -> Corrected:
    """Correct profiles and links by what all members of a plan have measured.

    `profiles` are by the names of offers, and must have those of the plan. `looks` says how members found messages in
    the store, and `run` is the URL of the run's folder, if there is one.
    """
    _check(profiles, plan, members)
    measured = measured_step(plan, members)
    model = _RunModel(dict(profiles), tuple(links), plan, looks, members)
    before = model.simulate_known()
    compute: _Factors = {work: ComputeFactors() for work in model.works}
    link_factors = LinkFactors.none(model.used_links())
    for round_number in range(_MAX_ROUNDS):
        updated = model.updated(compute, measured, model.simulate(compute, link_factors))
        if round_number > 0 and all(updated[work].is_near(factors) for work, factors in compute.items()):
            break
        compute = updated
        link_factors = fit_links(link_factors, measured, partial(model.simulate, compute))
    fitted_links = _with_source(capped(links, link_factors), link_factors.ends, run)
    rows = correction_rows(run, model.works, before, measured, links, fitted_links, link_factors.ends)
    return Corrected(model.profiles(compute), fitted_links, rows)


def _check(profiles: Mapping[str, Profile], plan: Plan, members: Sequence[StepMeasurements]) -> None:
    seats = {(member.replica, member.stage) for member in members}
    expected = {(replica, stage) for replica in range(plan.num_replicas) for stage in range(len(plan.stages))}
    if seats != expected or len(members) != len(seats):
        raise PlanError(
            f"measurements are of {len(members)} member(s), but {len(expected)} members of the plan for {plan.job} "
            "compute; give the measurements of each of them once"
        )
    for offer in plan.member_offers:
        profile = profiles.get(offer.name)
        if profile is None:
            raise PlanError(
                f"the run had members on {offer.name}, of which there is no profile, only of {', '.join(profiles)}; "
                "give a profile of it"
            )
        if profile.model_fingerprint != plan.model_fingerprint or len(profile.layers) != plan.stages[-1].end_layer:
            raise PlanError(
                f"the run trained another model than the profile of {profile.job} is of: its fingerprint is "
                f"{plan.model_fingerprint or 'empty'}, not {profile.model_fingerprint}; give a run of the same model"
            )


def _with_source(links: Sequence[Link], fitted: Sequence[Ends], run: str) -> tuple[Link, ...]:
    source = f"corrected by the run in {run}" if run else "corrected by a run"
    return tuple(
        structs.replace(link, source=source) if (link.from_site, link.to_site) in fitted else link for link in links
    )


class _RunModel:
    """The plan of the run in simulated time, given factors on what was known before."""

    def __init__(
        self,
        known: dict[str, Profile],
        links: tuple[Link, ...],
        plan: Plan,
        looks: Looks,
        members: Sequence[StepMeasurements],
    ) -> None:
        self._known = known
        self._plan = plan
        self._looks = looks
        self._offers = {
            (replica, stage): plan.offer_of(stage, replica)
            for replica in range(plan.num_replicas)
            for stage in range(len(plan.stages))
        }
        self.works: dict[_Work, list[Seat]] = defaultdict(list)
        """Members by what they compute, and on which offer."""
        for seat, offer in self._offers.items():
            self.works[offer.name, seat[1]].append(seat)
        self._members: dict[str, list[StepMeasurements]] = defaultdict(list)
        for member in members:
            self._members[self._offers[member.replica, member.stage].name].append(member)
        sites = {name for offer in self._offers.values() for name in (offer.site, inside_of(offer))}
        sites |= {STORE_SITE} if not plan.is_direct else set()
        self._links = tuple(link for link in links if {link.from_site, link.to_site} <= sites)
        world = self._world(known, self._links)
        self._crowded = host_cores(plan, world) is not None and plan.num_members > 1
        self._schedule, _ = lay_out(plan, world)

    def used_links(self) -> list[Ends]:
        """Ends of the known links that messages of the plan cross."""
        if self._plan.num_members == 1:
            return []
        known = dict.fromkeys((link.from_site, link.to_site) for link in self._links)
        if not self._plan.is_direct:
            return [ends for ends in known if STORE_SITE in ends]
        rows = member_sites(self._plan)
        sites = [site for row in (rows if len(rows) > 1 else rows * self._plan.num_replicas) for site in row]
        has_copies = self._plan.num_holders > self._plan.num_replicas
        pairs = [(site, site) for site in sites] if has_copies else []
        used = {link_ends(*pair) for pair in (*pairs, *itertools.permutations(sites, 2))}
        used |= {(outer_site(source), outer_site(target)) for source, target in used if (source, target) not in known}
        return [ends for ends in known if ends in used]

    def simulate(self, compute: _Factors, link_factors: LinkFactors) -> MeasuredStep:
        return self._simulated(self._world(self.profiles(compute), capped(self._links, link_factors)))

    def simulate_known(self) -> MeasuredStep:
        """Simulate the step without any correction."""
        return self._simulated(self._world(self._known, self._links))

    def _simulated(self, world: World) -> MeasuredStep:
        layout, _ = layout_of(self._plan, world)
        return simulated_step(self._plan, layout, simulate_step(self._schedule, layout))

    def _world(self, profiles: Mapping[str, Profile], links: Sequence[Link]) -> World:
        of_batch = {
            name: structs.replace(profile, batch_size=self._plan.batch_size) for name, profile in profiles.items()
        }
        return World(of_batch, directed_links(links), looks=self._looks)

    def updated(self, compute: _Factors, measured: MeasuredStep, simulated: MeasuredStep) -> _Factors:
        """Multiply each factor by measured over simulated time.

        A process only starts the work of a GPU, and cannot time it action by action. There, the whole step decides.
        """
        factors: _Factors = {}
        for work, seats in self.works.items():
            if self._known[work[0]].device.kind == "cuda":
                ratio = measured.step_s / simulated.step_s
                factors[work] = compute[work].times(ratio, ratio)
            else:
                factors[work] = compute[work].times(
                    _mean_ratio(seats, measured.forward_s, simulated.forward_s),
                    _mean_ratio(seats, measured.backward_s, simulated.backward_s),
                )
        return factors

    def profiles(self, compute: _Factors) -> dict[str, Profile]:
        """All profiles; those of the run's offers have these factors, and what else its members have measured."""
        return {
            name: self._measured(name, profile, compute) if name in self._members else profile
            for name, profile in self._known.items()
        }

    def _measured(self, name: str, profile: Profile, compute: _Factors) -> Profile:
        own = {stage: factors for (offer, stage), factors in compute.items() if offer == name}
        scaled = scaled_profile(profile, self._plan, own, crowded=self._crowded)
        members = self._members[name]
        num_bytes = sum(profile.parameter_bytes(*self._plan.partition[member.stage]) for member in members)
        update_s = sum(member.update.median_s for member in members)
        of_steps = statistics.median(member.step.spread for member in members) / _QUARTILE_RANGE
        return structs.replace(
            scaled,
            estimated_from="",
            optimizer_s_per_byte=update_s / num_bytes if num_bytes else profile.optimizer_s_per_byte,
            between_steps_s=statistics.median(member.between.median_s for member in members),
            spread=structs.replace(profile.spread, of_steps=of_steps or profile.spread.of_steps),
        )


def _mean_ratio(seats: Sequence[Seat], measured: Mapping[Seat, float], simulated: Mapping[Seat, float]) -> float:
    """The factor of members with the same work: the harmonic mean of theirs, since speeds add up."""
    ratios = [measured[seat] / simulated[seat] for seat in seats if simulated[seat] > 0 and measured[seat] > 0]
    return statistics.harmonic_mean(ratios) if ratios else 1.0
