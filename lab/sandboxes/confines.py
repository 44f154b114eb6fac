"""What a sandbox holds its program to, as the platform that is imitated does."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zooid.core.errors import InputError
from zooid.core.units import format_bytes

_MIN_MEMORY_BYTES = 16 * 2**20
"""A Python interpreter without packages fits; with less, the sandbox itself might not start."""


@dataclass(frozen=True, kw_only=True)
class Confines:
    """Limits and surroundings of one program."""

    memory_bytes: int
    """The kernel kills a process when all of them together need more. What lies in /tmp counts as well."""
    vcpus: float
    """Processor time per time, over all processes and threads."""
    tmp_bytes: int
    """The size of /tmp, and of the whole root where that is writable."""
    shared_memory_bytes: int = 0
    """The size of /dev/shm, which does not exist if this is 0; then multiprocessing has no semaphores and queues."""
    is_read_only: bool = True
    """True: nothing but /tmp and /dev/shm is writable. Else everything is but /usr, `folders` and the Python
    environment."""
    accepts_connections: bool = False
    """False: nobody can open a connection into the sandbox, neither another sandbox nor the calling process."""
    shows_cgroups: bool = False
    """Whether the sandbox sees its limits in /sys/fs/cgroup."""
    has_init: bool = False
    """True: a small init starts the program, and reaps orphans. False: the program is process 1, as in a container.

    The kernel hands process 1 only those signals for which it has a handler; so SIGTERM alone may not end it."""
    user_id: int = 0
    """User and group of the program. Even root (0) may not mount, make devices or change the network."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """All variables that the program sees; only a search path is added where none is given."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of this computer that the sandbox sees, read-only, by their absolute paths inside; not below /usr."""
    working_folder: str = "/"
    """An absolute path inside the sandbox, in which the program starts."""

    def __post_init__(self) -> None:
        if self.memory_bytes < _MIN_MEMORY_BYTES:
            raise InputError(
                f"memory_bytes is {self.memory_bytes}; at least {format_bytes(_MIN_MEMORY_BYTES)} is needed"
            )
        if not 0.01 <= self.vcpus <= 1024:
            raise InputError(f"vcpus is {self.vcpus}; 0.01 to 1024 are allowed")
        if self.tmp_bytes <= 0 or self.shared_memory_bytes < 0:
            sizes = f"tmp_bytes is {self.tmp_bytes} and shared_memory_bytes is {self.shared_memory_bytes}"
            raise InputError(f"{sizes}; the first must be more than 0, the second at least 0")
        for path in (*self.folders, self.working_folder):
            if not path.startswith("/"):
                raise InputError(f"{path!r} is given for a folder in a sandbox; it must be an absolute path")
        for source in self.folders.values():
            if not source.is_dir():
                raise InputError(f"{source} is to be seen in a sandbox; it must be a folder that exists")

    def as_json(self) -> dict[str, Any]:
        """Return the fields as the keeper's process reads them."""
        folders = {path: str(source.resolve()) for path, source in self.folders.items()}
        environment = dict(self.environment)
        return asdict(self) | {"folders": folders, "environment": environment}
