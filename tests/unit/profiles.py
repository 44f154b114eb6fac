"""Profiles, links and offers made by hand, with round numbers."""

from collections.abc import Sequence
from typing import Any

from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Bytes, Copies, DeviceKind, LayerProfile, Profile, Spread, TimePoint
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.planner import search, single

SITE = "here"
INSTANT_BYTES_PER_S = 1e18
"""So fast that no message of a test takes measurable time, and still a number to compute with."""


def link(bandwidth_bytes_per_s: float = INSTANT_BYTES_PER_S, rtt_s: float = 0.0, **changed: Any) -> Link:
    fields = {"from_site": SITE, "to_site": STORE_SITE, "source": "made up", "date": "2025-01"} | changed
    return Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, rtt_s=rtt_s, **fields)


def store_links(bandwidth_bytes_per_s: float = INSTANT_BYTES_PER_S, rtt_s: float = 0.0) -> tuple[Link, Link]:
    """To the store and from it."""
    return (
        link(bandwidth_bytes_per_s, rtt_s),
        link(bandwidth_bytes_per_s, rtt_s, from_site=STORE_SITE, to_site=SITE),
    )


def device(num_cores: float = 2.0) -> DeviceKind:
    return DeviceKind(kind="cpu", name="cpu", num_threads=1, num_cores=num_cores, score=1e10)


def gpu(to_device_bytes_per_s: float = 55e9, to_host_bytes_per_s: float = 52e9) -> DeviceKind:
    copies = Copies(to_device_bytes_per_s=to_device_bytes_per_s, to_host_bytes_per_s=to_host_bytes_per_s)
    return DeviceKind(kind="cuda", name="gpu", num_threads=1, num_cores=16.0, score=5e13, copies=copies)


def layer(
    seconds_per_sample: float, *, out_bytes: float = 0.0, parameter_bytes: int = 0, sizes: Sequence[int] = (1, 2, 4)
) -> LayerProfile:
    """A layer whose time is proportional to the samples; its backward takes twice its forward."""
    return LayerProfile(
        name=f"layer of {seconds_per_sample:g} s",
        parameter_bytes=parameter_bytes,
        buffer_bytes=0,
        boundary=Bytes(per_sample=out_bytes),
        activations=Bytes(per_sample=10.0),
        forward_peak=Bytes(per_sample=10.0),
        backward_peak=Bytes(),
        points=tuple(
            TimePoint(
                num_samples=size, forward_s=seconds_per_sample * size / 3, backward_s=seconds_per_sample * size * 2 / 3
            )
            for size in sizes
        ),
    )


def profile(layers: Sequence[LayerProfile], links: tuple[Link, ...] | None = None, **changed: Any) -> Profile:
    """Eight samples a step, ten steps; nothing but the layers takes time unless it is given."""
    fields: dict[str, Any] = {
        "job": "made",
        "model_fingerprint": "f",
        "zooid_version": "0",
        "torch_version": "0",
        "device": device(),
        "num_samples": 80,
        "batch_size": 8,
        "date": "2025-01-01",
        "largest_grain": 8,
        "inputs": Bytes(),
        "memory_overhead": 0.0,
        "knee": 1,
        "spread": Spread(of_steps=0.0, of_runs=0.0),
        "epochs": 1,
        "load_s_per_sample": 0.0,
        "optimizer_s_per_byte": 0.0,
        "optimizer_bytes_per_parameter_byte": 2.0,
        "reduce_s_per_byte": 0.0,
        "startup_cpu_s": 0.0,
        "runtime_bytes": 1000,
        "layers": tuple(layers),
        "links": store_links() if links is None else links,
    }
    return Profile(**(fields | changed))


def offer(usd_per_hour: float = 0.0, **changed: Any) -> Offer:
    """Rented members with cores of their own; `platform="local"` shares the profile's machine instead."""
    fields: dict[str, Any] = {
        "name": "made.offer",
        "platform": "made",
        "kind": "vm",
        "market": "on_demand",
        "region": "anywhere",
        "site": SITE,
        "vcpus": 1.0,
        "memory_bytes": 10**9,
        "usd_per_hour": usd_per_hour,
        "startup_s": 0.0,
        "source": "made up",
        "date": "2025-01",
    }
    return Offer(**(fields | changed))


def picked(made: Profile, on: Offer, limits: Limits, goal: Goal = "fastest") -> Plan:
    """What the search finds on one offer."""
    return search(single(made, on), limits, goal).pick
