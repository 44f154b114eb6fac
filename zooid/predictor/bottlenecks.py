"""The bottleneck of a step, and a sentence that says what would help."""

import math
from dataclasses import replace

from zooid.core.plans.forecast import Bottleneck, BottleneckKind, Gain
from zooid.core.plans.plan import Prediction
from zooid.predictor.simulation.layout import Layout
from zooid.predictor.simulation.step import simulate_step
from zooid.schedule.pipelines import StepSchedule

_MIN_SPEEDUP = 0.02
"""Speedup below which a change is not recommended."""
_MIN_REQUESTS = 0.5
"""Fraction of the bill above which requests are mentioned, whatever takes the time."""
_UNLIMITED_BYTES_PER_S = 1e18


def find_bottleneck(
    prediction: Prediction, schedule: StepSchedule, layout: Layout, gains: tuple[Gain, ...], step_s: float
) -> Bottleneck:
    """Find what costs most of a step. `step_s` is its time without noise.

    A member also waits while messages of others are in flight, so the parts of its own step do not show what messages
    cost. Two more simulations do: one without latency (requests), and one without bytes, too (transfer, reduce). What
    remains beside computing is the bubble.
    """
    parts = prediction.parts
    assert parts is not None, "a simulated step has parts"
    bytes_only_s = ideal_s = step_s
    if schedule.num_replicas * schedule.num_stages > 1:
        prompt = _without_latency(layout)
        bytes_only_s = min(step_s, simulate_step(schedule, prompt).step_s)
        ideal_s = min(bytes_only_s, simulate_step(schedule, _without_bytes(prompt)).step_s)
    exposed_s = parts.transfer_s + parts.reduce_s
    reduce_fraction = parts.reduce_s / exposed_s if exposed_s else float(schedule.num_stages == 1)
    fractions: dict[BottleneckKind, float] = {
        "compute": parts.compute_s / parts.step_s,
        "transfer": (bytes_only_s - ideal_s) / step_s * (1 - reduce_fraction),
        "reduce": (bytes_only_s - ideal_s) / step_s * reduce_fraction,
        "requests": (step_s - bytes_only_s) / step_s,
        "bubble": ideal_s / step_s - parts.compute_s / parts.step_s,
    }
    kind = max(fractions, key=lambda name: fractions[name])
    percent = f"{fractions[kind] * 100:.0f} % of a step"
    what = {
        "compute": f"{parts.member} computes for {percent}",
        "transfer": f"bytes in flight between stages cost {parts.member} {percent}",
        "reduce": f"bytes of the all-reduce of gradients cost {parts.member} {percent}",
        "requests": f"{'round trips' if layout.is_direct else 'requests to the store'} cost {parts.member} {percent}",
        "bubble": f"{parts.member} waits for other members for {percent}",
    }[kind]
    sentence = f"{what}: {_help(kind, schedule, layout, gains)}{_about_money(prediction)}"
    return Bottleneck(kind=kind, member=parts.member, share=fractions[kind], sentence=sentence)


def _without_latency(layout: Layout) -> Layout:
    """The layout with messages that take only as long as their bytes."""
    links = {
        ends: replace(link, rtt_s=0.0, total_requests_per_s=math.inf, cpu_s=0.0) for ends, link in layout.links.items()
    }
    return replace(layout, links=links, looks="at_once")


def _without_bytes(layout: Layout) -> Layout:
    """The layout with links and library all-reduces that move any bytes in no time."""
    unlimited = {
        "bytes_per_s": _UNLIMITED_BYTES_PER_S,
        "stream_bytes_per_s": math.inf,
        "total_bytes_per_s": math.inf,
        "cpu_s_per_byte": 0.0,
    }
    links = {ends: replace(link, **unlimited) for ends, link in layout.links.items()}
    return replace(layout, links=links, library=None if layout.library is None else lambda num_bytes, num_members: 0.0)


def _help(kind: BottleneckKind, schedule: StepSchedule, layout: Layout, gains: tuple[Gain, ...]) -> str:
    """Say what would help against a bottleneck, and what the simulated changes bring."""
    is_pipeline = schedule.num_stages > 1
    nearer = "members nearer to one another" if layout.is_direct else "a nearer store"
    remedy = {
        "compute": "faster members",
        "transfer": "faster links or fewer stages",
        "reduce": "faster links or fewer replicas",
        "requests": f"larger grains, which are fewer messages, or {nearer}" if is_pipeline else nearer,
        "bubble": "smaller grains, which fill the pipeline better, or fewer stages" if is_pipeline else "other shares",
    }[kind]
    speedups = sorted(
        ((gain.speedup, gain.change) for gain in gains if gain.speedup is not None and gain.speedup >= _MIN_SPEEDUP),
        reverse=True,
    )
    words = {"replica": "one more replica", "batch": "twice the batch"}
    brings = [f"{words[change]} brings {speedup * 100:.0f} % more samples/s" for speedup, change in speedups]
    return f"{remedy} would help" + (f"; {', '.join(brings)}" if brings else "")


def _about_money(prediction: Prediction) -> str:
    requests_usd = sum(term.usd for term in prediction.cost_terms if term.kind == "requests")
    if not prediction.run_usd or requests_usd / prediction.run_usd < _MIN_REQUESTS:
        return ""
    percent = requests_usd / prediction.run_usd * 100
    return f"; requests to the store are {percent:.0f} % of the bill: larger grains, or connected members, need fewer"
