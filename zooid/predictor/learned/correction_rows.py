"""What a run has corrected, as rows for people to read."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from zooid.core.plans.correction import CorrectedPart, Correction
from zooid.core.resources.link import Link
from zooid.predictor.learned.link_fit import Ends
from zooid.predictor.learned.measured_step import MeasuredStep, Seat
from zooid.predictor.simulation.layout import directed_links

_STRAGGLER = 1.1
"""A member is named if its work takes longer than the mean of the members with the same work by this factor."""

_Row = tuple[CorrectedPart, str, float, float]
"""The part, where it is, what was predicted, and what was measured."""


def correction_rows(
    run: str,
    works: Mapping[tuple[str, int], Sequence[Seat]],
    before: MeasuredStep,
    measured: MeasuredStep,
    links: Sequence[Link],
    fitted_links: Sequence[Link],
    fitted: Sequence[Ends],
) -> tuple[Correction, ...]:
    """List what was predicted and what was measured: of each stage on an offer, of each link, and of the step.

    `works` are the members by offer and stage, and `fitted` the links that messages crossed.
    """
    rows = [
        *_of_computing(works, before, measured),
        *_of_links(links, fitted_links, fitted),
        ("step", "all members", before.step_s, measured.step_s),
    ]
    return tuple(
        Correction(run=run, part=part, where=where, predicted=predicted, measured=found)
        for part, where, predicted, found in rows
    )


def _of_computing(
    works: Mapping[tuple[str, int], Sequence[Seat]], before: MeasuredStep, measured: MeasuredStep
) -> Iterator[_Row]:
    parts: tuple[tuple[CorrectedPart, dict[Seat, float], dict[Seat, float]], ...] = (
        ("forward", before.forward_s, measured.forward_s),
        ("backward", before.backward_s, measured.backward_s),
        ("update", before.update_s, measured.update_s),
    )
    for (offer, stage), seats in works.items():
        for part, predicted, found in parts:
            mean_s = statistics.fmean(found[seat] for seat in seats)
            yield part, f"stage {stage} on {offer}", statistics.fmean(predicted[seat] for seat in seats), mean_s
            for replica, _ in seats:
                if part != "update" and found[replica, stage] > _STRAGGLER * mean_s:
                    where = f"r{replica}s{stage}, slower than others"
                    yield part, where, predicted[replica, stage], found[replica, stage]


def _of_links(links: Sequence[Link], fitted_links: Sequence[Link], fitted: Sequence[Ends]) -> Iterator[_Row]:
    known, found = directed_links(links), directed_links(fitted_links)
    for ends in fitted:
        where = f"{ends[0]} to {ends[1]}"
        yield "bandwidth", where, known[ends].bytes_per_s, found[ends].bytes_per_s
        yield "round trip", where, known[ends].rtt_s, found[ends].rtt_s
