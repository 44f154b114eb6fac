"""Who trains: the numbered list of members that holds from one step on, until a later roster replaces it."""

from msgspec import field

from zooid.core.records import FileRecord, Record, require, require_name
from zooid.core.text import quoted


class RosterMember(Record, frozen=True, kw_only=True):
    """One seat. The rank is its place in the roster's list."""

    name: str
    stage: int
    replica: int

    def __post_init__(self) -> None:
        require_name("name", self.name)


class Roster(FileRecord, frozen=True, kw_only=True, tag="roster"):
    """Written once, create-only: the first writer wins and everyone obeys it."""

    run: str
    number: int
    """Rosters of a run are numbered from 0."""
    resume_step: int
    """The first step this roster runs; the checkpoint or live state of exactly this many steps is its start."""
    members: tuple[RosterMember, ...]
    shares: tuple[int, ...]
    """Whole grains of a full step for each replica."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Those of the job, where they differ from the checkpoint's: what its own checkpoints will hold."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require(self.number >= 0 and self.resume_step >= 0, "`number` and `resume_step` must be at least 0")
        require(len(self.members) >= 1, "`members` must not be empty")
        names = [member.name for member in self.members]
        require(len(set(names)) == len(names), f"`members` names a member twice: {quoted(str(names))}")
        # As many different seats as the largest numbers make: all are filled, and no hostile number is counted up to.
        seats = {(member.replica, member.stage) for member in self.members}
        require(
            all(replica >= 0 and stage >= 0 for replica, stage in seats)
            and len(seats) == len(self.members) == self.num_replicas * self.num_stages,
            f"`members` must fill every replica and stage exactly once; they fill {quoted(str(sorted(seats)))}",
        )
        require(
            len(self.shares) == self.num_replicas and min(self.shares) >= 0 and sum(self.shares) >= 1,
            f"`shares` is {quoted(str(self.shares))}; it must give each of {self.num_replicas} replicas its whole "
            "grains",
        )

    @property
    def num_replicas(self) -> int:
        return max(member.replica for member in self.members) + 1

    @property
    def num_stages(self) -> int:
        return max(member.stage for member in self.members) + 1

    def rank_of(self, name: str) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.name == name)

    def rank_at(self, replica: int, stage: int) -> int:
        return next(r for r, m in enumerate(self.members) if m.replica == replica and m.stage == stage)

    def ranks_of_stage(self, stage: int) -> list[int]:
        """In order of replica."""
        return [self.rank_at(replica, stage) for replica in range(self.num_replicas)]
