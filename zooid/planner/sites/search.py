"""The best choice between sites, exactly: for a goal, or all that are not beaten in both time and cost."""

import time
from collections.abc import Mapping

import numpy as np

from zooid.core.errors import InputError, PlanError
from zooid.core.plans.search_result import Proof
from zooid.planner.sites.boxes import MOST_BOXES, search_boxes
from zooid.planner.sites.limits import loosenings
from zooid.planner.sites.model import Model
from zooid.planner.sites.problem import Averaging, SiteChoice, SiteFront, SitePlan, SiteProblem
from zooid.planner.sites.wanted import Best, Front
from zooid.predictor.equations.array_checks import Array


def solve_sites(problem: SiteProblem, num_choices: int = 4, most_boxes: int = MOST_BOXES) -> SitePlan:
    """The best members and averaging for the goal within the limits, and the next best with other members.

    PlanError where no choice meets the limits: which of them binds, and what would help.
    """
    if num_choices < 1:
        raise InputError(f"{num_choices} choices are asked for; ask for at least 1")
    began_s = time.perf_counter()
    model, found = Model(problem), Best(problem, num_choices)
    left = search_boxes(model, found, most_boxes)
    if not found.choices:
        raise _refused(problem, left, most_boxes)
    choices = [model.choice(np.array(counts, np.int64), method) for counts, method in found.choices]
    is_proven = not len(left) or left.min() >= found.value
    proof = Proof(
        status="optimal" if is_proven else "bounded",
        gap=0.0 if is_proven else float(1 - left.min() / found.value),
        wall_s=time.perf_counter() - began_s,
    )
    return SitePlan(best=choices[0], next_best=tuple(choices[1:]), proof=proof)


def site_front(problem: SiteProblem, most_boxes: int = MOST_BOXES) -> SiteFront:
    """Every choice within the limits that no other beats in both time and cost; the goal does not matter."""
    began_s = time.perf_counter()
    model, found = Model(problem), Front(problem)
    left = search_boxes(model, found, most_boxes)
    if not len(found.time_s):
        raise _refused(problem, left, most_boxes)
    rows = zip(found.counts, found.method.tolist(), strict=True)
    # of an unfinished front nothing is known: what is missing may be better by all there is
    proof = Proof(
        status="bounded" if len(left) else "optimal",
        gap=1.0 if len(left) else 0.0,
        wall_s=time.perf_counter() - began_s,
    )
    return SiteFront(choices=tuple(model.choice(counts, method) for counts, method in rows), proof=proof)


def site_choice(
    problem: SiteProblem, num_members: Mapping[str, int], averaging: Averaging = "by_site", hub: str | None = None
) -> SiteChoice:
    """What these members, by the names of their offers, would take and cost, whatever the limits."""
    names = [offer.name for offer in problem.offers]
    if unknown := set(num_members) - set(names):
        raise InputError(f"there is no offer {', '.join(sorted(unknown))} in the problem; it has {', '.join(names)}")
    model = Model(problem)
    counts = model.counts(num_members)
    if counts.min() < 0 or counts.sum() < 1:
        raise InputError(f"{dict(num_members)} are no members; give at least one, and none below 0")
    if (averaging == "hub") != (hub is not None) or hub not in (None, *problem.sites):
        raise InputError(
            f"averaging is {averaging} and `hub` is {hub!r}; a hub needs one of {', '.join(problem.sites)}"
        )
    found = model.choice(counts, model.method(averaging, hub))
    if not np.isfinite(found.averaging_s):
        raise PlanError(f"{found} is not possible: two of its sites have no link; average through a hub, or leave one")
    return found


def _refused(problem: SiteProblem, left: Array, most_boxes: int) -> PlanError:
    if len(left):
        return PlanError(
            f"no choice within the limits was found in {most_boxes} boxes of counts, and none was ruled out; raise "
            "`most_boxes`, or allow fewer members"
        )
    return PlanError(" ".join(each.sentence for each in loosenings(problem, most_boxes)))
