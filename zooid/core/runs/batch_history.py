"""The batch sizes and learning-rate factors of a run, step by step."""

import math

from zooid.core.records import Record, require, require_at_least


class BatchPiece(Record, frozen=True, kw_only=True):
    """A part of a run with one batch size and one learning-rate factor. It ends where the next piece begins."""

    first_step: int
    batch_size: int
    """Number of samples in a step, over all members."""
    rate_factor: float = 1.0
    """Factor on the learning rate that the job's optimizer and scheduler give."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "first_step")
        require_at_least(1, self, "batch_size")
        require(
            0 < self.rate_factor < math.inf,
            f"`rate_factor` is {self.rate_factor}; it must be a finite number above 0",
        )


def check_order(pieces: tuple[BatchPiece, ...]) -> None:
    """Reject pieces that do not begin one after the other."""
    steps = [piece.first_step for piece in pieces]
    for before, step in zip([0, *steps], steps, strict=False):
        require(step > before, f"`batches` has a piece from step {step} on after step {before}; give them in order")


def changed_from(pieces: tuple[BatchPiece, ...], step: int, begins: tuple[int, float] | None) -> tuple[BatchPiece, ...]:
    """Return the history in which the given batch size and rate factor begin with this step.

    None means that no piece begins with it. Whatever was to begin with this step or later is replaced.

    >>> first = changed_from((), 4, (16, 0.5))
    >>> [(piece.first_step, piece.batch_size, piece.rate_factor) for piece in first]
    [(4, 16, 0.5)]
    >>> changed_from(first, 4, None)
    ()
    """
    kept = tuple(piece for piece in pieces if piece.first_step < step)
    if begins is None:
        return kept
    batch_size, rate_factor = begins
    return (*kept, BatchPiece(first_step=step, batch_size=batch_size, rate_factor=rate_factor))
