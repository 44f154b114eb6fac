"""How many bytes a codec puts on the wire, exactly, so that time and cost can be predicted."""

from typing import Literal, get_args

from zooid.core.errors import InputError

CodecName = Literal["none", "fp16", "bf16", "int8"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)

INT8_BLOCK = 256
"""Elements that share one scale."""
SCALE_BYTES = 4


def wire_bytes(codec: CodecName, num_elements: int, element_bytes: int = 4) -> int:
    """Bytes of one message; `none` sends elements as they are.

    >>> wire_bytes("none", 1000), wire_bytes("bf16", 1000), wire_bytes("int8", 1000)
    (4000, 2000, 1016)
    """
    match codec:
        case "none":
            return num_elements * element_bytes
        case "fp16" | "bf16":
            return num_elements * 2
        case "int8":
            return num_elements + -(-num_elements // INT8_BLOCK) * SCALE_BYTES
    raise InputError(f"{codec!r} is not a codec; there are {', '.join(CODECS)}")
