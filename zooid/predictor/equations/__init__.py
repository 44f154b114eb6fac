"""The papers' equations as pure functions, each of which evaluates one case or a hundred thousand at once.

They guide the search, which must look at far more cases than the simulator can; the simulator decides. Arguments are
numbers or arrays, and broadcast. An axis of stages or sites is always the last one.
"""

from zooid.predictor.equations.all_reduce import (
    averaging_s,
    hierarchical_s,
    hub_s,
    pipelined_s,
    ring_s,
    shared_bytes_per_s,
    streaming_bound_s,
)
from zooid.predictor.equations.pipeline import Pipeline, funcpipe_step_s, overlapped_step_s
from zooid.predictor.equations.speedups import speedup_of_batch, speedup_of_members

__all__ = [
    "Pipeline",
    "averaging_s",
    "funcpipe_step_s",
    "hierarchical_s",
    "hub_s",
    "overlapped_step_s",
    "pipelined_s",
    "ring_s",
    "shared_bytes_per_s",
    "speedup_of_batch",
    "speedup_of_members",
    "streaming_bound_s",
]
