"""The machines that SkyPilot rents for offers of the catalog, by the names that SkyPilot and the clouds give them."""

from functools import cache

from zooid.catalog.shipped_tables import read_table
from zooid.core.errors import CatalogError
from zooid.core.records import Record


class SkyMachine(Record, frozen=True, kw_only=True):
    """The machine of one offer, as a task of SkyPilot names it."""

    offer: str
    cloud: str
    """SkyPilot's name of the cloud, such as `aws`."""
    region: str
    instance_type: str
    accelerator: str = ""
    """SkyPilot's name of the accelerator; empty if there is none."""
    source: str
    date: str

    @property
    def infra(self) -> str:
        """The cloud and the region, as SkyPilot writes them together."""
        return f"{self.cloud}/{self.region}"


@cache
def sky_machines() -> dict[str, SkyMachine]:
    """All machines by the names of their offers."""
    return {row.offer: row for row in read_table("sky_machines.csv", SkyMachine, ("offer",))}


def sky_machine(offer: str) -> SkyMachine:
    """Return the machine of an offer; an offer that SkyPilot cannot rent is rejected."""
    known = sky_machines()
    if offer not in known:
        raise CatalogError(f"SkyPilot rents no machine for {offer}; it rents {', '.join(known)}")
    return known[offer]
