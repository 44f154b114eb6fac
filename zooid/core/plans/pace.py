"""The pace of a rehearsed run: how long computing takes there, whatever it takes on this machine."""

from zooid.core.plans.profile import Profile
from zooid.core.records import FileRecord, require, require_positive


class Pace(FileRecord, frozen=True, kw_only=True, tag="pace"):
    """Profiles that say how long the members of a run compute. A run whose folder has a pace is a rehearsed one."""

    profiles: dict[str, Profile]
    """Profiles by the names of offers. An offer without one gets an estimate from the first, or the first itself if it
    is this machine."""
    slower: float = 1.0
    """Factor by which computing takes longer than the profiles say."""

    def __post_init__(self) -> None:
        require(bool(self.profiles), "`profiles` is empty; give at least one profile")
        require_positive(self, "slower")
