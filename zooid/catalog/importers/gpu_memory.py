"""The memory of an accelerator, from the column GpuInfo of SkyPilot's files.

The column holds a Python literal or JSON, such as `{'Gpus': [{'Name': 'T4', 'MemoryInfo': {'SizeInMiB': 16384}}]}`.
Azure's rows have only a name, RunPod's have GiB, and some rows of machines with several accelerators have the memory of
all of them.
"""

import ast
import json
import math
from functools import cache
from typing import Any

_MIN_MIB = 1024
"""No accelerator that trains networks has less memory, so a smaller number is in GiB."""
_MAX_MIB = 320 * 1024
"""No accelerator has more memory yet; 288 GB is the most (B300)."""


@cache
def listed_mib(info: str) -> int | None:
    """Return the memory that the column gives, in MiB; None if it is silent. ValueError if it is malformed."""
    if "{" not in info:
        return None
    try:
        content: Any = json.loads(info)
    except ValueError:
        try:
            content = ast.literal_eval(info)
        except (ValueError, SyntaxError):
            raise ValueError("its GpuInfo is neither JSON nor a Python literal") from None
    try:
        size = content["Gpus"][0].get("MemoryInfo", {}).get("SizeInMiB")
        size_mib = 0 if size is None else int(size)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("its GpuInfo has no list of accelerators") from None
    if size_mib <= 0:
        return None
    return size_mib * 1024 if size_mib < _MIN_MIB else size_mib


def mib_of_one(size_mib: int, num_gpus: int, usual_mib: int | None) -> int | None:
    """Return the memory of one of several accelerators, given what their row says, and what one usually has.

    None if that cannot be told.

    >>> mib_of_one(655360, 8, 81920), mib_of_one(81559, 8, 81920), mib_of_one(1155072, 8, None)
    (81920, 81559, 144384)
    >>> mib_of_one(196608, 8, None) is None
    True
    """
    share_mib = size_mib // num_gpus
    if num_gpus == 1 or size_mib == share_mib:
        return size_mib
    if usual_mib is not None:
        return min((size_mib, share_mib), key=lambda mib: abs(math.log(mib / usual_mib)))
    if size_mib > _MAX_MIB:
        return share_mib
    return None if share_mib >= _MIN_MIB else size_mib
