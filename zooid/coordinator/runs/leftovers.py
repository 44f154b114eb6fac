"""What earlier parts of a run have left in its folder, and which only the holder of the newest claim may remove."""

from zooid.core.runs import keys
from zooid.store import ObjectStore, clear


def clear_messages(store: ObjectStore, run: str, newest: int) -> int:
    """Remove what members have exchanged under the rosters up to this one; how many objects."""
    folder = f"{keys.COMM}/{run}"
    return sum(clear(store, f"{folder}/{name}") for name in _numbered(store, folder, range(newest + 1)))


def clear_exchanged(store: ObjectStore, run: str, number: int) -> None:
    """Remove what the members of one claim have exchanged, under all of its rosters, and how to find them."""
    for folder in (f"{keys.COMM}/{run}", keys.ANSWERS, keys.JOINING, keys.HANDLES):
        for name in _numbered(store, folder, range(number, number + 1)):
            clear(store, f"{folder}/{name}")


def clear_earlier(store: ObjectStore, run: str, number: int, claim: int | None = None) -> None:
    """Remove messages, last words, specs and handles of all rosters before this one, and earlier leases.

    `claim` is the number of the newest claim, where that is an adoption of this roster.
    """
    clear_messages(store, run, number - 1)
    for folder in (keys.FAILURES, keys.SPECS, keys.ANSWERS, keys.JOINING, keys.HANDLES):
        for name in _numbered(store, folder, range(number)):
            clear(store, f"{folder}/{name}")
    newest = number if claim is None else claim
    earlier = [keys.lease(other) for other in keys.numbers(store.list(keys.LEASES)) if other < newest]
    if earlier:
        store.delete(earlier)


def _numbered(store: ObjectStore, folder: str, claims: range) -> list[str]:
    """Names of the folders that belong to rosters of these claims."""
    named = [(name, keys.roster_in(name)) for name in store.list_folders(folder)]
    return [name for name, found in named if found is not None and found[0] in claims]
