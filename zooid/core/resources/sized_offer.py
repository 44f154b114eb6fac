"""Offers that are sized by resource: one offer with unit prices, and the sizes that a member of it may have.

`aws.lambda` is sized by its memory, which determines its vCPUs, and `aws.lambda.3008` has 3008 MB of it.
`azure.aci.cpu` is sized by vCPUs and memory, and `azure.aci.cpu.4x3.5` has 4 vCPUs and 3.5 GB.
"""

import bisect
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import NamedTuple

from zooid.core.errors import CatalogError
from zooid.core.records import InvalidValue, Record, require, require_at_least, require_positive
from zooid.core.resources.offer import Market, Offer, OfferKind

_MAX_AMOUNTS = 20_000
"""A column of sizes lists at most so many amounts of memory; a service has far fewer."""
_USD_DIGITS = 8
"""Digits of the price of an hour. Sums of unit prices in floats would end in noise."""
_VCPU_DIGITS = 4
_MAX_PARTS = 6
"""A message lists at most so many numbers of vCPUs."""


class MemberSize(NamedTuple):
    """A size that a member may have, in the units of its offer's name."""

    vcpus: Decimal | None
    """None if the memory determines the vCPUs."""
    memory: Decimal

    def __str__(self) -> str:
        memory = f"{self.memory.normalize():f}"
        return memory if self.vcpus is None else f"{self.vcpus.normalize():f}x{memory}"


class SizedOffer(Record, frozen=True, kw_only=True):
    """An offer with prices of a vCPU and of memory, whose members may have any of its sizes."""

    name: str
    """Unique dotted name, provider first: `aws.lambda`. A size is appended to it: `aws.lambda.1769`."""
    platform: str
    kind: OfferKind
    market: Market
    region: str
    site: str
    sizes: str
    """The sizes: `128 to 10240 by 1` or `2048 4096` if the memory determines the vCPUs. Otherwise the amounts of memory
    by the number of vCPUs, as in `1 2: 0.5 to 8 by 0.5; 4: 2 to 16 by 0.5`."""
    tried: str = ""
    """The sizes with which a planner begins, if the memory determines the vCPUs, as in `1024 2048`."""
    memory_unit: str
    """The unit of memory in sizes and names, as the service writes it."""
    unit_bytes: int
    memory_per_vcpu: float | None = None
    """Memory in its unit that brings one vCPU. None if vCPUs are chosen, too."""
    usd_per_vcpu_hour: float = 0.0
    usd_per_gb_hour: float
    gb_bytes: int
    """Bytes of what the price list calls a GB."""
    usd_per_start: float = 0.0
    billing_grain_s: float = 1.0
    billing_minimum_s: float = 0.0
    lifetime_s: float | None = None
    accepts_connections: bool = True
    has_shared_memory: bool = True
    startup_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    source: str
    date: str

    def __post_init__(self) -> None:
        require(bool(self.name), "`name` must not be empty")
        require_positive(self, "unit_bytes", "gb_bytes", "memory_per_vcpu", of=self.name)
        require_at_least(0, self, "usd_per_vcpu_hour", "usd_per_gb_hour", of=self.name)
        sizes = sizes_of(self)
        is_linked = self.memory_per_vcpu is not None
        require(
            all((size.vcpus is None) == is_linked for size in sizes),
            f"`sizes` of {self.name} is {self.sizes!r}; give memory by vCPUs, or else `memory_per_vcpu`",
        )
        require(
            bool(self.tried) == is_linked and set(_amounts(self.tried)) <= {size.memory for size in sizes},
            f"`tried` of {self.name} is {self.tried!r}; give some of `sizes` if memory determines vCPUs, or nothing",
        )

    def amounts_of(self, size: MemberSize) -> tuple[float, int, float]:
        """The vCPUs of a size, its memory in bytes and its price of an hour."""
        memory_bytes = round(size.memory * self.unit_bytes)
        if self.memory_per_vcpu is None:
            vcpus = float(size.vcpus or 0)
        else:
            vcpus = round(float(size.memory) / self.memory_per_vcpu, _VCPU_DIGITS)
        usd_per_hour = vcpus * self.usd_per_vcpu_hour + memory_bytes / self.gb_bytes * self.usd_per_gb_hour
        return vcpus, memory_bytes, round(usd_per_hour, _USD_DIGITS)

    def offer_of(self, size: MemberSize, *, sized_by: str = "") -> Offer:
        """The offer of members that have this size."""
        vcpus, memory_bytes, usd_per_hour = self.amounts_of(size)
        return Offer(
            name=f"{self.name}.{size}",
            platform=self.platform,
            kind=self.kind,
            market=self.market,
            region=self.region,
            site=self.site,
            vcpus=vcpus,
            memory_bytes=memory_bytes,
            usd_per_hour=usd_per_hour,
            usd_per_start=self.usd_per_start,
            billing_grain_s=self.billing_grain_s,
            billing_minimum_s=self.billing_minimum_s,
            lifetime_s=self.lifetime_s,
            accepts_connections=self.accepts_connections,
            has_shared_memory=self.has_shared_memory,
            startup_s=self.startup_s,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            sized_by=sized_by,
            source=self.source,
            date=self.date,
        )

    def smallest_offers(self) -> tuple[Offer, ...]:
        """The offers from which a planner chooses sizes: the sizes to try, or the smallest of each number of vCPUs.

        Members get larger sizes of them where they need more memory.
        """
        smallest = [MemberSize(None, memory) for memory in _amounts(self.tried)]
        if not smallest:
            smallest = list({size.vcpus: size for size in reversed(sizes_of(self))}.values())[::-1]
        return tuple(self.offer_of(size, sized_by=self.name) for size in smallest)

    @property
    def largest_offer(self) -> Offer:
        """The offer of the largest size, on which a job is measured: what fits any size fits it."""
        return self.offer_of(max(sizes_of(self), key=lambda size: (size.memory, size.vcpus or 0)))

    def sizes_from(self, name: str) -> tuple[MemberSize, ...]:
        """The sizes with the memory of this one or more, smallest first. If vCPUs are chosen, they have as many."""
        least = self._size_in(name)
        return tuple(size for size in sizes_of(self) if size.vcpus == least.vcpus and size.memory >= least.memory)

    def named(self, name: str) -> Offer:
        """The offer of a name such as `aws.lambda.3008`. CatalogError lists the sizes, and those nearest to it."""
        return self.offer_of(self._size_in(name))

    def _size_in(self, name: str) -> MemberSize:
        text = name.removeprefix(f"{self.name}.")
        size = _parsed(text)
        if size is None or size not in _known(self) or str(size) != text:
            raise CatalogError(f"{text!r} is no size of {self.name}, which has {self._in_words()}; {self._hint(size)}")
        return size

    def _hint(self, size: MemberSize | None) -> str:
        if size is None or (size.vcpus is None) != bool(self.tried):
            return f"give one, for example {self.smallest_offers()[0].name}"
        if size in _known(self):
            return f"write {self.name}.{size}"
        return f"nearest to it: {', '.join(f'{self.name}.{near}' for near in self._nearest(size))}"

    def _nearest(self, size: MemberSize) -> list[MemberSize]:
        """The next smaller and the next larger memory, with the nearest number of vCPUs."""
        same = list(sizes_of(self))
        if size.vcpus is not None:
            given = size.vcpus
            nearest = min((each.vcpus or given for each in same), key=lambda vcpus: abs(vcpus - given))
            same = [each for each in same if each.vcpus == nearest]
        position = bisect.bisect_left([each.memory for each in same], size.memory)
        return same[max(0, position - 1) : position + 1]

    def _in_words(self) -> str:
        if self.tried:
            return _amounts_in_words(self.sizes, self.memory_unit)
        parts = [part.partition(":") for part in self.sizes.split(";")]
        words = [
            f"{', '.join(vcpus.split())} vCPUs with {_amounts_in_words(memory, self.memory_unit)}"
            for vcpus, _, memory in parts
        ]
        return ", ".join(words if len(words) <= _MAX_PARTS else [*words[:2], "…", words[-1]])


@cache
def sizes_of(sized: SizedOffer) -> tuple[MemberSize, ...]:
    """All sizes of an offer: by vCPUs, and then by memory."""
    if ":" not in sized.sizes:
        return tuple(MemberSize(None, memory) for memory in _amounts(sized.sizes))
    found: list[MemberSize] = []
    for part in sized.sizes.split(";"):
        vcpus, _, memory = part.partition(":")
        found += [MemberSize(count, amount) for count in _amounts(vcpus) for amount in _amounts(memory)]
    return tuple(sorted(found))


@cache
def _known(sized: SizedOffer) -> frozenset[MemberSize]:
    return frozenset(sizes_of(sized))


def _parsed(text: str) -> MemberSize | None:
    """The size that a text such as `3008` or `4x3.5` means; None if it is none."""
    vcpus, x, memory = text.rpartition("x")
    try:
        size = MemberSize(Decimal(vcpus) if x else None, Decimal(memory))
    except InvalidOperation:
        return None
    return size if all(number is None or number.is_finite() for number in size) else None


def _amounts_in_words(text: str, unit: str) -> str:
    """
    >>> _amounts_in_words("1 to 16 by 0.1", "GB"), _amounts_in_words("2048 4096", "MB")
    ('1 to 16 GB in steps of 0.1 GB', '2048, 4096 MB')
    """
    words = text.split()
    if words[1:2] == ["to"]:
        return f"{words[0]} to {words[2]} {unit} in steps of {words[4]} {unit}"
    return f"{', '.join(words)} {unit}"


def _amounts(text: str) -> tuple[Decimal, ...]:
    """The amounts that a list or a range means.

    >>> _amounts("1 2 4"), _amounts("0.5 to 1.5 by 0.5")
    ((Decimal('1'), Decimal('2'), Decimal('4')), (Decimal('0.5'), Decimal('1.0'), Decimal('1.5')))
    """
    words = text.split()
    try:
        if words[1:2] != ["to"]:
            amounts = tuple(map(Decimal, words))
        else:
            first, _, last, _, step = words
            low, high, by = Decimal(first), Decimal(last), Decimal(step)
            num_steps = (high - low) / by
            if num_steps != int(num_steps) or not 0 <= num_steps < _MAX_AMOUNTS:
                raise ValueError(text)
            amounts = tuple(low + by * number for number in range(int(num_steps) + 1))
    except (ValueError, ArithmeticError) as error:
        raise InvalidValue(f"{text!r} are no amounts; give a list as `1 2 4`, or a range as `1 to 4 by 0.5`") from error
    is_ascending = all(amounts[index] < amounts[index + 1] for index in range(len(amounts) - 1))
    require(is_ascending and all(amount > 0 for amount in amounts), f"{text!r} must be ascending and above 0")
    return amounts
