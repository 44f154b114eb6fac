"""The exact number of bytes that each codec sends, from which time and cost are predicted."""

from typing import Literal, get_args

from zooid.core.errors import InputError

CodecName = Literal["none", "fp16", "bf16", "int8"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)

INT8_BLOCK = 256
"""Number of elements that have one scale in common."""
SCALE_BYTES = 4


def wire_bytes(codec: CodecName, num_elements: int, element_bytes: int = 4) -> int:
    """Return the bytes of one message; the codec `none` sends elements unchanged.

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
    raise InputError(f"{codec!r} is not a codec; give one of {', '.join(CODECS)}")
