"""What holds a step back, in one sentence, and what would help."""

import math
from dataclasses import replace

from zooid.core.plans.forecast import Bottleneck, BottleneckKind, Gain
from zooid.core.plans.plan import Prediction
from zooid.predictor.simulation.layout import Layout
from zooid.predictor.simulation.step import simulate_step
from zooid.schedule.pipelines import StepSchedule

_WORTH_IT = 0.02
"""A change that brings less is not recommended."""
_MUCH_OF_THE_BILL = 0.5
"""Requests that cost more are mentioned, whatever takes the time."""


_BOUNDLESS_BYTES_PER_S = 1e18


def find_bottleneck(
    prediction: Prediction, schedule: StepSchedule, layout: Layout, gains: tuple[Gain, ...], step_s: float
) -> Bottleneck:
    """What costs a step most; `step_s` is what it takes without noise.

    A member also waits because another one's message is on its way. So it is not the parts of its step that tell what
    messages cost, but how much sooner the step would end with messages that come at once (requests), and then with
    messages that have no bytes either (transfer, reduce). What is left beside computing is the bubble.
    """
    parts = prediction.parts
    assert parts is not None, "a simulated step has parts"
    at_once_s = step_s
    ideal_s = step_s
    if schedule.num_replicas * schedule.num_stages > 1:
        at_once_s = min(step_s, simulate_step(schedule, _at_once(layout)).step_s)
        ideal_s = min(at_once_s, simulate_step(schedule, _without_bytes(_at_once(layout))).step_s)
    exposed_s = parts.transfer_s + parts.reduce_s
    of_reduces = parts.reduce_s / exposed_s if exposed_s else float(schedule.num_stages == 1)
    shares: dict[BottleneckKind, float] = {
        "compute": parts.compute_s / parts.step_s,
        "transfer": (at_once_s - ideal_s) / step_s * (1 - of_reduces),
        "reduce": (at_once_s - ideal_s) / step_s * of_reduces,
        "requests": (step_s - at_once_s) / step_s,
        "bubble": ideal_s / step_s - parts.compute_s / parts.step_s,
    }
    kind = max(shares, key=lambda name: shares[name])
    percent = f"{shares[kind] * 100:.0f} % of a step"
    what = {
        "compute": f"{parts.member} computes for {percent}",
        "transfer": f"bytes on their way between stages cost {parts.member} {percent}",
        "reduce": f"bytes of the all-reduce of gradients cost {parts.member} {percent}",
        "requests": f"{'round trips' if layout.is_direct else 'requests to the store'} cost {parts.member} {percent}",
        "bubble": f"{parts.member} waits for other members for {percent}",
    }[kind]
    sentence = f"{what}: {_help(kind, schedule, layout, gains)}{_about_money(prediction)}"
    return Bottleneck(kind=kind, member=parts.member, share=shares[kind], sentence=sentence)


def _at_once(layout: Layout) -> Layout:
    """With messages that take as long as their bytes do, and no longer."""
    links = {
        ends: replace(link, rtt_s=0.0, total_requests_per_s=math.inf, cpu_s=0.0) for ends, link in layout.links.items()
    }
    return replace(layout, links=links, looks="at_once")


def _without_bytes(layout: Layout) -> Layout:
    """With links that carry anything in no time, and a library's all-reduces that take none."""
    links = {
        ends: replace(
            link,
            bytes_per_s=_BOUNDLESS_BYTES_PER_S,
            stream_bytes_per_s=math.inf,
            total_bytes_per_s=math.inf,
            cpu_s_per_byte=0.0,
        )
        for ends, link in layout.links.items()
    }
    return replace(layout, links=links, library=None if layout.library is None else lambda num_bytes, num_members: 0.0)


def _help(kind: BottleneckKind, schedule: StepSchedule, layout: Layout, gains: tuple[Gain, ...]) -> str:
    """Changes by what they bring, and what is not simulated."""
    is_pipeline = schedule.num_stages > 1
    nearer = "members nearer to one another" if layout.is_direct else "a nearer store"
    known = {
        "compute": "faster members",
        "transfer": "faster links or fewer stages",
        "reduce": "faster links or fewer replicas",
        "requests": f"larger grains, which are fewer messages, or {nearer}" if is_pipeline else nearer,
        "bubble": "smaller grains, which fill the pipeline better, or fewer stages" if is_pipeline else "other shares",
    }[kind]
    brings = sorted(
        ((gain.speedup, gain.change) for gain in gains if gain.speedup is not None and gain.speedup >= _WORTH_IT),
        reverse=True,
    )
    words = {"replica": "one more replica", "batch": "twice the batch"}
    simulated = ", ".join(f"{words[change]} brings {speedup * 100:.0f} % more samples/s" for speedup, change in brings)
    return f"{known} would help" + (f"; {simulated}" if simulated else "")


def _about_money(prediction: Prediction) -> str:
    requests_usd = sum(term.usd for term in prediction.cost_terms if term.kind == "requests")
    if not prediction.run_usd or requests_usd / prediction.run_usd < _MUCH_OF_THE_BILL:
        return ""
    share = requests_usd / prediction.run_usd * 100
    return f"; requests to the store are {share:.0f} % of the bill: larger grains, or connected members, need fewer"
