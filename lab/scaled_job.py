"""A small job whose members take the time of rented machines, scaled so that hours pass in minutes.

Gradients are real. Computing takes the time that is given for each offer: a member sleeps for the rest of it. Prices
grow by the factor by which time shrinks, so that costs are those of the unscaled run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import zooid
from lab.prepared import PreparedJob
from zooid import catalog
from zooid.catalog import local_offer
from zooid.coordinator.plans.plan_forecast import with_prediction
from zooid.core.plans.pace import rehearsed_profile
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Bytes, DeviceKind, GradientReady, LayerProfile, Profile, Spread, TimePoint
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer

_JOB = """import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()


def build_data():
    chance = torch.Generator().manual_seed(1)
    num_samples = NUM_STEPS * NUM_GRAINS
    inputs, targets = (
        torch.rand(num_samples, size, generator=chance, dtype=torch.float64) for size in (16, 4)
    )
    return TensorDataset(inputs, targets)


job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=build_data,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3),
    batch_size=NUM_GRAINS,
    grain_size=1,
    epochs=1,
)
"""
_BYTES_PER_S, _RTT_S = 1e9, 1e-4
"""Links within this machine. The job's messages have a few kilobytes."""
_MEMORY_BYTES = 2**40
_RUNTIME_BYTES = 300_000_000
_DATE = "2026-01-01"


def scaled_offer(name: str, factor: float) -> Offer:
    """An offer of the catalog on this machine: `factor` times as dear, and ready in that fraction of its time."""
    rented = catalog.offer(name)
    here = local_offer(_MEMORY_BYTES, rented.date)
    assert rented.startup_s is not None
    return structs.replace(
        here,
        name=f"local:{rented.name}",
        market=rented.market,
        vcpus=1.0,
        usd_per_hour=rented.usd_per_hour * factor,
        startup_s=rented.startup_s / factor,
        source=rented.source,
    )


@dataclass(frozen=True)
class ScaledJob:
    """A job file, and how long a grain takes on each offer."""

    file: Path
    whole: Plan
    """A plan for one member on this machine."""
    profiles: Mapping[str, Profile]
    """Profiles of members that keep the wanted times, by the names of offers."""

    def plan(self, hires: Sequence[tuple[Offer, int]]) -> Plan:
        """Replicas of one member each, given the offer and the number of grains of each."""
        offers = {offer.name: offer for offer, _ in hires}
        plan = structs.replace(
            self.whole,
            num_replicas=len(hires),
            shares=tuple(num_grains for _, num_grains in hires),
            stages=(structs.replace(self.whole.stages[0], offer=hires[0][0].name),),
            offers=tuple(offers.values()),
            replica_offers=tuple(offer.name for offer, _ in hires),
        )
        return with_prediction(plan, {name: self.profiles[name] for name in offers})


def scaled_job(folder: Path, num_steps: int, num_grains: int, grain_s: Mapping[str, float]) -> ScaledJob:
    """Write the job, and give a grain these times by the names of offers."""
    file = folder / "job.py"
    file.write_text(_JOB.replace("NUM_STEPS", str(num_steps)).replace("NUM_GRAINS", str(num_grains)))
    prepared = PreparedJob(file)
    whole = prepared.plan(1, 1, "tcp")
    profiles = {
        name: _profile(whole, prepared.trained_bytes, seconds, num_steps * num_grains)
        for name, seconds in grain_s.items()
    }
    return ScaledJob(file, whole, profiles)


def _profile(whole: Plan, trained_bytes: Sequence[Mapping[str, int]], grain_s: float, num_samples: int) -> Profile:
    """The profile of a machine on which a grain takes this time, and everything else none."""
    layer_s = grain_s / len(trained_bytes)
    sites = ("local", STORE_SITE)
    return rehearsed_profile(
        Profile(
            job=whole.job,
            model_fingerprint=whole.model_fingerprint,
            why_whole=whole.why_whole,
            zooid_version=zooid.__version__,
            torch_version="",
            device=DeviceKind(kind="cpu", name="scaled", num_threads=1, num_cores=1.0, score=1e10),
            num_samples=num_samples,
            batch_size=whole.batch_size,
            epochs=1,
            date=_DATE,
            largest_grain=whole.batch_size,
            inputs=Bytes(),
            memory_overhead=0.0,
            knee=1,
            spread=Spread(of_steps=0.0, of_runs=0.0),
            load_s_per_sample=0.0,
            optimizer_s_per_byte=0.0,
            optimizer_bytes_per_parameter_byte=2.0,
            reduce_s_per_byte=0.0,
            startup_cpu_s=0.0,
            runtime_bytes=_RUNTIME_BYTES,
            layers=tuple(_layer(number, sizes, layer_s) for number, sizes in enumerate(trained_bytes)),
            links=tuple(
                _link(source, target) for source in sites for target in sites if source + target != 2 * STORE_SITE
            ),
        )
    )


def _layer(number: int, sizes: Mapping[str, int], layer_s: float) -> LayerProfile:
    return LayerProfile(
        name=f"layer {number}",
        parameter_bytes=sum(sizes.values()),
        buffer_bytes=0,
        boundary=Bytes(),
        activations=Bytes(),
        forward_peak=Bytes(),
        backward_peak=Bytes(),
        points=(TimePoint(num_samples=1, forward_s=layer_s / 3, backward_s=layer_s * 2 / 3),),
        gradients=tuple(GradientReady(name=name, num_bytes=size, at_share=1.0) for name, size in sizes.items()),
    )


def _link(source: str, target: str) -> Link:
    return Link(
        from_site=source,
        to_site=target,
        bandwidth_bytes_per_s=_BYTES_PER_S,
        rtt_s=_RTT_S,
        source="assumed",
        date=_DATE,
    )
