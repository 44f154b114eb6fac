"""A limit on what tests may spend on a real account: a member that could cost too much is not started."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.units import format_usd
from zooid.platforms import Launch, Platform
from zooid.predictor import bill_usd


class Spending:
    """What has been spent so far, and what running members may still cost."""

    def __init__(self, limit_usd: float, longest_s: float) -> None:
        """`longest_s` is the time after which every member has ended: the time limit of a test."""
        self.limit_usd = limit_usd
        self._longest_s = longest_s
        self._ended_usd = 0.0
        self._running: dict[tuple[str, str], tuple[Offer, float]] = {}
        """The offer and the start of each running member, by run and title; on the monotonic clock."""

    @property
    def spent_usd(self) -> float:
        """The cost until now, at the prices of the catalog."""
        now_s = time.monotonic()
        return self._ended_usd + sum(bill_usd(offer, now_s - at_s) for offer, at_s in self._running.values())

    def begin(self, members: Mapping[tuple[str, str], Offer]) -> None:
        """Note members that are about to be started; InputError if all together could cost more than the limit."""
        running = [offer for offer, _ in self._running.values()]
        at_most_usd = self._ended_usd + sum(bill_usd(offer, self._longest_s) for offer in (*running, *members.values()))
        if at_most_usd > self.limit_usd:
            raise InputError(
                f"{len(members)} more member(s) could bring the cost to {format_usd(at_most_usd)}, and the limit is "
                f"{format_usd(self.limit_usd)}; nothing was started: give --spend-usd {at_most_usd:.2f}, or a cheaper "
                "offer"
            )
        self._running |= {member: (offer, time.monotonic()) for member, offer in members.items()}

    def end(self, member: tuple[str, str], billed_s: float | None) -> None:
        """Note the end of a member; `billed_s` is what its provider bills, if that is known."""
        if member in self._running:
            offer, at_s = self._running.pop(member)
            self._ended_usd += bill_usd(offer, time.monotonic() - at_s if billed_s is None else billed_s)


@dataclass
class LimitedPlatform:
    """A platform that starts no member which could exceed a spending limit."""

    platform: Platform
    offers: Mapping[str, Offer]
    """By name."""
    spending: Spending

    @property
    def name(self) -> str:
        return self.platform.name

    @property
    def look_s(self) -> float:
        return self.platform.look_s

    def create(self, launches: Sequence[Launch]) -> None:
        self.spending.begin({(each.ticket.run, each.ticket.title): self.offers[each.offer] for each in launches})
        self.platform.create(launches)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed = self.platform.members(run)
        for title, end in listed.items():
            if end is not None:
                self.spending.end((run, title), end.billed_s)
        return listed

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        left = self.platform.delete(run, titles)
        listed = self.members(run)
        for title in set(titles) - set(left) - listed.keys():
            self.spending.end((run, title), None)
        return left

    def release(self) -> None:
        self.platform.release()

    def has_room(self, num_members: int, offer: str) -> bool:
        return self.platform.has_room(num_members, offer)

    def place(self, launch: Launch) -> dict[str, str]:
        return self.platform.place(launch)

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return self.platform.watch(handle, title)
