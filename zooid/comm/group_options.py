"""The options of a group, which the user gives in the URL or as `pg_options`."""

from dataclasses import dataclass, fields
from typing import get_args

from zooid.core.errors import InputError
from zooid.core.plans.codec_sizes import CODECS, CodecName
from zooid.core.plans.plan import AllReduceName, OwnTransportName
from zooid.core.text import quoted
from zooid.core.units import small_number


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one group, the same on every rank.

    In a URL they follow a question mark: `s3://bucket/run-7?transport=tcp&codec=bf16`.
    """

    transport: OwnTransportName = "store"
    """`store` needs nothing but the bucket; `tcp` needs ranks that can reach each other."""
    all_reduce: AllReduceName = "auto"
    """Algorithm of all_reduce; `auto` chooses by bytes, ranks and measured latency."""
    codec: CodecName = "none"
    """Encoding of floats on the wire in all_reduce; every codec but `none` loses digits."""
    num_streams: int | None = None
    """Number of sockets per pair of ranks for large messages; None chooses by the measured round trip."""
    address: str | None = None
    """Address at which this rank listens, and others reach it over TCP; None means all addresses of the machine."""
    listen: str | None = None
    """The machine's own address to listen at, where the network translates `address`."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("transport", get_args(OwnTransportName)),
            ("all_reduce", get_args(AllReduceName)),
            ("codec", CODECS),
        ):
            if getattr(self, name) not in allowed:
                value = quoted(str(getattr(self, name)))
                raise InputError(f"`{name}` is {value!r}; it must be one of {', '.join(allowed)}")
        if self.num_streams is not None and not 1 <= self.num_streams <= 64:
            raise InputError(f"`num_streams` is {self.num_streams}; it must be from 1 to 64")

    @classmethod
    def from_query(cls, query: dict[str, str], url: str) -> "Options":
        """Read options from the query of a URL; InputError for unknown names."""
        known = {field.name for field in fields(cls)}
        for name in query:
            if name not in known:
                raise InputError(
                    f"{quoted(url)!r} has the option {quoted(name)!r}; there are {', '.join(sorted(known))}"
                )
        values: dict[str, object] = dict(query)
        if "num_streams" in query:
            number = small_number(query["num_streams"])
            if number is None or number < 0:
                raise InputError(
                    f"`num_streams` in {quoted(url)!r} is {quoted(query['num_streams'])!r}; it must be a number"
                )
            values["num_streams"] = number
        return cls(**values)  # type: ignore[arg-type]  # checked by __post_init__
