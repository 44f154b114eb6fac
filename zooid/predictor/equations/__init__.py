"""The papers' equations as pure functions, each of one case or of a hundred thousand at once.

They guide a search, which has to look at far more cases than the simulator can; the simulator decides. Numbers and
arrays are taken alike and broadcast; where something has an axis of its own (stages, sites, routes), it is the last.
"""

from zooid.predictor.equations.all_reduce import (
    averaging_s,
    hierarchical_s,
    pipelined_s,
    ring_s,
    streaming_bound_s,
    three_phase_s,
)
from zooid.predictor.equations.funcpipe import funcpipe_step_s
from zooid.predictor.equations.granularity import (
    best_speedup,
    granularity,
    samples_per_s,
    speedup_of_batch,
    speedup_of_members,
)
from zooid.predictor.equations.hub import hub_s
from zooid.predictor.equations.hydrozoa import hydrozoa_step_s
from zooid.predictor.equations.link_fit import LinkFit, fit_link, shared_bytes_per_s
from zooid.predictor.equations.pipeline import Pipeline
from zooid.predictor.equations.srifty import overlapped_step_s
from zooid.predictor.equations.step_money import step_usd, traffic_usd, usd_per_million_samples

__all__ = [
    "LinkFit",
    "Pipeline",
    "averaging_s",
    "best_speedup",
    "fit_link",
    "funcpipe_step_s",
    "granularity",
    "hierarchical_s",
    "hub_s",
    "hydrozoa_step_s",
    "overlapped_step_s",
    "pipelined_s",
    "ring_s",
    "samples_per_s",
    "shared_bytes_per_s",
    "speedup_of_batch",
    "speedup_of_members",
    "step_usd",
    "streaming_bound_s",
    "three_phase_s",
    "traffic_usd",
    "usd_per_million_samples",
]
