"""Step times of placements that were not measured, from a few that were."""

from collections.abc import Sequence

import numpy as np

from zooid.core.errors import InputError
from zooid.predictor.learned.scaling.scaling_fit import ProbeColumns, ScalingFit
from zooid.predictor.learned.scaling.step_formula import Questions
from zooid.predictor.learned.scaling.step_probes import Placement, StepProbe, StepTime, check_placement

_MIN_PROBES = 8


class ScalingModel:
    """Predicts the steps of data-parallel training of one model on one kind of node."""

    def __init__(self, probes: Sequence[StepProbe]) -> None:
        """Fit the probes; `fit_scaling` checks first that there are enough."""
        self._fit = ScalingFit(
            ProbeColumns(
                asked=Questions.of([(probe.placement, probe.local_batch) for probe in probes]),
                step_s=np.array([probe.step_s for probe in probes]),
                sync_s=np.array([np.nan if probe.sync_s is None else probe.sync_s for probe in probes], float),
            )
        )
        placements = [probe.placement for probe in probes]
        batches = [probe.local_batch for probe in probes]
        self._max_members = max(sum(placement) for placement in placements)
        self._max_nodes = max(len(placement) for placement in placements)
        self._max_crowd = max(max(placement) for placement in placements)
        self._batches = (min(batches), max(batches))
        self._has_local = any(len(placement) == 1 and sum(placement) > 1 for placement in placements)

    def predict(self, placement: Placement, local_batch: int) -> StepTime:
        """Predict a step of these members with `local_batch` samples each."""
        return self.predict_all([(placement, local_batch)])[0]

    def predict_all(self, asked: Sequence[tuple[Placement, int]]) -> list[StepTime]:
        """Predict many steps at once, which is faster."""
        for placement, local_batch in asked:
            check_placement(placement, local_batch)
            if len(placement) > 1 and self._max_nodes == 1:
                raise InputError(
                    f"asked for members on {len(placement)} nodes, but every probe was on a single one, which says "
                    "nothing about the network between nodes; add probes on two nodes and on three"
                )
        if not asked:
            return []
        logs = self._fit.log_step(Questions.of(asked))
        return [
            StepTime(
                step_s=float(np.exp(step)),
                compute_s=float(np.exp(compute)),
                spread=float(spread),
                beyond=self._beyond(*question),
            )
            for question, step, compute, spread in zip(asked, *logs, strict=True)
        ]

    def _beyond(self, placement: Placement, local_batch: int) -> tuple[str, ...]:
        reasons = []
        for quantity, asked, maximum in (
            ("members", sum(placement), self._max_members),
            ("nodes", len(placement), self._max_nodes),
            ("members on one node", max(placement), self._max_crowd),
        ):
            if asked > maximum:
                reasons.append(f"{asked} {quantity}, measured up to {maximum}")
        low, high = self._batches
        if not low <= local_batch <= high:
            reasons.append(f"a local batch of {local_batch}, measured from {low} to {high}")
        if len(placement) == 1 and sum(placement) > 1 and not self._has_local:
            reasons.append("several members on a single node, measured only across nodes")
        return tuple(reasons)


def fit_scaling(probes: Sequence[StepProbe]) -> ScalingModel:
    """Learn how the step time follows from members, nodes and local batch.

    The time of a fit grows with the cube of the number of probes: 100 take tenths of a second, 1000 about a minute.
    """
    batches = {probe.local_batch for probe in probes}
    if len(probes) < _MIN_PROBES or len(batches) < 2:
        raise InputError(
            f"{len(probes)} probes with {len(batches)} different local batches are too few to fit step times; measure "
            f"at least {_MIN_PROBES}, with at least 2 local batches, and on as many placements as possible"
        )
    return ScalingModel(probes)
