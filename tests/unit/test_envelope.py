"""A message in an object is taken whole, unaltered and under its own name, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.comm.store.envelope import seal, unseal
from zooid.core.errors import DamagedMessage
from zooid.core.runs.store_rules import TRAILER_BYTES

NAME = "group/calls/00000007/000001"
contents = st.binary(max_size=300)
watermarks = st.integers(-1, 2**40)
times = st.floats(allow_nan=False)


@given(contents, watermarks, times)
def test_what_was_sealed_is_opened(data: bytes, watermark: int, sealed_s: float) -> None:
    sealed = seal(NAME, memoryview(data), watermark, sealed_s)
    assert sealed.nbytes == len(data) + TRAILER_BYTES
    opened = unseal(NAME, sealed)
    assert (bytes(opened.data), opened.watermark, opened.sealed_s) == (data, watermark, sealed_s)


@given(contents, watermarks, st.data())
def test_any_byte_that_changed_is_noticed(data: bytes, watermark: int, draw: st.DataObject) -> None:
    """Of the message, and of what its sender says besides."""
    altered = bytearray(seal(NAME, memoryview(data), watermark, 1.5))
    at = draw.draw(st.integers(0, len(altered) - 1))
    altered[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(DamagedMessage, match=NAME):
        unseal(NAME, memoryview(altered))


@given(contents, st.data())
def test_any_truncation_is_noticed(data: bytes, draw: st.DataObject) -> None:
    sealed = seal(NAME, memoryview(data), 0, 1.5)
    length = draw.draw(st.integers(0, sealed.nbytes - 1))
    with pytest.raises(DamagedMessage, match=f"{NAME} is truncated"):
        unseal(NAME, sealed[:length])


@given(contents, st.binary(min_size=1, max_size=50))
def test_bytes_that_were_added_are_noticed(data: bytes, more: bytes) -> None:
    sealed = bytes(seal(NAME, memoryview(data), 0, 1.5))
    for longer in (sealed + more, more + sealed):
        with pytest.raises(DamagedMessage):
            unseal(NAME, memoryview(longer))


@given(contents)
def test_a_message_of_another_name_is_noticed(data: bytes) -> None:
    """As where an earlier run or another group had written to this key."""
    sealed = seal("group/calls/00000006/000001", memoryview(data), 0, 1.5)
    with pytest.raises(DamagedMessage, match="was altered"):
        unseal(NAME, sealed)


def test_the_sealed_bytes_are_a_copy() -> None:
    data = bytearray(b"before")
    sealed = seal(NAME, memoryview(data), 0, 1.5)
    data[:] = b"after!"
    assert bytes(unseal(NAME, sealed).data) == b"before"
