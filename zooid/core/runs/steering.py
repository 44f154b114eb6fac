"""Rules by which a run chooses its members anew while it trains."""

from msgspec import field, structs

from zooid.core.plans.plan import DEFAULT_MAX_MEMBERS
from zooid.core.records import FileRecord, require, require_at_least, require_positive
from zooid.core.resources.offer import Offer


class Steering(FileRecord, frozen=True, kw_only=True, tag="steering"):
    """The offers on which a run may go on, and when it looks for a better fleet. It lies in the run's folder."""

    offers: tuple[Offer, ...]
    """All offers on which members may run, those of the plan among them."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Maximum number of members by the name of an offer or its beginning. Other offers are unlimited."""
    max_members: int = DEFAULT_MAX_MEMBERS
    seeks_savings: bool = False
    """Whether the run also switches to a cheaper fleet while the present one holds the limits."""
    asks_planner: bool = True
    """Whether the planner searches for fleets anew when members were lost or a limit would break."""
    look_s: float = 10.0
    """Time between two decisions."""
    time_factor: float = 1.0
    """Number of seconds of the market that pass in one second of the run, in a rehearsal of a longer one."""

    def emulated(self) -> "Steering":
        """Return the rules as a rehearsal follows them: members of rented offers run on this machine."""
        return structs.replace(self, offers=tuple(offer.emulated() for offer in self.offers))

    def __post_init__(self) -> None:
        require(bool(self.offers), "`offers` is empty; give at least those of the plan")
        require_at_least(1, self, "max_members")
        require_positive(self, "look_s", "time_factor")
