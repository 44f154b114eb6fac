"""What can be rented: offers with their quotas, and everything known about running the job on each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from zooid.core.errors import PlanError
from zooid.core.plans.plan import Plan, ScheduleName, StagePlan, TransportName
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import LeftOut
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.predictor import DirectedLink, World, directed_links
from zooid.predictor.machine_links import link_among
from zooid.predictor.simulation.layout import Looks
from zooid.predictor.step_bounds import downlink


@dataclass(frozen=True)
class Market:
    """Offers with their quotas. `world` has a profile of the job on each of them."""

    offers: tuple[Offer, ...]
    world: World
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of members, by the name of an offer or by the dotted beginning of several names, which then share
    the quota. The room that offers have themselves also limits them. Other offers are unlimited."""
    left_out: tuple[LeftOut, ...] = ()
    """Offers that the user named, but that no plan can use."""
    elsewhere: frozenset[str] = frozenset()
    """Names of offers that plans use only together with others, since their own site has a market of its own."""

    def __post_init__(self) -> None:
        if not self.offers:
            raise PlanError("no offer is given; give one or more, for example local, or aws.lambda.1769")
        names = [offer.name for offer in self.offers]
        rooms = {offer.name: offer.max_members for offer in self.offers if offer.max_members is not None}
        limits = {name: min(room, self.quotas.get(name, room)) for name, room in rooms.items()}
        object.__setattr__(self, "quotas", {**self.quotas, **limits})
        for name, quota in self.quotas.items():
            if not any(is_named(offer, name) for offer in names):
                raise PlanError(f"a quota is given for {name!r}, but the offers are {', '.join(names)}; name one")
            if quota < 1:
                raise PlanError(f"the quota of {name} is {quota}; give at least 1, or leave the offer out")
        for offer in self.offers:
            self.world.profile_of(offer)

    def of(self, offers: Iterable[Offer]) -> "Market":
        """The market of some of the offers."""
        kept = tuple(offers)
        quotas = {name: quota for name, quota in self.quotas.items() if any(is_named(o.name, name) for o in kept)}
        return replace(self, offers=kept, quotas=quotas)

    @cached_property
    def home(self) -> "Market":
        """The market of the offers on which plans may run alone."""
        return self.of(offer for offer in self.offers if offer.name not in self.elsewhere) if self.elsewhere else self

    @property
    def profile(self) -> Profile:
        """The profile on the first offer. Bytes, samples and batch size are the same on all offers."""
        return self.world.profile_of(self.offers[0])

    def within_quotas(self, offers: Iterable[Offer]) -> bool:
        """Whether the quotas allow one member on each of these offers."""
        names = [offer.name for offer in offers]
        return all(sum(is_named(offer, name) for offer in names) <= quota for name, quota in self.quotas.items())

    def max_members_on(self, offer: Offer, max_members: int) -> int:
        """Maximum number of members on one offer, if there are none on any other."""
        return min([max_members, *(quota for name, quota in self.quotas.items() if is_named(offer.name, name))])

    def links_of(self, offer: Offer, *, is_direct: bool) -> tuple[DirectedLink, ...]:
        """The links that a message between members on this offer crosses; empty if one of them is unknown.

        These are the best link between members if they are connected, and otherwise those to the store and from it.
        """
        site, links = offer.site, self.world.links
        if is_direct:
            between = link_among(links, offer)
            return () if between is None else (between,)
        ends = ((site, STORE_SITE), (STORE_SITE, site))
        return tuple(links[end] for end in ends) if all(end in links for end in ends) else ()

    def downlink(self, offer: Offer) -> float:
        """The highest rate at which a member on this offer receives, from any sender."""
        between = link_among(self.world.links, offer)
        return max(downlink(self.world.links, offer.site), 0.0 if between is None else between.bytes_per_s)

    def plan(
        self,
        partition: Sequence[tuple[int, int]],
        offers: Sequence[Offer],
        *,
        num_replicas: int,
        grain_size: int,
        transport: TransportName,
        schedule: ScheduleName = "1f1b",
        ahead: int = 0,
        reproducible: bool = False,
        insured: bool = False,
    ) -> Plan:
        """A plan of the job without a prediction, whose stages have these layers [first, end) on these offers."""
        profile = self.profile
        return Plan(
            job=profile.job,
            model_fingerprint=profile.model_fingerprint,
            why_whole=profile.why_whole,
            autocast=profile.autocast,
            batch_size=profile.batch_size,
            grain_size=grain_size,
            num_replicas=num_replicas,
            stages=tuple(
                StagePlan(first_layer=first, end_layer=end, offer=offer.name, memory_bytes=0)
                for (first, end), offer in zip(partition, offers, strict=True)
            ),
            schedule=schedule,
            ahead=ahead,
            transport=transport,
            all_reduce="auto",
            reproducible=reproducible,
            insured=insured,
            offers=tuple({offer.name: offer for offer in offers}.values()),
            store_at=self.world.prices.store_at,
        )


def is_named(offer: str, name: str) -> bool:
    """Whether a name, or the dotted beginning of one, means this offer: `aws.lambda` means `limited:aws.lambda.1769`.

    >>> is_named("limited:aws.lambda.1769", "aws.lambda"), is_named("aws.lambda.1769", "aws.lam")
    (True, False)
    """
    return any(full == name or full.startswith(f"{name}.") for full in (offer, offer.rpartition(":")[2]))


def single(profile: Profile, offer: Offer, peers: Iterable[Link] = ()) -> Market:
    """A market of one offer. Its profile has everything about it but the links between members, `peers`."""
    links = directed_links((*profile.links, *peers))
    looks: Looks = "folder" if offer.platform == "local" else "store"
    return Market((offer,), World({offer.name: profile}, links, looks=looks))
