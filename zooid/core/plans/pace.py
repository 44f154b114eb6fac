"""The pace of a rehearsed run: how long computing takes there, whatever it takes on this machine."""

from msgspec import field, structs

from zooid.core.errors import InputError
from zooid.core.plans.plan import MAX_MEMBERS
from zooid.core.plans.profile import LayerProfile, Profile
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.records import FileRecord, require, require_at_least

_MOST_CORES = 1024.0
"""More cores than any member has."""


class RehearsalPace(FileRecord, frozen=True, kw_only=True, tag="pace"):
    """How long the members of a run compute. A run whose folder has a pace is a rehearsed one."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    """Profiles by the names of offers. An offer without one gets an estimate from the first, or the first itself if it
    is this machine."""
    rows: tuple[tuple[StageTimes, ...], ...] = ()
    """Times of every stage of each replica, instead of profiles. A single row holds for all replicas."""
    ties: tuple[Tie, ...] = ()
    """Parameters that several of these stages share; profiles know their own."""
    num_steps: int = 0
    """Number of steps in which members sleep and exchange zeros; 0 if they train a job, which has its own."""

    def __post_init__(self) -> None:
        require(
            bool(self.profiles) != bool(self.rows),
            f"there are {len(self.profiles)} `profiles` and {len(self.rows)} `rows`; give one or more of either",
        )
        require_at_least(0, self, "num_steps")


def rehearsed_profile(profile: Profile, slower: float = 1.0) -> Profile:
    """The profile that rehearsed members follow: all computing takes `slower` times as long, on cores of their own."""
    if not slower > 0:
        raise InputError(f"`slower` is {slower}; give a number above 0, such as 10")
    return structs.replace(
        profile,
        layers=tuple(_slower_layer(layer, slower) for layer in profile.layers),
        load_s_per_sample=slower * profile.load_s_per_sample,
        reduce_s_per_byte=slower * profile.reduce_s_per_byte,
        optimizer_s_per_byte=slower * profile.optimizer_s_per_byte,
        device=structs.replace(profile.device, num_cores=MAX_MEMBERS * _MOST_CORES),
    )


def _slower_layer(layer: LayerProfile, slower: float) -> LayerProfile:
    points = tuple(
        structs.replace(point, forward_s=slower * point.forward_s, backward_s=slower * point.backward_s)
        for point in layer.points
    )
    return structs.replace(layer, points=points, crowded_points=())
