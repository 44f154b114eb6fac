"""Machines as sites inside a site: members of one machine have faster links than those of two.

`office/ssh.gpu1/0` is the first machine of the offer `ssh.gpu1` at the site `office`. The link inside each machine of
that offer goes from `office/ssh.gpu1` to itself, and links between machines are those of the site.
"""

from zooid.core.resources.offer import Offer


def inside_of(offer: Offer) -> str:
    """The name of both ends of the link inside a machine of an offer."""
    return f"{offer.site}/{offer.name}"


def machine_site(offer: Offer, number: int) -> str:
    """The site of a machine of an offer, by its number."""
    return f"{inside_of(offer)}/{number}"


def is_machine(site: str) -> bool:
    """Whether a site is a machine.

    >>> is_machine("office/ssh.gpu1/0"), is_machine("office")
    (True, False)
    """
    return "/" in site


def outer_site(site: str) -> str:
    """The site that a machine belongs to; any other site is its own.

    >>> outer_site("office/ssh.gpu1/0"), outer_site("office")
    ('office', 'office')
    """
    return site.partition("/")[0]


def link_ends(from_site: str, to_site: str) -> tuple[str, str]:
    """The ends of the link from one site to another, as links are measured.

    >>> link_ends("office/ssh.gpu1/0", "office/ssh.gpu1/0"), link_ends("office/ssh.gpu1/0", "office/ssh.gpu1/1")
    (('office/ssh.gpu1', 'office/ssh.gpu1'), ('office', 'office'))
    """
    if from_site == to_site and is_machine(from_site):
        inside = from_site.rpartition("/")[0]
        return inside, inside
    return outer_site(from_site), outer_site(to_site)
