"""A first run of a stage on zeros, before its process joins: what is slow only once is over before anybody waits.

The first forward and backward of a process start threads, load kernels and fill the allocator. On a GPU that takes
seconds.
"""

import logging

import torch

from zooid.layers import Stage, autocasting
from zooid.worker.member.role import Role
from zooid.worker.state.running_statistics import RunningStatistics
from zooid.worker.step.given_gradients import backward_from

logger = logging.getLogger(__name__)


def warm_up(role: Role, stage: Stage) -> None:
    """Run one grain of zeros through the stage, forward and backward, and leave the stage as it was.

    Neither samples nor the job's loss are needed for it. A model may fail on zeros: then nothing is warm, and the
    process joins nevertheless.
    """
    values = () if stage.model.whole is not None else stage.model.values_into(stage.first_layer)
    if len(values) != len(stage.differentiable_inputs) or not values:
        return  # the sizes of its inputs are not known, or not all of them are tensors
    shapes = [(value.shape(role.plan.grain_size), value.dtype) for value in values]
    zeros = [torch.zeros(shape, dtype=dtype, device=role.device) for shape, dtype in shapes]
    statistics = RunningStatistics(stage.module, role.layered.persistent_names, torch.float32)
    statistics.begin(num_grains=2)  # as in a step of several grains, whose buffers are restored
    devices = [role.device] if role.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            with autocasting(role.job.autocast, role.device):
                outputs = stage.run(*stage.detached(zeros))
            reached = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
            backward_from(reached, [torch.zeros_like(value) for value in reached])
    except Exception as error:  # noqa: BLE001  # whatever the model raises on zeros
        logger.info("the stage cannot run on zeros, so its first step will take longer: %s", error)
    finally:
        statistics.drop()
        for parameter in stage.module.parameters():
            parameter.grad = None
    if devices:
        torch.cuda.synchronize(role.device)
