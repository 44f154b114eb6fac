"""Jobs that need shared memory, on offers whose members have none."""

from collections.abc import Iterable
from pathlib import Path

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.job_source import stated_data_workers
from zooid.core.resources.offer import Offer


def check_shared_memory(job_file: Job | str | Path, file: Path, offers: Iterable[Offer]) -> None:
    """Reject data workers on offers without /dev/shm, as far as the job file says plainly that it has any.

    A number that is computed, or that comes from another module, is rejected by the first member. `file` is the file of
    the job, which may be given as an object.
    """
    num_workers = job_file.data_workers if isinstance(job_file, Job) else stated_data_workers(file, str(job_file))
    lacking = list(dict.fromkeys(offer.name for offer in offers if not offer.has_shared_memory))
    if num_workers and lacking:
        num_others = len(lacking) - 1
        others = f" and {num_others} other offer{'s' if num_others > 1 else ''}" if num_others else ""
        raise JobError(
            f"job.data_workers is {num_workers}, but members on {lacking[0]}{others} have no shared "
            "memory (/dev/shm), through which worker processes hand over samples; set job.data_workers to 0, or give "
            "an offer that has it, such as a container or a machine"
        )
