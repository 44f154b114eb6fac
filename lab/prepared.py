"""A job that was checked and traced once, for the plans of many runs."""

from functools import cached_property
from itertools import pairwise
from pathlib import Path

from lab.plans import bare_plan
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan, TransportName
from zooid.layers import LayeredModel, check_job, faithful_layers
from zooid.schedule.samples import SamplePlan


class PreparedJob:
    """A job file, its samples, and plans in any layout."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._checked = check_job(load_job(file))
        job = self._checked.job
        self._samples = SamplePlan.of(job, self._checked.num_samples, job.grain_size or job.batch_size)

    @cached_property
    def _layered(self) -> LayeredModel:
        return faithful_layers(self._checked)

    @cached_property
    def batches(self) -> list[list[int]]:
        """Samples of every step."""
        return [
            [int(index) for grain in self._samples.grains(step) for index in grain]
            for step in range(self._samples.num_steps)
        ]

    @property
    def trained_bytes(self) -> list[dict[str, int]]:
        """Sizes of the trained parameters of every layer, by name."""
        return [dict(self._layered.trained_bytes(layer, layer + 1)) for layer in range(self._layered.num_layers)]

    def plan(self, num_replicas: int, num_stages: int, transport: TransportName) -> Plan:
        """Stages of about equally many layers; nothing is predicted."""
        num_layers = self._layered.num_layers
        return bare_plan(
            job=self.file.stem,
            fingerprint=self._layered.fingerprint,
            why_whole=self._layered.why_whole,
            spans=list(pairwise(num_layers * stage // num_stages for stage in range(num_stages + 1))),
            batch_size=self._samples.batch_size,
            grain_size=self._samples.grain_size,
            num_steps=self._samples.num_steps,
            num_replicas=num_replicas,
            schedule="gpipe",
            transport=transport,
        )
