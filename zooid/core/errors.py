"""Every error that zooid raises on purpose.

ZooidError
├── InputError              what the user gave is refused before anything starts
│   ├── UnitError           a duration, size, rate or price that cannot be read
│   ├── RecordError         a file of a newer version, of another kind, or with a wrong field
│   │   └── OlderRecord     a file of an older version, which has to be made again
│   ├── JobError            a job file or one of its parts
│   ├── CatalogError        an offer or a price that is unknown, or a malformed row
│   ├── LayerError          a model that cannot be traced or cut into layers
│   └── PlanError           limits that no plan can meet, or a plan that does not fit the job
├── ScheduleError           an action list that is incomplete, out of order, or would deadlock
├── StoreError              the object store
│   ├── ObjectNotFound      no object under this key
│   ├── ObjectExists        a create-only put that came second
│   ├── StoreUnavailable    the store failed or timed out; trying again may help
│   └── UnsafeStore         the store lets a second writer win a create-only put
├── CommError               a transfer between members
│   ├── CommAborted         the wait was aborted
│   │   └── Superseded      another coordinator has gone on with the run
│   ├── CommTimeout         a peer did not deliver in time
│   ├── PeerLost            a peer's connection broke, or the peer gave up
│   └── DamagedMessage      a message that is truncated or altered, however often it is read
├── CheckpointError         a checkpoint that is missing, damaged, or of another model
├── TrainingError           training itself cannot go on, for example a loss that is not finite
└── MemberFailed            a member exited; carries its name, its exit and its own traceback
"""


class ZooidError(Exception):
    """The root: catch this to catch everything that zooid raises on purpose."""

    details = ""
    """What a user reads beside the message: frames of the user's own files, or the end of a member's log."""
    traceback_text = ""
    """The member's whole traceback; empty where no member raised it."""


class InputError(ZooidError):
    """What the user gave is refused before anything starts."""


class UnitError(InputError):
    """A duration, size, rate or price that cannot be read."""


class RecordError(InputError):
    """A file of a newer version, of another kind, or with a wrong field."""


class OlderRecord(RecordError):
    """A file of an older version, which has to be made again."""


class JobError(InputError):
    """A job file, or one of the parts of its job, cannot be used."""


class CatalogError(InputError):
    """An offer or a price that is unknown, or a malformed row of the catalog."""


class PlanError(InputError):
    """Limits that no plan can meet, or a plan that does not fit the job."""


class LayerError(InputError):
    """A model that cannot be traced or cut into layers."""


class ScheduleError(ZooidError):
    """An action list that is incomplete, out of order, or would deadlock."""


class StoreError(ZooidError):
    """The object store did not do what was asked."""


class ObjectNotFound(StoreError):
    """There is no object under this key."""


class ObjectExists(StoreError):
    """A create-only put came second: the object is already there."""


class StoreUnavailable(StoreError):
    """The store failed or timed out; trying again may help."""


class UnsafeStore(StoreError):
    """The store lets a second writer win a create-only put."""


class CommError(ZooidError, RuntimeError):
    """A transfer between members failed; a RuntimeError too, as torch.distributed's own backends raise."""


class CommAborted(CommError):
    """The wait was aborted, by this member or because the run is ending."""


class Superseded(CommAborted):
    """Another coordinator has gone on with the run: whoever worked for an earlier one ends and changes nothing."""


class CommTimeout(CommError):
    """A peer did not deliver in time."""


class PeerLost(CommError):
    """A peer's connection broke, or the peer gave up and said so."""

    def __init__(self, message: str, rank: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        """The rank whose connection broke by itself; None where a peer left on purpose, or gave up and said so."""
        self.cause = cause
        """Class of the error for which a peer gave up; empty where it did not say so."""


class DamagedMessage(CommError):
    """A message is truncated or altered, however often it is read."""


class CheckpointError(ZooidError):
    """A checkpoint that is missing, damaged, or of another model."""


class TrainingError(ZooidError):
    """Training cannot go on, for example because the loss is not finite."""


class MemberFailed(ZooidError):
    """A member exited before its work was done; the message is one line, the traceback the member's own.

    `during` replaces the name of a member that the user has never heard of, as `while the job was being measured`.
    """

    def __init__(self, member: str, exit_text: str, cause: str = "", during: str = "") -> None:
        cause = cause.strip().partition("\n")[0]
        if during:
            message = f"{during}: {cause}" if cause else f"{during}, its process {exit_text}"
        else:
            message = f"member {member} {exit_text}" + (f": {cause}" if cause else "")
        super().__init__(message)
        self.member = member
        self.exit_text = exit_text
