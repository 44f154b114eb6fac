"""Hostile bytes for all that reads from sockets: project errors only, no hang, no memory beyond what is allowed.

`python -m tests.fuzz.test_tcp_fuzz 10000 1` tries ten thousand inputs for each decoder, from seed 1.
"""

import json
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from tests.fuzz.tcp_decoders import TCP_DECODERS, Decode
from zooid.core.errors import ZooidError
from zooid.schedule.streams import EAGER_BYTES

SEED = 20261
NUM_INPUTS = 300
_SPARE_BYTES = 256 * 2**10
"""Room for what one stream has of its own, for messages and tracebacks."""
_MAX_BYTES = 2**21
_LIMIT_S = 2.0
_NUMBERS = (0, 1, 2**16 - 1, 2**20, 2**20 + 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_FORMS = ("<B", "<H", "<I", "<Q")

pytestmark = pytest.mark.timeout(60)


def hostile(samples: Sequence[bytes], seed: str) -> Iterator[bytes]:
    """An endless stream of inputs, always the same for one seed."""
    chance = random.Random(seed)
    while True:
        data = chance.choice(samples)
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = _changed(data, chance)
        yield data[:_MAX_BYTES]


def _changed(data: bytes, chance: random.Random) -> bytes:
    # Headers stand at the beginning, and that is where most changes belong.
    at = chance.randrange(min(len(data), 64) + 1) if chance.random() < 0.7 else chance.randrange(len(data) + 1)
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randrange(300))
        case 1:
            return data[:at]
        case 2:
            flipped = bytearray(data)
            if flipped:
                flipped[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
            return bytes(flipped)
        case 3:
            form = chance.choice(_FORMS)
            width = struct.calcsize(form)
            return data[:at] + struct.pack(form, chance.choice(_NUMBERS) % 256**width) + data[at + width :]
        case 4:
            return data + data[at:]
        case _:
            return data[:at] + chance.choice((b"[" * 9000, b"9" * 5000, b"null", b"\xff", b"1e999")) + data[at:]


def harm_of(decode: Decode, data: bytes) -> tuple[str, bool]:
    """What an input did that it must not do, and whether it was refused."""
    tracemalloc.reset_peak()
    before_bytes = tracemalloc.get_traced_memory()[0]
    began_s = time.process_time()
    refused = False
    try:
        decode(data)
    except ZooidError:
        refused = True
    except Exception as error:  # noqa: BLE001  # that no other one comes through is what is tried
        return f"raised {type(error).__name__}: {error}", refused
    took_s = time.process_time() - began_s
    took_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    if took_bytes > 2 * len(data) + EAGER_BYTES + _SPARE_BYTES:
        return f"took {took_bytes} bytes of memory", refused
    return (f"took {took_s:.1f} s" if took_s > _LIMIT_S else ""), refused


def try_inputs(
    name: str, decode: Decode, samples: Sequence[bytes], num_inputs: int, seed: int
) -> tuple[int, list[str]]:
    """How many inputs were refused, and what others did."""
    failures = []
    num_refused = 0
    tracemalloc.start()
    try:
        for sample in samples:
            decode(sample)
        for number, data in enumerate(islice(hostile(samples, f"{seed} {name}"), num_inputs)):
            harm, refused = harm_of(decode, data)
            num_refused += refused
            if harm:
                failures.append(f"{name}: input {number} of seed {seed} {harm}; it begins {data[:80]!r}")
    finally:
        tracemalloc.stop()
    return num_refused, failures


@pytest.mark.parametrize(("name", "decode", "samples"), TCP_DECODERS, ids=[name for name, *_ in TCP_DECODERS])
def test_hostile_inputs_do_no_harm(name: str, decode: Decode, samples: list[bytes]) -> None:
    num_refused, failures = try_inputs(name, decode, samples, NUM_INPUTS, SEED)
    print(f"seed {SEED}: {num_refused} of {NUM_INPUTS} inputs were refused")
    assert not failures
    assert num_refused > NUM_INPUTS // 10


def test_what_does_harm_is_noticed() -> None:
    tracemalloc.start()
    try:
        assert "raised KeyError" in harm_of({b"y": 0}.__getitem__, b"x")[0]
        assert "bytes of memory" in harm_of(lambda data: bytearray(10**7), b"x")[0]
    finally:
        tracemalloc.stop()


def main(num_inputs: int, seed: int) -> int:
    print(f"seed {seed}, {num_inputs} inputs for each decoder", flush=True)
    all_failures = []
    for name, decode, samples in TCP_DECODERS:
        num_refused, failures = try_inputs(name, decode, samples, num_inputs, seed)
        print(f"{name:20}{num_refused:8} refused{len(failures):6} did harm", flush=True)
        all_failures += failures
    print("\n".join(all_failures[:20]))
    print(json.dumps({"seed": seed, "inputs": num_inputs * len(TCP_DECODERS), "harm": len(all_failures)}))
    return 1 if all_failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
