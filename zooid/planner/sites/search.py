"""Branch and bound over the number of members on each offer.

The search halves boxes of counts, the box with the least bound first, and prunes boxes that cannot improve the front.
One more member can make a round slower, so that the ends of a range prove nothing; a bound over the whole range does.
"""

import math
import time

import numpy as np

from zooid.planner.front import Ints, Mask, RunningFront, front_proof
from zooid.planner.sites.answer import SiteFront, make_choice
from zooid.planner.sites.arrays import BY_SITE, FIRST_HUB, SiteArrays
from zooid.planner.sites.bounds import Boxes, SiteBounds
from zooid.planner.sites.problem import SiteProblem
from zooid.predictor.equations.array_checks import Array

MAX_BOXES = 3_000_000
"""The number of boxes after which the search gives up on a proof."""
_BOXES_TOGETHER = 1024
"""Boxes that are halved together: arrays of fewer boxes cost as much."""
_MAX_SAME_OFFER = 256
"""The largest number of members on a single offer that is tried before the search."""


def site_front(problem: SiteProblem, max_boxes: int = MAX_BOXES, limit_s: float = math.inf) -> SiteFront:
    """Return every choice that no other dominates in time and cost, as far as they are found within the limits."""
    start_s = time.perf_counter()
    arrays, front = SiteArrays(problem), RunningFront(len(problem.offers) + 1)
    _add_simple_choices(arrays, front)
    is_complete = _search(arrays, front, max_boxes, start_s + limit_s)
    choices = tuple(make_choice(arrays, row[:-1], int(row[-1])) for row in front.rows)
    return SiteFront(choices=choices, proof=front_proof(start_s, is_complete=is_complete))


def _search(arrays: SiteArrays, front: RunningFront, max_boxes: int, deadline_s: float) -> bool:
    """Add the choices that improve the front, and return whether all boxes were searched or pruned."""
    bounds = SiteBounds(arrays)
    boxes, time_s, usd = _feasible(bounds, _all_counts(arrays))
    num_halved = 0
    while True:
        promising = front.can_improve(time_s, usd)
        boxes, time_s, usd = boxes.take(promising), time_s[promising], usd[promising]
        if not len(boxes) or num_halved >= max_boxes or time.perf_counter() > deadline_s:
            return not len(boxes)
        first = np.arange(len(boxes))
        if len(boxes) > _BOXES_TOGETHER:
            rank = time_s / front.time_s[0] + usd / max(float(front.usd[-1]), 1e-9)
            first = np.argsort(rank, kind="stable")[:_BOXES_TOGETHER]
        num_halved += len(first)
        rest = np.ones(len(boxes), bool)
        rest[first] = False
        halves = _halve(arrays, boxes.take(first))
        is_point = (halves.low == halves.high).all(axis=1)
        _add_choices(arrays, front, halves.low[is_point], halves.method[is_point])
        halves, halves_time_s, halves_usd = _feasible(bounds, halves.take(~is_point))
        boxes = Boxes.join([boxes.take(rest), halves])
        time_s, usd = np.concatenate([time_s[rest], halves_time_s]), np.concatenate([usd[rest], halves_usd])


def _feasible(bounds: SiteBounds, boxes: Boxes) -> tuple[Boxes, Array, Array]:
    """Return the boxes that may hold a feasible choice, with their bounds of time and cost."""
    time_s, usd = bounds.of(boxes)
    kept = np.isfinite(time_s)
    return boxes.take(kept), time_s[kept], usd[kept]


def _all_counts(arrays: SiteArrays) -> Boxes:
    """Return one box of all counts for every averaging method. A hub has members."""
    num_sites, methods = len(arrays.sites), np.array(arrays.methods, np.int64)
    low = np.zeros((len(methods), len(arrays.max_counts)), np.int64)
    high = np.minimum(np.tile(arrays.max_counts, (len(methods), 1)), int(arrays.max_members))
    is_used = np.equal(methods[:, None] - FIRST_HUB, np.arange(num_sites))
    return _tightened(arrays, Boxes(low, high, is_used, methods))


def _halve(arrays: SiteArrays, boxes: Boxes) -> Boxes:
    """Split each box in two: first by whether a site is used, on which averaging depends most, then by counts."""
    rows = np.arange(len(boxes))
    is_open: Mask = ~boxes.is_used & (boxes.high @ arrays.is_at > 0)
    splits_site: Mask = np.any(is_open, axis=1)
    # the site that could add most speed, or else the offer with the widest range
    site = np.where(is_open, (boxes.high * arrays.speed) @ arrays.is_at, -1.0).argmax(axis=1)
    offer = (boxes.high - boxes.low).argmax(axis=1)
    middle = (boxes.low[rows, offer] + boxes.high[rows, offer]) // 2
    is_at_site = arrays.is_at.T[site] > 0

    upper_low, lower_high = boxes.low.copy(), boxes.high.copy()
    by_count = np.flatnonzero(~splits_site)
    upper_low[by_count, offer[by_count]] = middle[by_count] + 1
    lower_high[by_count, offer[by_count]] = middle[by_count]
    lower_high[np.logical_and(splits_site[:, None], is_at_site)] = 0
    upper_used = boxes.is_used.copy()
    upper_used[splits_site, site[splits_site]] = True
    upper = Boxes(upper_low, boxes.high, upper_used, boxes.method)
    lower = Boxes(boxes.low, lower_high, boxes.is_used, boxes.method)
    return _tightened(arrays, Boxes.join([upper, lower]))


def _tightened(arrays: SiteArrays, boxes: Boxes) -> Boxes:
    """Remove counts that no choice in a box has, and boxes that are empty."""
    has_one_offer = arrays.is_at.sum(axis=0) == 1  # such a site is used only with a member on this offer
    low = np.maximum(boxes.low, (boxes.is_used & has_one_offer) @ arrays.is_at.T)
    is_used = boxes.is_used | (low @ arrays.is_at > 0)
    room = arrays.max_members - np.maximum(low @ arrays.is_at, is_used).sum(axis=1)
    # one member is reserved for each used site that has none yet
    reserved = (is_used & (low @ arrays.is_at == 0)) @ arrays.is_at.T
    high = np.minimum(boxes.high, low + np.maximum(room[:, None], 0) + reserved).astype(np.int64)
    sizes = high @ arrays.is_at
    is_possible: Mask = (
        (room >= 0) & (sizes.sum(axis=1) > 0) & ((sizes > 0) | ~is_used).all(axis=1) & (low <= high).all(axis=1)
    )
    if BY_SITE in arrays.methods:  # with fewer than three sites, a hub is no better than averaging by site
        is_possible &= (boxes.method < FIRST_HUB) | ((sizes > 0).sum(axis=1) > 2)
    return Boxes(low, high, is_used, boxes.method).take(is_possible)


def _add_choices(arrays: SiteArrays, front: RunningFront, counts: Ints, methods: Ints) -> None:
    """Add the feasible choices among these to the front."""
    fits = (counts.sum(axis=1) <= arrays.max_members) & (counts.sum(axis=1) > 0)
    counts, methods = counts[fits], methods[fits]
    for method in set(methods.tolist()):
        method_counts = counts[methods == method]
        totals = arrays.totals(method_counts, method)
        is_feasible = np.isfinite(totals.averaging_s)
        rows = np.column_stack([method_counts, np.full(len(method_counts), method)])
        front.add(rows[is_feasible], totals.time_s[is_feasible], totals.usd[is_feasible])


def _add_simple_choices(arrays: SiteArrays, front: RunningFront) -> None:
    """Add choices of a single offer, and all members of all offers, as first incumbents."""
    num_offers = len(arrays.max_counts)
    rows = [
        np.where(np.arange(num_offers) == offer, count, 0)
        for offer, max_count in enumerate(arrays.max_counts)
        for count in range(1, int(min(max_count, arrays.max_members, _MAX_SAME_OFFER)) + 1)
    ]
    counts = np.array([*rows, arrays.max_counts], np.int64)
    for method in [method for method in arrays.methods if method < FIRST_HUB] or arrays.methods:
        _add_choices(arrays, front, counts, np.full(len(counts), method))
