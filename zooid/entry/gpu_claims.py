"""GPUs of a machine, each of which belongs to one member at a time as long as there are enough.

A claim is a name in the kernel's list of abstract sockets. The kernel frees it when the process ends, however it ends,
and no file stays behind. The process that attends a member holds its claim, and never initialises CUDA.
"""

import errno
import itertools
import os
import re
import socket
import time

from zooid.core.environment import NEEDED_GPU, assigned_gpus
from zooid.core.errors import InputError
from zooid.core.runs.ticket import GpuUse
from zooid.entry.machine_facts import list_gpus

_WAIT_S = 60.0
"""Seconds to wait for a free GPU. A member that was lost, or that prepared a profile, may still hold one."""
_LOOK_S = 0.2
_DEVICE = re.compile(r"\d+|(?:GPU|MIG)-\S+")
"""A device in CUDA_VISIBLE_DEVICES. CUDA ignores all that follows anything else."""

_NAMES = f"zooid-{os.getuid()}-gpu-"
"""What the names of claims begin with."""
_claimed: list[socket.socket] = []
"""Claims of this process, which it keeps until it ends."""


def gpu_settings(use: GpuUse, *, wait_s: float = _WAIT_S) -> dict[str, str]:
    """Return the variables that let a member see the GPU that it uses, which is claimed for it.

    Waits for a free GPU if the member needs one. Raises InputError if there is none by then.
    """
    match use:
        case "none":
            return {"CUDA_VISIBLE_DEVICES": ""}
        case "seen":
            return {}
        case "shared":
            devices, _ = _visible_devices()
            return {"CUDA_VISIBLE_DEVICES": _claim_shared(devices)} if devices else {}
        case "own" | "assigned":
            device = _assigned_device() if use == "assigned" else None
            return {"CUDA_VISIBLE_DEVICES": device or _claim_own(wait_s), NEEDED_GPU: "1"}


def _assigned_device() -> str | None:
    """Return the GPU that a scheduler has chosen for this process; None if it has not chosen exactly one."""
    devices, _ = _visible_devices()
    return devices[0] if len(devices) == 1 and assigned_gpus() is not None else None


def _visible_devices() -> tuple[list[str], str]:
    """Return the GPUs among which this process may choose, by their names for CUDA, and why there are none."""
    listed = assigned_gpus()
    if listed is not None:
        words = [word.strip() for word in listed.split(",")]
        return list(itertools.takewhile(_DEVICE.fullmatch, words)), f"CUDA_VISIBLE_DEVICES is {listed!r} there"
    gpus, error = list_gpus()
    return [str(number) for number in range(len(gpus))], error or "nvidia-smi lists none"


def _claim_own(wait_s: float) -> str:
    """Claim a GPU that no other member has, and return its name."""
    host = os.uname().nodename
    devices, why_none = _visible_devices()
    if not devices:
        raise InputError(
            f"{host} has no GPU for this member ({why_none}); make its GPUs visible, or set `num_gpus` in the file "
            "of machines to what it has"
        )
    deadline_s = time.monotonic() + wait_s
    while True:
        for device in devices:
            if _claim(device):
                return device
        if time.monotonic() >= deadline_s:
            count = "the only GPU" if len(devices) == 1 else f"all {len(devices)} GPUs"
            raise InputError(
                f"other members have used {count} of {host} for {wait_s:g} s; start at most one member for each GPU "
                "there (`members` in the file of machines), or wait until other runs on that machine have ended"
            )
        time.sleep(_LOOK_S)


def _claim_shared(devices: list[str]) -> str:
    """Claim one of the GPUs that the fewest other members have, and return its name."""
    for num_others in itertools.count():
        for device in devices:
            if _claim(device if num_others == 0 else f"{device}-{num_others}"):
                return device
    raise AssertionError


def _claim(name: str) -> bool:
    """Claim a name for this process; False if another process has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0{_NAMES}{name}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise InputError(f"GPU {name} of {os.uname().nodename} cannot be claimed: {error}") from error
        return False
    _claimed.append(claim)
    return True
