"""Profiles of models that do not exist, for members that only sleep."""

from collections.abc import Sequence

from zooid.core.plans.profile import Bytes, DeviceKind, GradientReady, LayerProfile, Profile, Spread, TimePoint

FINGERPRINT = "made up"
_DATE = "2026-01-01"


def made_layer(name: str, forward_s: float, *, parameter_bytes: int, boundary_bytes: int) -> LayerProfile:
    """A layer whose backward takes twice as long as its forward, for one sample. It sends so many bytes on."""
    return LayerProfile(
        name=name,
        parameter_bytes=parameter_bytes,
        buffer_bytes=0,
        boundary=Bytes(per_sample=float(boundary_bytes)),
        activations=Bytes(),
        forward_peak=Bytes(),
        backward_peak=Bytes(),
        points=(TimePoint(num_samples=1, forward_s=forward_s, backward_s=2 * forward_s),),
        gradients=(GradientReady(name=f"weight of {name}", num_bytes=parameter_bytes, at_share=0.5),),
    )


def made_profile(
    job: str, layers: Sequence[LayerProfile], *, batch_size: int, num_steps: int, startup_cpu_s: float = 0.0
) -> Profile:
    """A model of these layers, with a data set of so many steps. Nothing in it varies."""
    return Profile(
        job=job,
        model_fingerprint=FINGERPRINT,
        zooid_version="0",
        torch_version="0",
        date=_DATE,
        device=DeviceKind(kind="cpu", name="cpu", num_threads=1, num_cores=1.0, score=1e10),
        num_samples=num_steps * batch_size,
        batch_size=batch_size,
        largest_grain=batch_size,
        knee=1,
        epochs=1,
        load_s_per_sample=0.0,
        optimizer_s_per_byte=1e-9,
        optimizer_bytes_per_parameter_byte=2.0,
        reduce_s_per_byte=0.0,
        startup_cpu_s=startup_cpu_s,
        runtime_bytes=1,
        inputs=Bytes(),
        memory_overhead=0.0,
        spread=Spread(of_steps=0.0, of_runs=0.0),
        layers=tuple(layers),
        links=(),
    )
