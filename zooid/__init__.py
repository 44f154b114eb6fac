"""One training run made of many members, each with one part of the model, on resources that come and go.

`import zooid` is light: each name loads on first use, and torch only when a function needs it.
"""

from typing import TYPE_CHECKING

from zooid.core.lazy import lazy_names
from zooid.core.version import VERSION

if TYPE_CHECKING:
    from zooid.coordinator import (
        clean,
        plan,
        predict,
        probe,
        probe_all_reduce,
        profile,
        profiles,
        rehearse,
        resume,
        scale,
        search,
        stop,
        train,
    )
    from zooid.core.errors import ZooidError
    from zooid.core.jobs import scaling
    from zooid.core.jobs.job import Job
    from zooid.core.jobs.run_requests import Monitor, Wish
    from zooid.core.plans.plan import Limits
    from zooid.core.runs.checkpoint import CheckpointRule
    from zooid.store.shards import index_shards, shards
    from zooid.worker.checkpoints.contents import load_checkpoint, load_optimizer
    from zooid.worker.checkpoints.pretrained import save_pretrained

__version__ = VERSION
__all__ = [
    "CheckpointRule",
    "Job",
    "Limits",
    "Monitor",
    "Wish",
    "ZooidError",
    "clean",
    "index_shards",
    "load_checkpoint",
    "load_optimizer",
    "plan",
    "predict",
    "probe",
    "probe_all_reduce",
    "profile",
    "profiles",
    "rehearse",
    "resume",
    "save_pretrained",
    "scale",
    "scaling",
    "search",
    "shards",
    "stop",
    "train",
]

_LAZY = {
    "ZooidError": "zooid.core.errors",
    "scaling": "zooid.core.jobs.scaling",
    "Job": "zooid.core.jobs.job",
    "Monitor": "zooid.core.jobs.run_requests",
    "Wish": "zooid.core.jobs.run_requests",
    "Limits": "zooid.core.plans.plan",
    "CheckpointRule": "zooid.core.runs.checkpoint",
    "clean": "zooid.coordinator",
    "plan": "zooid.coordinator",
    "predict": "zooid.coordinator",
    "probe": "zooid.coordinator",
    "probe_all_reduce": "zooid.coordinator",
    "profile": "zooid.coordinator",
    "profiles": "zooid.coordinator",
    "rehearse": "zooid.coordinator",
    "resume": "zooid.coordinator",
    "scale": "zooid.coordinator",
    "search": "zooid.coordinator",
    "stop": "zooid.coordinator",
    "train": "zooid.coordinator",
    "load_checkpoint": "zooid.worker.checkpoints.contents",
    "load_optimizer": "zooid.worker.checkpoints.contents",
    "save_pretrained": "zooid.worker.checkpoints.pretrained",
    "index_shards": "zooid.store.shards",
    "shards": "zooid.store.shards",
}

__getattr__ = lazy_names(__name__, _LAZY)
