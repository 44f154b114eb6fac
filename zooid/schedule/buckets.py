"""Gradients are reduced in a few messages, each begun when the last backward has completed what is in it."""

from collections.abc import Sequence

LEAST_BUCKET_BYTES = {True: 2**19, False: 2**22}
"""Less is not worth a message of its own, by whether members are connected; a store charges for every request."""
MOST_BUCKETS = 8


def reduces_early(stage: int) -> bool:
    """Whether a stage reduces its gradients while its last backward still runs.

    The first stage does: it is the last to end, and nothing else waits for its links. Elsewhere the gradients that go
    back to the stage before are what everybody waits for, and a reduce begins when they are gone.
    """
    return stage == 0


def cut_buckets(sizes: Sequence[int], *, is_direct: bool) -> list[tuple[int, int]]:
    """Runs [first, end) of parameters, given their bytes in the order in which backward completes them.

    As many of about equal size as are worth it. The last is complete when the backward ends, and nothing hides its way.

    >>> cut_buckets([2**20] * 4, is_direct=True)
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    >>> cut_buckets([2**20] * 4, is_direct=False)
    [(0, 4)]
    """
    total = sum(sizes)
    number = max(1, min(MOST_BUCKETS, total // LEAST_BUCKET_BYTES[is_direct]))
    cuts: list[tuple[int, int]] = []
    first, so_far = 0, 0
    for index, size in enumerate(sizes):
        so_far += size
        if so_far >= total * (len(cuts) + 1) / number and index + 1 < len(sizes):
            cuts.append((first, index + 1))
            first = index + 1
    return [*cuts, (first, len(sizes))]
