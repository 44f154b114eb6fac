"""Members of a platform that run a given program: a job file may do anything while it is loaded."""

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.sessions import begun_session
from lab.waiting import wait_until
from zooid.coordinator.job_files.code_archive import archive_of_folder
from zooid.coordinator.job_files.travelling_job import store_package
from zooid.core.errors import ObjectNotFound
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.offer import Offer
from zooid.core.resources.size import Size
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.runs.spec import ProfilerSpec
from zooid.core.runs.ticket import Ticket, title_of
from zooid.entry.arrival import own_versions
from zooid.platforms import Launch, Platform
from zooid.store import ObjectStore, open_store
from zooid.store.stored_records import find_end


@dataclass(eq=False)
class Members:
    """Members of one run, with a folder for their programs and one for their objects."""

    platform: Platform
    folder: Path
    run: str = ""
    store_url: str = ""
    """The folder of the run in a store; by default one below `folder`."""
    offers: Sequence[Offer] = ()
    """Offers on which members are started in turn; by default this machine."""
    launched: list[Launch] = field(default_factory=list)
    patience_s: float = 30.0
    """How long to wait for something that a member does."""

    def __post_init__(self) -> None:
        self._num_written = 0
        self.run = self.run or secrets.token_hex(4)
        self.store = open_store(self.store_url or (self.folder / f"store-{self.run}").as_uri())

    def start(self, program: str, size: Size | None = None, lifetime_s: float | None = None) -> str:
        """Start a member, and return its name."""
        [member] = self.start_all([program], size, lifetime_s)
        return member

    def start_all(
        self, programs: Sequence[str], size: Size | None = None, lifetime_s: float | None = None
    ) -> list[str]:
        """Start members at once, and return their names."""
        first = len(self.launched)
        launches = [
            self.launch(f"m{first + number}", program, size, lifetime_s) for number, program in enumerate(programs)
        ]
        self.create(launches)
        return [launch.member for launch in launches]

    def create(self, launches: Sequence[Launch]) -> None:
        self.launched += launches
        self.platform.create(launches)

    def launch(
        self,
        member: str,
        program: str,
        size: Size | None = None,
        lifetime_s: float | None = None,
        data: bytes = b"",
    ) -> Launch:
        """Write spec and handle of a member that runs this program, without starting it.

        `data` is the content of a file beside the program, if there is to be one.
        """
        folder = self.folder / f"job-{self.run}-{member}"
        folder.mkdir()
        job_file = folder / "job.py"
        job_file.write_text(program)
        if data:
            (folder / "data.bin").write_bytes(data)
        offer = self.offers[self._num_written % len(self.offers)] if self.offers else None
        self._num_written += 1
        archive = None if offer is None or not offer.is_elsewhere else archive_of_folder(folder)
        if archive is not None:
            self.store.put(keys.code(archive.record.digest), archive.data)
        spec = ProfilerSpec(
            run=self.run,
            member=member,
            store=self.store.url,
            job_file=str(job_file) if archive is None else job_file.name,
            code="" if archive is None else archive.record.digest,
            num_threads=1,
            site="here",
            num_neighbours=0,
            memory_bytes=1 << 30,
        )
        data = encode_record(spec)
        self.store.put(keys.spec(member), data)
        ticket = Ticket(
            run=self.run,
            member=member,
            roster=0,
            program="profiler",
            spec_url=f"{self.store.url}/{keys.spec(member)}",
            spec_digest=hashlib.sha256(data).hexdigest(),
            num_threads=1,
            size=size,
            lifetime_s=lifetime_s,
            versions=None if archive is None else own_versions(),
        )
        if offer is None:
            return Launch(ticket)
        package = "" if archive is None else store_package(self.store)
        launch = Launch(ticket, offer.name, platform=offer.platform, package=package)
        handle = MemberHandle(
            run=self.run,
            member=member,
            platform=offer.platform,
            offer=offer.name,
            launched_at_s=time.time(),
            place=self.platform.place(launch),
        )
        self.store.put(keys.handle(member, 0), encode_record(handle))
        return launch

    def end(self) -> None:
        """End all members."""
        self.platform.delete(self.run, [launch.ticket.title for launch in self.launched])

    def delete(self, member: str) -> None:
        self.platform.delete(self.run, [title_of(member, 0)])

    def is_running(self, member: str) -> bool:
        listed, title = self.platform.members(self.run), title_of(member, 0)
        return title in listed and listed[title] is None

    def end_of(self, member: str, timeout_s: float | None = None) -> Exit:
        """Wait for the end of a member."""
        wait_until(lambda: not self.is_running(member), timeout_s=timeout_s or self.patience_s)
        listed = self.platform.members(self.run)
        return find_end(self.store, member, 0) or listed.get(title_of(member, 0)) or Exit(None)

    def status_of(self, member: str) -> int | None:
        """Wait for the end of a member, and return its status."""
        return self.end_of(member).status

    def log(self, member: str) -> str:
        try:
            return bytes(self.store.get(keys.log(member, 0))).decode()
        except ObjectNotFound:
            return ""

    def first_line(self, member: str) -> str:
        """Wait for the first line that a member prints, and look at the platform meanwhile, as a coordinator does."""
        wait_until(lambda: "\n" in self.log(member) or not self.is_running(member), timeout_s=self.patience_s)
        return self.log(member).splitlines()[0]

    def pid(self, member: str) -> int:
        """Wait until a member has begun, and return its process id."""
        wait_until(lambda: begun_session(self.run, title_of(member, 0)))
        pid = begun_session(self.run, title_of(member, 0))
        assert pid is not None
        return pid


def pids_in(store: ObjectStore) -> dict[str, int]:
    """Process ids of the members of a run that have begun on this machine, by name."""
    found = {}
    for key in store.list(keys.HANDLES):
        handle = decode_record(bytes(store.get(key)), MemberHandle, key)
        roster = keys.roster_in(key.split("/")[1])
        assert roster is not None
        pid = begun_session(handle.run, title_of(handle.member, roster[0]))
        if pid is not None:
            found[handle.member] = pid
    return found
