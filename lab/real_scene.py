"""A scene on a real account: the user's own settings and credentials, an own store, and a spending limit."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.platform_scenes import Scene
from lab.spending import LimitedPlatform, Spending
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.plans.own_offers import account_with
from zooid.coordinator.runs.platform_choice import any_platform
from zooid.core.errors import InputError
from zooid.platforms import Platform
from zooid.store import clear, open_store


@contextmanager
def real_scene(offer: str, store: str, limit_usd: float, longest_s: float) -> Iterator[Scene]:
    """Members on an offer of the user's own account. What the tests write into the store is removed at the end."""
    resolved = resolve_offer(offer)
    if not resolved.is_rented:
        raise InputError(f"--real is {offer!r}; give an offer that is rented, such as aws.lambda.2048")
    if not store:
        raise InputError("--real needs a store that members reach; give its URL with --real-store")
    folder = f"{store}/zooid-test-{secrets.token_hex(4)}"
    spending = Spending(limit_usd, longest_s)
    python = account_with(resolved.platform).options.get("python", "python3")
    with ExitStack() as stack:

        def make() -> Platform:
            platforms = any_platform(forks=False)
            stack.callback(platforms.release)
            return LimitedPlatform(platforms.of(resolved.platform), {resolved.name: resolved}, spending)

        stack.callback(lambda: print(f"\nspent at most {spending.spent_usd:.4f} dollars of {limit_usd:g}"))
        stack.callback(lambda: clear(open_store(folder), ""))
        yield Scene(
            f"real {resolved.name}",
            make,
            [resolved],
            python,
            url=lambda run: f"{folder}/{run}",
            tight=resolved,
            patience_s=longest_s,
            is_real=True,
        )
