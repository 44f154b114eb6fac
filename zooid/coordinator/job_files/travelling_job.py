"""Jobs that travel to other machines, as archives in the folder of a run."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zooid.coordinator.job_files.code_archive import Archive, archive_of_folder, archive_of_zooid
from zooid.coordinator.job_files.job_objects import code_of
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.spec import RunClaim
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TravellingJob:
    """A job file, and the archive in which it travels."""

    file: str
    """Path of the job file on this machine, where it may not exist any more."""
    code: str = ""
    """Digest of the archive; empty if the job does not travel."""
    code_file: str = ""
    """Path of the job file in the archive."""
    archive: Archive | None = None
    """The archive itself, if it was just made."""

    @staticmethod
    def of(claim: RunClaim) -> "TravellingJob":
        """Return the job of a run."""
        return TravellingJob(claim.job_file, claim.code, claim.code_file)

    def seen_from(self, offer: Offer) -> tuple[str, str]:
        """Return the job file as a member on this offer sees it, and the digest of its code; empty if it needs none."""
        if not offer.is_elsewhere and (not self.code or Path(self.file).is_file()):
            return self.file, ""
        assert self.code, f"the job does not travel to {offer.name}"
        return self.code_file, self.code

    def store_in(self, store: ObjectStore) -> None:
        """Write the archive, if it was just made."""
        if self.archive is not None:
            store.put(keys.code(self.code), self.archive.data)


def packed_job(file: Path, offers: Iterable[Offer]) -> TravellingJob:
    """Pack a job if one of the offers is on another machine; rejects a folder that is too large to travel."""
    if not any(offer.is_elsewhere for offer in offers):
        return TravellingJob(str(file))
    code = code_of(file)
    archive = archive_of_folder(code.root, code.extra, required=() if code.extra else (code.file,))
    if archive.secrets:
        logger.warning("left out of the job's code, since they are named like secrets: %s", ", ".join(archive.secrets))
    if archive.outside_links:
        logger.warning("left out of the job's code, since they leave the folder: %s", ", ".join(archive.outside_links))
    return TravellingJob(str(file), archive.record.digest, code.file, archive)


def store_package(store: ObjectStore) -> str:
    """Write zooid's own archive into a run's folder, unless it is there, and return its digest."""
    archive = archive_of_zooid()
    key = keys.code(archive.record.digest)
    if key not in store.list(key.rpartition("/")[0]):
        store.put(key, archive.data)
    return archive.record.digest
