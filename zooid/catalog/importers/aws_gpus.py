"""The GPUs of Amazon's machines, of which the price list gives the number but not the model."""

import re
from functools import cache, lru_cache

from zooid.catalog.importers.gpu_catalog_memory import gpu_memory_bytes
from zooid.catalog.importers.imported_prices import Unusable
from zooid.catalog.shipped_tables import read_table
from zooid.core.records import Record
from zooid.core.text import quoted

_GPU_CLASS = "GPU instance"
_OTHER_ACCELERATOR_CLASSES = ("FPGA Instances", "Machine Learning ASIC Instances", "Media Accelerator Instances")
"""What the list calls machines whose accelerators are not GPUs. It gives a number of GPUs for some of them."""
_OTHER_ACCELERATORS = ("inf", "trn", "dl", "vt", "f1", "f2", "g4ad")
"""Beginnings of the families with Inferentia, Trainium, Gaudi or Qualcomm, video encoders, FPGAs, and AMD's GPUs."""
_PARTS_OF_GPUS = ("g6f", "gr6f")
"""Families whose machines have a part of a GPU, which AWS counts as one or as none in some of its listings."""
_NAMED_AFTER_GPUS = re.compile(r"(?:g|gr|p)[0-9]")
"""AWS names the families of machines with GPUs so. The list leaves the number of GPUs empty for some of them."""
_WHOLE = re.compile(r"[1-9][0-9]{0,2}")
_PART = re.compile(r"[0-9]{0,3}\.[0-9]{1,6}")
_NOT_GIVEN = ("", "NA", "0")


class AwsGpu(Record, frozen=True, kw_only=True):
    """The model of the GPUs of a family of machines."""

    family: str
    """The part of an instance type before the dot, such as `p3dn`."""
    gpu: str
    source: str
    date: str


@cache
def aws_gpus() -> dict[str, AwsGpu]:
    """All families whose GPUs are known, by name."""
    return {row.family: row for row in read_table("aws_gpus.csv", AwsGpu, ("family",))}


@lru_cache(maxsize=4096)
def gpus_of_machine(instance_type: str, machine_class: str, gpu_cell: str) -> tuple[str, int, int]:
    """Return the model, the number and the memory in bytes of a machine's GPUs; `("", 0, 0)` if it has none.

    `machine_class` is what the list calls its instance family, such as "GPU instance". `gpu_cell` is its number of
    GPUs. Unusable is raised if the machine has accelerators that are unknown, that are not NVIDIA's, or that it shares.

    >>> gpus_of_machine("p3dn.24xlarge", "GPU instance", "8")
    ('V100-32GB', 8, 32000000000)
    >>> gpus_of_machine("m5.large", "General purpose", "")
    ('', 0, 0)
    """
    family = instance_type.partition(".")[0]
    if machine_class in _OTHER_ACCELERATOR_CLASSES or family.startswith(_OTHER_ACCELERATORS):
        raise Unusable("members compute on NVIDIA's GPUs and on processors only", quoted(instance_type))
    if family in _PARTS_OF_GPUS or _PART.fullmatch(gpu_cell):
        raise Unusable("it has a part of an accelerator", quoted(instance_type))
    is_counted = gpu_cell not in _NOT_GIVEN
    if is_counted and not _WHOLE.fullmatch(gpu_cell):
        raise Unusable("its number of GPUs is no whole number", quoted(gpu_cell))
    known = aws_gpus().get(family)
    if known is None:
        if is_counted or machine_class == _GPU_CLASS or _NAMED_AFTER_GPUS.match(family):
            raise Unusable("the model of its GPUs is not known", quoted(instance_type))
        return "", 0, 0
    if not is_counted:
        raise Unusable("its number of GPUs is not given", quoted(instance_type))
    return known.gpu, int(gpu_cell), gpu_memory_bytes(known.gpu)
