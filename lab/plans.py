"""Plans that nobody searched for, and that predict nothing: for members whose work is set up by hand."""

from collections.abc import Sequence

from zooid.catalog import local_offer
from zooid.core.plans.plan import AllReduceName, Plan, Prediction, ScheduleName, StagePlan, TransportName

_MEMORY_BYTES = 2**40
_DATE = "2026-01-01"


def bare_plan(
    *,
    job: str,
    spans: Sequence[tuple[int, int]],
    batch_size: int,
    grain_size: int,
    fingerprint: str = "",
    why_whole: str = "",
    num_steps: int = 1,
    num_replicas: int = 1,
    schedule: ScheduleName = "1f1b",
    ahead: int = 0,
    transport: TransportName = "store",
    all_reduce: AllReduceName = "auto",
    shares: tuple[int, ...] = (),
) -> Plan:
    """Stages of these layers [first, end), on this machine."""
    offer = local_offer(_MEMORY_BYTES, _DATE)
    return Plan(
        job=job,
        model_fingerprint=fingerprint,
        why_whole=why_whole,
        batch_size=batch_size,
        grain_size=grain_size,
        num_replicas=num_replicas,
        stages=tuple(
            StagePlan(first_layer=first, end_layer=end, offer=offer.name, memory_bytes=1) for first, end in spans
        ),
        schedule=schedule,
        ahead=ahead,
        shares=shares,
        transport=transport,
        all_reduce=all_reduce,
        offers=(offer,),
        predicted=Prediction(step_s=1.0, num_steps=num_steps, startup_s=0.0, run_s=1.0, run_usd=0.0, cost_terms=()),
    )
