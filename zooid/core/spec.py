"""What a member is started with. A member needs its spec and the store, nothing else."""

from typing import Literal

from zooid.core.records import FileRecord


class RunClaim(FileRecord, frozen=True, kw_only=True, tag="run"):
    """Written create-only before anything else: whoever writes it owns the folder."""

    run: str


class MemberSpec(FileRecord, frozen=True, kw_only=True):
    """Common to every program that a platform can start."""

    run: str
    member: str
    store: str
    """URL of the run's folder in the object store; credentials come from the member's environment."""
    job_file: str
    num_threads: int


class ProfilerSpec(MemberSpec, frozen=True, kw_only=True, tag="profiler_spec"):
    """For `python -m zooid.profiler`: check the job, measure its layers and the store, write the profile."""

    site: str
    """Where it runs: one end of the links it measures."""
    num_neighbours: int
    """How many other members will share the machine's cores; layers are then also measured in such company."""


class WorkerSpec(MemberSpec, frozen=True, kw_only=True, tag="worker_spec"):
    """For `python -m zooid.worker`."""

    task: Literal["prepare", "train"]
    """`prepare` checks the job against the plan and writes checkpoint 0; `train` takes a seat in the roster."""
    roster: int
    timeout_s: float
    """A peer that delivers nothing for this long is taken for lost."""


class Failure(FileRecord, frozen=True, kw_only=True, tag="failure"):
    """The last words of a member, so that whoever started it can tell the user."""

    member: str
    error: str
    """Class of the error."""
    message: str
    traceback: str
    is_input_error: bool
    """The user's input was refused: the message alone explains it."""
    is_consequence: bool
    """The member failed only because a peer went away; the peer's own failure is the cause."""
