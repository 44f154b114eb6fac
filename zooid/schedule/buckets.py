"""Buckets of gradients: each is reduced in one message, as soon as the last backward has completed it."""

from collections.abc import Sequence

LEAST_BUCKET_BYTES = {True: 2**19, False: 2**22}
"""The smallest bucket worth a message, by whether members are connected; a store charges for every request."""
MOST_BUCKETS = 8


def reduces_early(stage: int) -> bool:
    """Whether a stage reduces its gradients while its last backward still runs.

    The first stage does: it ends last, and nothing else uses its links. On any other stage, a reduce begins when the
    gradients for the stage before are sent, since the whole pipeline waits for these.
    """
    return stage == 0


def cut_buckets(sizes: Sequence[int], *, is_direct: bool) -> list[tuple[int, int]]:
    """Cut parameters into runs [first, end) of about equal size, given their bytes in order of completion.

    The last bucket is complete when the backward ends, so nothing hides its transfer.

    >>> cut_buckets([2**20] * 4, is_direct=True)
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    >>> cut_buckets([2**20] * 4, is_direct=False)
    [(0, 4)]
    """
    total = sum(sizes)
    num_buckets = max(1, min(MOST_BUCKETS, total // LEAST_BUCKET_BYTES[is_direct]))
    cuts: list[tuple[int, int]] = []
    first, total_so_far = 0, 0
    for index, size in enumerate(sizes):
        total_so_far += size
        if total_so_far >= total * (len(cuts) + 1) / num_buckets and index + 1 < len(sizes):
            cuts.append((first, index + 1))
            first = index + 1
    return [*cuts, (first, len(sizes))]
