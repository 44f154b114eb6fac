"""Parameters that several stages use: which stages sum their gradients with one another, and in which order."""

from collections.abc import Iterable, Mapping, Sequence


def shared_between(
    users: Mapping[str, Iterable[int]], spans: Sequence[tuple[int, int]]
) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Names of parameters by the stages that share them, in an order that all members agree on.

    `users` says which layers use a parameter, `spans` which layers [first, end) are a stage's.

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
