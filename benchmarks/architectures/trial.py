"""What zooid makes of one architecture."""

import time
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.architectures.agreement import TOLERANCES, largest_difference, run_stages, run_untouched
from benchmarks.architectures.cases import Case, NotTrainable, batches_of, case_of, in_short
from zooid.core.errors import ZooidError
from zooid.layers import Batch, LayeredModel, check_job, faithful_layers, trace

Row = dict[str, Any]


def try_architecture(architecture: str) -> Row:
    """A row with the outcome: exact, whole, refused or error; or `left out`, where plain PyTorch cannot train it."""
    started = time.perf_counter()
    row: Row = {"architecture": architecture}
    try:
        config_class = import_module("transformers").CONFIG_MAPPING[architecture]
        case = case_of(architecture, config_class)
    except NotTrainable as error:
        return row | {"outcome": "left out", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - the library's own failure to import or to configure
        return row | {"outcome": "left out", "reason": in_short(error)}
    row |= {"head": case.head, "inputs": "+".join(case.recipe.inputs), "dtype": str(case.dtype)[6:]}
    try:
        row |= _outcome(case)
    except ZooidError as error:
        row |= {"outcome": "refused", "layers": 0, "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - this is what the benchmark counts
        row |= {"outcome": "error", "layers": 0, "reason": in_short(error)}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def warm_up() -> None:
    """Imports what every trial needs: a trace of anything loads most of torch.export."""
    trace(nn.Linear(2, 2), Batch((torch.ones(2, 2),), {}, None, 2))


def _outcome(case: Case) -> Row:
    layered = faithful_layers(check_job(case.job))
    model = case.job.model()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: tensor.detach().clone() for name, tensor in state.items()}
    batches = batches_of(case.job)
    wanted = run_untouched(case.job, model, batches)
    difference, place = largest_difference(run_stages(case.job, layered, state, batches), wanted)
    row = {"layers": layered.num_layers, "difference": difference}
    if not difference <= TOLERANCES[case.dtype]:
        return row | {"outcome": "error", "reason": f"{place} differs by {difference:.2e}"}
    return row | _kind(layered)


def _kind(layered: LayeredModel) -> Row:
    if layered.num_layers > 1:
        return {"outcome": "exact", "reason": ""}
    return {"outcome": "whole", "reason": layered.why_whole or "it has no place where it could be cut"}
