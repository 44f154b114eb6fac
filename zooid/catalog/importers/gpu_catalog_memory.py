"""The memory of an accelerator, for price lists that do not give it."""

from functools import cache

from zooid.catalog.shipped_tables import device_scores


@cache
def gpu_memory_bytes(gpu: str) -> int:
    """Return the memory of one accelerator as it is sold; 0 for no accelerator. KeyError for an unknown model.

    >>> gpu_memory_bytes("A100-80GB"), gpu_memory_bytes("")
    (80000000000, 0)
    """
    if not gpu:
        return 0
    memory_bytes = {score.device: score.memory_bytes for score in device_scores()}[gpu]
    assert memory_bytes is not None, f"{gpu} has no memory in the catalog"
    return memory_bytes
