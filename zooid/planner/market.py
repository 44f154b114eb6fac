"""What can be had: offers with their quotas, and what is known about running the job on each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zooid.core.errors import PlanError
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import LeftOut
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.predictor import DirectedLink, World, directed_links
from zooid.predictor.simulation.layout import Looks


@dataclass(frozen=True)
class Market:
    """Offers, each with a profile of the job in `world`."""

    offers: tuple[Offer, ...]
    world: World
    quotas: Mapping[str, int] = field(default_factory=dict)
    """How many members may stand on an offer, by its name or by the beginning of several names; the rest is unlimited.
    What several have in common they share."""
    left_out: tuple[LeftOut, ...] = ()
    """Offers that were asked for, but that are not among `offers`."""

    def __post_init__(self) -> None:
        if not self.offers:
            raise PlanError("no offer is given; give one or more, for example local, or aws.lambda.1769")
        names = [offer.name for offer in self.offers]
        for name, quota in self.quotas.items():
            if not any(is_named(offer, name) for offer in names):
                raise PlanError(f"a quota is given for {name!r}, but the offers are {', '.join(names)}; name one")
            if quota < 1:
                raise PlanError(f"the quota of {name} is {quota}; give at least 1, or leave the offer out")
        for offer in self.offers:
            self.world.profile_of(offer)

    @property
    def profile(self) -> Profile:
        """Of the first offer: bytes, samples and batch are the same on all."""
        return self.world.profile_of(self.offers[0])

    def within_quotas(self, counts: Mapping[str, int]) -> bool:
        """Whether so many members may stand on these offers."""
        return all(
            sum(number for offer, number in counts.items() if is_named(offer, name)) <= quota
            for name, quota in self.quotas.items()
        )

    def most_on(self, offer: Offer, most: int) -> int:
        """How many may stand on one offer, if none stands elsewhere."""
        return min([most, *(quota for name, quota in self.quotas.items() if is_named(offer.name, name))])

    def links_of(self, offer: Offer, *, is_direct: bool) -> tuple[DirectedLink, ...]:
        """What a message between members on this offer crosses: the way to the store and that from it, or the one
        between them; nothing where it was not measured."""
        site, links = offer.site, self.world.links
        ends = ((site, site),) if is_direct else ((site, STORE_SITE), (STORE_SITE, site))
        return tuple(links[end] for end in ends) if all(end in links for end in ends) else ()


def is_named(offer: str, name: str) -> bool:
    """Whether a name, or the dotted beginning of one, means this offer: `aws.lambda` means `limited:aws.lambda.1769`.

    >>> is_named("limited:aws.lambda.1769", "aws.lambda"), is_named("aws.lambda.1769", "aws.lam")
    (True, False)
    """
    return any(full == name or full.startswith(f"{name}.") for full in (offer, offer.rpartition(":")[2]))


def single(profile: Profile, offer: Offer, peers: Iterable[Link] = ()) -> Market:
    """One offer, whose profile tells all about it but for the links between its members."""
    links = directed_links((*profile.links, *peers))
    looks: Looks = "folder" if offer.platform == "local" else "store"
    return Market((offer,), World({offer.name: profile}, links, looks=looks))
