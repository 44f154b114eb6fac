"""Why a choice between sites is as it is: granularity, what one more member brings, and what a larger batch would."""

import math

import msgspec

from zooid.core.errors import InputError
from zooid.core.records import Record
from zooid.core.units import SECONDS_PER_HOUR, format_duration, format_usd
from zooid.planner.sites.model import Counts, Model
from zooid.planner.sites.problem import SiteChoice, SiteProblem


class OneMore(Record, frozen=True, kw_only=True):
    """What one more member on an offer would change, with the same averaging; where there was none before, or that is
    not possible any more, with the one that suits the goal best."""

    offer: str
    can_be_had: bool
    time_s: float
    """Of the run, more than now; below 0 where it is faster."""
    usd: float
    """More than now."""
    sentence: str


class BatchAdvice(Record, frozen=True, kw_only=True):
    """The smallest batch at which computing is so many times as long as averaging, with the same members."""

    granularity: float
    """That is asked for."""
    batch_size: int
    speedup: float
    """Samples a second, over those of now."""
    time_s: float
    usd: float
    sentence: str


class SiteReasons(Record, frozen=True, kw_only=True):
    """What a reader asks first."""

    granularity: float
    one_more: tuple[OneMore, ...]
    larger_batch: BatchAdvice | None
    """None where the granularity is reached, or one member averages with nobody."""
    sentences: tuple[str, ...]


def site_reasons(problem: SiteProblem, choice: SiteChoice, wanted_granularity: float = 4.0) -> SiteReasons:
    """In numbers and in sentences; 4 is what all models had that scaled well (clouds and continents §3)."""
    more = tuple(_one_more(problem, choice, at) for at in range(len(problem.offers)))
    batch = None if choice.granularity >= wanted_granularity else batch_for(problem, choice, wanted_granularity)
    sentences = [_granularity_sentence(choice), *(each.sentence for each in more)]
    if batch is not None:
        sentences.append(batch.sentence)
    return SiteReasons(granularity=choice.granularity, one_more=more, larger_batch=batch, sentences=tuple(sentences))


def batch_for(problem: SiteProblem, choice: SiteChoice, granularity: float) -> BatchAdvice:
    """The smallest batch that reaches this granularity: averaging takes as long whatever the batch, computing does not
    ("for all other models, doubling the TBS doubles the granularity", clouds and continents §3)."""
    if not 0 < granularity < math.inf:
        raise InputError(f"a granularity of {granularity} is asked for; ask for one above 0, for example 4")
    speed = problem.batch_size / choice.compute_s
    batch_size = max(1, math.ceil(granularity * choice.averaging_s * speed * (1 - 1e-12)))
    model = Model(msgspec.structs.replace(problem, batch_size=batch_size))
    then = model.choice(model.counts(choice.num_by_offer), model.method(choice.averaging, choice.hub))
    speedup = then.samples_per_s / choice.samples_per_s
    sentence = (
        f"A batch of {batch_size} instead of {problem.batch_size} reaches a granularity of {granularity:g}: "
        f"{speedup:.2f} times as many samples a second, {format_duration(then.time_s)} instead of "
        f"{format_duration(choice.time_s)}, {format_usd(then.usd)} instead of {format_usd(choice.usd)}; whether the "
        "optimizer still learns as well is not known here."
    )
    return BatchAdvice(
        granularity=granularity, batch_size=batch_size, speedup=speedup, time_s=then.time_s, usd=then.usd,
        sentence=sentence,
    )  # fmt: skip


def _one_more(problem: SiteProblem, choice: SiteChoice, at: int) -> OneMore:
    offer = problem.offers[at]
    widened = tuple(msgspec.structs.replace(each, most=each.most + 1) for each in problem.offers)
    model = Model(msgspec.structs.replace(problem, offers=widened, most_members=None))
    counts = model.counts(choice.num_by_offer)
    is_allowed = choice.num_members < (problem.most_members or math.inf)
    counts[at] += 1
    same = [model.method(choice.averaging, choice.hub)] if choice.num_members > 1 else []
    values = [_value(problem, model, counts, method) for method in same]
    if not values or math.isinf(values[0][1]):
        values = [_value(problem, model, counts, method) for method in model.methods]
    time_s, usd = min(values)[1:]
    more_s, more_usd = time_s - choice.time_s, usd - choice.usd
    if math.isinf(time_s):
        sentence = f"One more {offer.name} cannot exchange with the others: no link is known."
    else:
        pace = "faster" if more_s < 0 else "slower"
        cost = "more" if more_usd >= 0 else "less"
        sentence = (
            f"One more {offer.name} is {abs(more_s) / choice.time_s:.1%} {pace} "
            f"({format_duration(abs(more_s))}) and costs {format_usd(abs(more_usd))} {cost}."
        )
    can_be_had = is_allowed and counts[at] <= offer.most
    return OneMore(offer=offer.name, can_be_had=bool(can_be_had), time_s=more_s, usd=more_usd, sentence=sentence)


def _value(problem: SiteProblem, model: Model, counts: Counts, method: int) -> tuple[float, float, float]:
    totals = model.totals(counts[None], method)
    time_s, usd = float(totals.time_s[0]), float(totals.usd[0])
    weight = (problem.hour_usd or 0.0) / SECONDS_PER_HOUR
    value = {"fastest": time_s, "cheapest": usd, "weighted": usd + weight * time_s}[problem.goal]
    return (value if math.isfinite(time_s) else math.inf), time_s, usd


def _granularity_sentence(choice: SiteChoice) -> str:
    if choice.averaging_s == 0:
        return f"{choice}: one member, which averages with nobody."
    at_best = choice.granularity + 1
    return (
        f"{choice}: a round computes for {format_duration(choice.compute_s)} and averages for "
        f"{format_duration(choice.averaging_s)}, a granularity of {choice.granularity:.2f}; however many members are "
        f"added, it becomes at most {at_best:.2f} times as fast while averaging takes as long."
    )
