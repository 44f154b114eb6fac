"""The claims in a run's folder: who owns it, and which job file it was begun with."""

from pathlib import Path

from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.runs import keys
from zooid.core.runs.spec import RunClaim
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record


def last_claim(store: ObjectStore) -> tuple[int, RunClaim]:
    """The number of the newest claim, and the newest claim under which members have trained.

    They differ where somebody wanted to go on and was refused, with another job file for one: what was refused does not
    count, but its number is used.
    """
    newest = max(keys.numbers(store.list(keys.CLAIMS)), default=0)
    trained = [number for number, _ in keys.rosters(store.list(keys.ROSTERS)) if number <= newest]
    key = keys.claim(max(trained, default=0))
    try:
        return newest, read_record(store, key, RunClaim)
    except ObjectNotFound as error:
        raise no_run(store) from error


def no_run(store: ObjectStore) -> InputError:
    """Return the error for a folder without a run."""
    return InputError(
        f"{store.url} holds no run; give the folder that `zooid train` got with --store, or that it named"
    )


def remembered_job_file(store: ObjectStore, claim: RunClaim) -> Path:
    """Where the run's job file lies, if it still lies there."""
    if not claim.job_file or not Path(claim.job_file).is_file():
        raise InputError(
            f"the job file of the run in {store.url} is not at {claim.job_file or 'a place that is known'} any more; "
            "give its path with --job (in Python, job_file=)"
        )
    return Path(claim.job_file)
