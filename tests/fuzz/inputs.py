"""Hostile inputs, made from valid samples by a seeded generator: the same seed gives the same inputs."""

import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LONGEST_RANDOM = 300
_LONGEST_INPUT = 2**21
_HEADER_BYTES = 64
_NUMBERS = (0, 1, -1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**18, 10**30, 10**400)
_TOKENS = (
    b"null", b"true", b'""', b"[]", b"{}", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0.0", b"1e308", b"1e-320",
    b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\\ud800", b"\\u0000", b"\\u001b[2J", b"\x00", b"\xff\xfe", b"\r\n",
    b"../../../etc/passwd", b"a/../../b.tar", b"s3://me:secret@bucket/x", b"[bold", b"[/]", b"{0}", b"%s%n",
    b"\xc2\xb2",
)  # fmt: skip
_HOSTILE: tuple[Any, ...] = (
    None, True, 0, 1, -1, 10**18, -(10**18), 10**400, 0.5, -0.5, 1e308, 5e-324, "", "nan", "inf", "-inf", "\x1b[2J",
    "[/bold]", "a/../../b.tar", "\u202e", "x" * 5000, [], {}, [[]], [0], {"a": 0},
)  # fmt: skip
_DIGITS = re.compile(rb"-?[0-9]+")


class Inputs:
    """An endless stream of inputs for one decoder: whole samples, and what random changes make of them."""

    def __init__(self, samples: Sequence[bytes], seed: int | str) -> None:
        self._samples = samples
        self._random = random.Random(str(seed))
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._noise,
            self._truncated,
            self._flipped,
            self._with_length,
            self._with_number,
            self._with_token,
            self._spliced,
            self._repeated,
            self._restructured,
            self._restructured,  # twice: only what is still JSON reaches the checks of values
        )

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self._random.choice(self._samples)
            for _ in range(self._random.choice((1, 1, 1, 2, 4))):
                data = self._random.choice(self._ways)(data)
            yield data[:_LONGEST_INPUT]

    def _noise(self, data: bytes) -> bytes:
        return self._random.randbytes(self._random.randrange(_LONGEST_RANDOM))

    def _truncated(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] if self._random.random() < 0.8 else data[at:]

    def _flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.randint(1, 8)):
            if changed:
                changed[min(self._place(data), len(changed) - 1)] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _with_length(self, data: bytes) -> bytes:
        """A number in binary, of any width and order, where there was something else."""
        form = self._random.choice(("<B", "<H", "<I", "<Q", ">H", ">I", ">Q"))
        width = struct.calcsize(form)
        number = self._random.choice(_NUMBERS) % 256**width
        at = self._place(data)
        return data[:at] + struct.pack(form, number) + data[at + width :]

    def _with_number(self, data: bytes) -> bytes:
        """Another number in digits, in the place of one that is there."""
        found = list(_DIGITS.finditer(data[:_LONGEST_INPUT]))
        if not found:
            return self._with_token(data)
        chosen = self._random.choice(found)
        number = str(self._random.choice(_NUMBERS)).encode()
        return data[: chosen.start()] + number + data[chosen.end() :]

    def _with_token(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + self._random.choice(_TOKENS) + data[at + self._random.choice((0, 0, 1, 5)) :]

    def _spliced(self, data: bytes) -> bytes:
        other = self._random.choice(self._samples)
        return data[: self._place(data)] + other[self._place(other) :]

    def _repeated(self, data: bytes) -> bytes:
        at = self._place(data)
        part = data[at : at + self._random.choice((1, 8, 64, 512))]
        return data[:at] + part * self._random.choice((2, 3, 100)) + data[at:]

    def _restructured(self, data: bytes) -> bytes:
        """A value of the JSON replaced, removed or doubled; lines are changed one at a time."""
        lines = data.splitlines() if data.count(b"\n}\n{") else [data]
        chosen = self._random.randrange(len(lines)) if lines else 0
        try:
            tree = json.loads(lines[chosen])
            lines[chosen] = json.dumps(self._changed(tree)).encode()
        except (ValueError, IndexError, RecursionError):
            return self._flipped(data)
        return b"\n".join(lines)

    def _changed(self, tree: Any) -> Any:
        if not isinstance(tree, dict | list) or not tree or self._random.random() < 0.1:
            return self._random.choice(_HOSTILE)
        chosen: Any = self._random.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        chance = self._random.random()
        if chance < 0.1:
            del tree[chosen]
        elif chance < 0.2 and isinstance(tree, list):
            tree.insert(chosen, tree[chosen])
        elif chance < 0.2 and isinstance(tree, dict):
            tree[self._random.choice(("", "[/]", "a/b", "\x1b", "x" * 300))] = tree.pop(chosen)
        else:
            tree[chosen] = self._changed(tree[chosen])
        return tree

    def _place(self, data: bytes) -> int:
        if len(data) > 64 * _HEADER_BYTES and self._random.random() < 0.7:
            return self._random.randrange(_HEADER_BYTES)  # what a long input says about itself stands at its beginning
        return self._random.randrange(len(data) + 1)
