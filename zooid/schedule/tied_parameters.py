"""Tied parameters: the stages that sum the gradients of a parameter that all of them use."""

from collections.abc import Iterable, Mapping, Sequence


def shared_between(
    users: Mapping[str, Iterable[int]], spans: Sequence[tuple[int, int]]
) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Names of tied parameters by the stages that use them, in the same order on all members.

    `users` maps a parameter to the layers that use it; `spans` has the layers [first, end) of each stage.

    >>> shared_between({"embedding": (0, 3), "bias": (0, 1)}, [(0, 2), (2, 3), (3, 4)])
    {(0, 2): ('embedding',)}
    """
    shared: dict[tuple[int, ...], list[str]] = {}
    for name, layers in sorted(users.items()):
        used = set(layers)
        stages = tuple(stage for stage, (first, end) in enumerate(spans) if used.intersection(range(first, end)))
        if len(stages) > 1:
            shared.setdefault(stages, []).append(name)
    return {stages: tuple(names) for stages, names in sorted(shared.items())}
