"""Functions around a parameter server on a VM, as in Cirrus (FuncPipe §5.1, Appendix D): a closed form only, because
members of zooid have no server.

With f + b the time of a grain, m grains a worker, s bytes of parameters, n workers of w bytes/s each way and a server
of W: every worker pushes its gradients and pulls the parameters, which is m (f + b) + 2 s / min(w, W / n). All that the
paper does not give counts for nothing: the latency of a request to the server, its updates, its own start-up.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from benchmarks.baselines.lambda_ml import lambda_ml, lambda_ml_accumulating
from zooid.catalog import offer
from zooid.core.plans.plan import Plan
from zooid.core.resources.offer import Offer
from zooid.planner import Market
from zooid.predictor import run_cost, startup_s, total_usd


@dataclass(frozen=True)
class ServedRun:
    """What so many workers and their server take and cost."""

    workers: Plan
    step_s: float
    run_s: float
    run_usd: float

    @property
    def words(self) -> str:
        return f"{self.workers.num_replicas} workers on {self.workers.offers[0].name} and a server"


def server() -> Offer:
    """c5.9xlarge, which FuncPipe's authors chose: AWS sells it as one half of the catalog's c5.18xlarge."""
    twice = offer("aws.ec2.c5.18xlarge")
    assert twice.bandwidth_bytes_per_s is not None
    return structs.replace(
        twice,
        name="aws.ec2.c5.9xlarge",
        vcpus=twice.vcpus / 2,
        memory_bytes=twice.memory_bytes // 2,
        usd_per_hour=twice.usd_per_hour / 2,
        bandwidth_bytes_per_s=twice.bandwidth_bytes_per_s / 2,
        source=f"FuncPipe, Appendix D; half of c5.18xlarge: {twice.source}",
    )


def hybrid_ps(market: Market, max_members: int) -> Iterator[ServedRun]:
    """Workers as LambdaML and LambdaML-GA have them; the server is one more."""
    hub = server()
    assert hub.bandwidth_bytes_per_s is not None
    profile = market.profile
    moved_bytes = 2 * profile.parameter_bytes(0, len(profile.layers))
    num_steps = profile.num_samples * profile.epochs / profile.batch_size
    accumulating = lambda_ml_accumulating(market, max_members)
    for workers in dict.fromkeys([*lambda_ml(market, max_members), *accumulating]):
        (worker,), (span,), number = workers.offers, workers.partition, workers.num_replicas
        times = market.world.stage_times(worker, span, workers.grain_size, crowded=False, is_direct=False)
        num_grains = math.ceil(math.ceil(profile.batch_size / workers.grain_size) / number)
        rate = min(link.bytes_per_s for link in market.links_of(worker, is_direct=False))
        moving_s = moved_bytes / min(rate, hub.bandwidth_bytes_per_s / number)
        step_s = num_grains * (times.forward_s + times.backward_s) + moving_s
        starting_s = startup_s(workers, market.world)
        run_s = starting_s + num_steps * step_s
        terms = run_cost([worker] * number + [hub], run_s, starting_s)
        yield ServedRun(workers, step_s, run_s, total_usd(terms))
