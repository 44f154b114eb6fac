"""Step times of placements that were not measured, from few that were."""

from collections.abc import Sequence

import numpy as np

from zooid.core.errors import InputError
from zooid.predictor.learned.scaling.scaling_fit import Fit, Measured
from zooid.predictor.learned.scaling.step_formula import Questions
from zooid.predictor.learned.scaling.step_probes import Placement, StepProbe, StepTime, check_placement

FEWEST_PROBES = 8


class ScalingModel:
    """Predicts steps of data-parallel training of one model on one kind of node."""

    def __init__(self, probes: Sequence[StepProbe]) -> None:
        """Probes are kept for what they cover; `fit_scaling` checks that they are enough."""
        self._fit = Fit(
            Measured(
                asked=Questions.of([(probe.placement, probe.local_batch) for probe in probes]),
                step_s=np.array([probe.step_s for probe in probes]),
                sync_s=np.array([np.nan if probe.sync_s is None else probe.sync_s for probe in probes], float),
            )
        )
        placements = [probe.placement for probe in probes]
        batches = [probe.local_batch for probe in probes]
        self._most_members = max(sum(placement) for placement in placements)
        self._most_nodes = max(len(placement) for placement in placements)
        self._most_crowd = max(max(placement) for placement in placements)
        self._batches = (min(batches), max(batches))
        self._has_local = any(len(placement) == 1 and sum(placement) > 1 for placement in placements)

    def predict(self, placement: Placement, local_batch: int) -> StepTime:
        """The step of these members on these nodes, with so many samples each."""
        return self.predict_all([(placement, local_batch)])[0]

    def predict_all(self, asked: Sequence[tuple[Placement, int]]) -> list[StepTime]:
        """The same for many at once, which is faster."""
        for placement, local_batch in asked:
            check_placement(placement, local_batch)
            if len(placement) > 1 and self._most_nodes == 1:
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
        said = []
        for what, asked, most in (
            ("members", sum(placement), self._most_members),
            ("nodes", len(placement), self._most_nodes),
            ("members on one node", max(placement), self._most_crowd),
        ):
            if asked > most:
                said.append(f"{asked} {what}, measured up to {most}")
        least, most = self._batches
        if not least <= local_batch <= most:
            said.append(f"a local batch of {local_batch}, measured from {least} to {most}")
        if len(placement) == 1 and sum(placement) > 1 and not self._has_local:
            said.append("several members on a single node, measured only across nodes")
        return tuple(said)


def fit_scaling(probes: Sequence[StepProbe]) -> ScalingModel:
    """Learn how step time follows from members, nodes and local batch. Seconds for hundreds of probes.

    Time grows with the cube of their number: 100 take some tenths of a second, 1000 about a minute.
    """
    batches = {probe.local_batch for probe in probes}
    if len(probes) < FEWEST_PROBES or len(batches) < 2:
        raise InputError(
            f"{len(probes)} probes with {len(batches)} different local batches are too few to fit step times; measure "
            f"at least {FEWEST_PROBES}, with at least 2 local batches, and on as many placements as possible"
        )
    return ScalingModel(probes)
