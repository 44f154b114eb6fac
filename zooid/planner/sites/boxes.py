"""Branch and bound over members: boxes of counts are halved, least bound first, until none can hold anything better.

One more member can make a round slower, so that no end of a range can be trusted; a bound over the whole range can.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from zooid.planner.sites.bounds import Bounds, Boxes
from zooid.planner.sites.model import BY_SITE, FIRST_HUB, Counts, Model
from zooid.predictor.equations.array_checks import Array

MOST_BOXES = 3_000_000
"""Where a search gives up on a proof."""
_AT_ONCE = 1024
"""Boxes that are halved together: arrays of fewer cost as much."""


class Wanted(Protocol):
    """What is looked for, and so what need not be looked at."""

    def add(self, counts: Counts, method: NDArray[np.int64], time_s: Array, usd: Array) -> None:
        """Choices that were found."""

    def may_hold(self, time_s: Array, usd: Array) -> NDArray[np.bool_]:
        """Whether something with these, or above them, is still wanted."""

    def order(self, time_s: Array, usd: Array) -> Array:
        """The lower, the sooner."""


def search_boxes(model: Model, wanted: Wanted, most_boxes: int) -> Array:
    """Offers all choices that may be wanted to `wanted`; gives the orders of boxes that it did not get to, none where
    the search is complete."""
    bounds = Bounds(model)
    _add_simple_choices(model, wanted)
    boxes, time_s, usd = _possible(bounds, _whole(model))
    num_looked_at = 0
    while len(boxes):
        kept = wanted.may_hold(time_s, usd)
        boxes, time_s, usd = boxes.take(kept), time_s[kept], usd[kept]
        if not len(boxes):
            break
        order = wanted.order(time_s, usd)
        if num_looked_at >= most_boxes:
            return order
        first = np.argsort(order, kind="stable")[:_AT_ONCE] if len(boxes) > _AT_ONCE else np.arange(len(boxes))
        num_looked_at += len(first)
        rest = np.ones(len(boxes), bool)
        rest[first] = False
        halves = _halve(model, boxes.take(first))
        is_point = (halves.low == halves.high).all(axis=1)
        _add_choices(model, wanted, halves.low[is_point], halves.method[is_point])
        halves, new_time_s, new_usd = _possible(bounds, halves.take(~is_point))
        boxes = Boxes.join([boxes.take(rest), halves])
        time_s, usd = np.concatenate([time_s[rest], new_time_s]), np.concatenate([usd[rest], new_usd])
    return np.zeros(0)


def _possible(bounds: Bounds, boxes: Boxes) -> tuple[Boxes, Array, Array]:
    """Boxes in which something can be done, with their bounds."""
    time_s, usd = bounds.of(boxes)
    kept = np.isfinite(time_s)
    return boxes.take(kept), time_s[kept], usd[kept]


def _whole(model: Model) -> Boxes:
    """Everything, for every way of averaging; a hub has members."""
    num_sites, methods = len(model.sites), np.array(model.methods, np.int64)
    low = np.zeros((len(methods), len(model.most)), np.int64)
    high = np.minimum(np.tile(model.most, (len(methods), 1)), int(model.most_members))
    is_used = np.equal(methods[:, None] - FIRST_HUB, np.arange(num_sites))
    return _tightened(model, Boxes(low, high, is_used, methods))


def _halve(model: Model, boxes: Boxes) -> Boxes:
    """Sites first, taken or not, since averaging depends on that most; then the widest range of members."""
    rows = np.arange(len(boxes))
    is_open: NDArray[np.bool_] = ~boxes.is_used & (boxes.high @ model.is_at > 0)
    is_choosing: NDArray[np.bool_] = np.any(is_open, axis=1)
    # the site that could bring most
    site = np.where(is_open, (boxes.high * model.speed) @ model.is_at, -1.0).argmax(axis=1)
    offer = (boxes.high - boxes.low).argmax(axis=1)
    middle = (boxes.low[rows, offer] + boxes.high[rows, offer]) // 2
    belongs = model.is_at.T[site] > 0

    upper_low, lower_high = boxes.low.copy(), boxes.high.copy()
    counting = np.flatnonzero(~is_choosing)
    upper_low[counting, offer[counting]] = middle[counting] + 1
    lower_high[counting, offer[counting]] = middle[counting]
    lower_high[np.logical_and(is_choosing[:, None], belongs)] = 0
    upper_used = boxes.is_used.copy()
    upper_used[is_choosing, site[is_choosing]] = True
    upper = Boxes(upper_low, boxes.high, upper_used, boxes.method)
    lower = Boxes(boxes.low, lower_high, boxes.is_used, boxes.method)
    return _tightened(model, Boxes.join([upper, lower]))


def _tightened(model: Model, boxes: Boxes) -> Boxes:
    """Without counts that no choice in the box has, and without empty boxes."""
    alone = model.is_at.sum(axis=0) == 1  # sites with one offer: taken means at least one of it
    low = np.maximum(boxes.low, (boxes.is_used & alone) @ model.is_at.T)
    is_used = boxes.is_used | (low @ model.is_at > 0)
    room = model.most_members - np.maximum(low @ model.is_at, is_used).sum(axis=1)
    # a site that is taken but has no member yet has one place of its own
    own = (is_used & (low @ model.is_at == 0)) @ model.is_at.T
    high = np.minimum(boxes.high, low + np.maximum(room[:, None], 0) + own).astype(np.int64)
    sizes = high @ model.is_at
    possible: NDArray[np.bool_] = (
        (room >= 0) & (sizes.sum(axis=1) > 0) & ((sizes > 0) | ~is_used).all(axis=1) & (low <= high).all(axis=1)
    )
    if BY_SITE in model.methods:  # fewer than three sites average by site at least as well as through a hub
        possible &= (boxes.method < FIRST_HUB) | ((sizes > 0).sum(axis=1) > 2)
    return Boxes(low, high, is_used, boxes.method).take(possible)


def _add_choices(model: Model, wanted: Wanted, counts: Counts, method: NDArray[np.int64]) -> None:
    """Those that can be done, with what they take and cost."""
    fits = (counts.sum(axis=1) <= model.most_members) & (counts.sum(axis=1) > 0)
    counts, method = counts[fits], method[fits]
    for one in set(method.tolist()):
        rows = np.flatnonzero(method == one)
        totals = model.totals(counts[rows], one)
        done = np.isfinite(totals.averaging_s)
        wanted.add(counts[rows][done], method[rows][done], totals.time_s[done], totals.usd[done])


def _add_simple_choices(model: Model, wanted: Wanted) -> None:
    """One offer alone, and all of everything: good ones among them spare looking at boxes."""
    rows = []
    for at, most in enumerate(model.most):
        for count in range(1, int(min(most, model.most_members, 256)) + 1):
            rows.append(np.where(np.arange(len(model.most)) == at, count, 0))
    rows.append(model.most)
    counts = np.array(rows, np.int64)
    for method in [each for each in model.methods if each < FIRST_HUB] or model.methods:
        _add_choices(model, wanted, counts, np.full(len(counts), method))
