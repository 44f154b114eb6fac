"""Every error that zooid raises on purpose.

ZooidError
├── InputError: UnitError, RecordError (OlderRecord), JobError, CatalogError, LayerError,
│               PlanError (HopelessPlan)
├── ScheduleError
├── StoreError: ObjectNotFound, ObjectExists, StoreUnavailable, UnsafeStore
├── CommError: CommAborted (Superseded), CommTimeout, PeerLost, DamagedMessage
├── CheckpointError
├── TrainingError
└── MemberFailed
"""


class ZooidError(Exception):
    """Base class of every error that zooid raises on purpose."""

    details = ""
    """Text shown beside the message: stack frames in the user's files, or the end of a member's log."""
    traceback_text = ""
    """The full traceback of the member that raised the error; empty if no member did."""


class InputError(ZooidError):
    """The user's input is rejected before anything starts."""


class UnitError(InputError):
    """A duration, size or amount of money cannot be read."""


class RecordError(InputError):
    """A file has a newer version, another kind, or an invalid field."""


class OlderRecord(RecordError):
    """A file has an older version and has to be written anew."""


class JobError(InputError):
    """A job file, or part of its job, cannot be used."""


class CatalogError(InputError):
    """An offer or a price is unknown, or a catalog row is malformed."""


class PlanError(InputError):
    """No plan meets the limits, or a plan does not fit the job."""


class HopelessPlan(PlanError):
    """Members of a plan are lost, or run out of time, so often that its run hardly advances."""


class LayerError(InputError):
    """A model cannot be traced or cut into layers."""


class ScheduleError(ZooidError):
    """An action list is incomplete, out of order, or would deadlock."""


class StoreError(ZooidError):
    """The object store did not do what was asked."""


class ObjectNotFound(StoreError):
    """There is no object under this key."""


class ObjectExists(StoreError):
    """A create-only put came second: the object is already there."""


class StoreUnavailable(StoreError):
    """The store failed or timed out; a retry may help."""


class UnsafeStore(StoreError):
    """The store lets a second writer win a create-only put."""


class CommError(ZooidError, RuntimeError):
    """A transfer between members failed. The backends of torch.distributed raise RuntimeError, so this is one, too."""


class CommAborted(CommError):
    """A wait was aborted, by this member or because the run is ending."""


class Superseded(CommAborted):
    """Another coordinator has taken over the run; everyone under an earlier claim ends and changes nothing."""


class CommTimeout(CommError):
    """A peer did not deliver in time."""


class PeerLost(CommError):
    """A peer's connection broke, or the peer gave up and said so before it left."""

    def __init__(self, message: str, rank: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        """The rank whose connection broke; None if the peer left on purpose, or gave up and said so."""
        self.cause = cause
        """Class name of the error that made the peer give up; empty if it did not say."""


class DamagedMessage(CommError):
    """A message stays truncated or altered after a retry."""


class CheckpointError(ZooidError):
    """A checkpoint is missing, damaged, or from another model."""


class TrainingError(ZooidError):
    """Training cannot continue, for example because the loss is not finite."""


class MemberFailed(ZooidError):
    """A member exited before its work was done. The message is one line; the traceback is the member's own.

    `during` replaces the member's name where users do not know it, as in `while the job was being measured`.
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
        self.cause = cause
        """The member's own error; empty if it was killed."""
