"""GPUs of a machine, each of which belongs to one member at a time.

A claim is a name in the kernel's list of abstract sockets. The kernel frees it when the process ends, however it ends,
and no file stays behind.
"""

import os
import socket
from contextlib import suppress

from zooid.core.environment import assigned_gpus
from zooid.entry.machine_facts import facts

_claimed: list[socket.socket] = []
"""Claims of this process, which it keeps until it ends."""


def gpu_settings(*, uses_gpus: bool) -> dict[str, str]:
    """Return the variables that give a member its GPU: the first free one, unless a scheduler has assigned some.

    A member that computes on the CPU sees none, and so does one that comes when all GPUs are taken.
    """
    if not uses_gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    if assigned_gpus() is not None:
        return {}
    num_gpus = len(facts()["gpus"])
    if num_gpus == 0:
        return {}
    number = next((number for number in range(num_gpus) if _claim(number)), None)
    return {"CUDA_VISIBLE_DEVICES": "" if number is None else str(number)}


def _claim(number: int) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    with suppress(OSError):  # another process has it
        claim.bind(f"\0zooid-{os.getuid()}-gpu-{number}")
        _claimed.append(claim)
        return True
    claim.close()
    return False
