"""Codecs put exactly the bytes on the wire that are predicted, and lose no more than they may."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from zooid.comm.calls.wire_codecs import Residuals, decode, encode, is_coded
from zooid.core.errors import CommError, InputError
from zooid.core.plans.codec_sizes import CODECS, INT8_BLOCK, CodecName, wire_bytes

quick = settings(deadline=None, max_examples=60)
LOSSY: tuple[CodecName, ...] = ("fp16", "bf16", "int8")
counts = st.integers(1, 2000)
dtypes = st.sampled_from([torch.float32, torch.float64])


def values_of(num_elements: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers, of another size in every block."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_elements, generator=generator)
    scales = 10.0 ** torch.randint(-3, 4, (num_elements // INT8_BLOCK + 1,), generator=generator)
    return (values * scales.repeat_interleave(INT8_BLOCK)[:num_elements]).to(dtype)


@quick
@given(st.sampled_from(LOSSY), counts, dtypes)
def test_as_many_bytes_as_predicted(codec: CodecName, num_elements: int, dtype: torch.dtype) -> None:
    encoded = encode(codec, values_of(num_elements, 0, dtype))
    assert encoded.dtype is torch.uint8
    assert encoded.numel() == wire_bytes(codec, num_elements)


@pytest.mark.parametrize(
    ("codec", "num_elements", "element_bytes", "num_bytes"),
    [
        ("none", 1000, 4, 4000),
        ("none", 1000, 8, 8000),
        ("fp16", 1000, 8, 2000),
        ("bf16", 1000, 4, 2000),
        ("int8", INT8_BLOCK, 4, INT8_BLOCK + 4),
        ("int8", INT8_BLOCK + 1, 4, INT8_BLOCK + 1 + 8),
        ("int8", 0, 4, 0),
    ],
)
def test_sizes_are_exact(codec: CodecName, num_elements: int, element_bytes: int, num_bytes: int) -> None:
    assert wire_bytes(codec, num_elements, element_bytes) == num_bytes


def test_a_codec_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match=f"'zip' is not a codec; give one of {', '.join(CODECS)}"):
        wire_bytes("zip", 10)  # type: ignore[arg-type]


@quick
@given(st.sampled_from(["fp16", "bf16"]), counts, st.integers(0, 100), dtypes)
def test_halves_round_to_the_nearest(codec: CodecName, num_elements: int, seed: int, dtype: torch.dtype) -> None:
    values = values_of(num_elements, seed, dtype)
    decoded = decode(codec, encode(codec, values), num_elements, dtype)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[codec]
    assert decoded.dtype is dtype
    assert torch.equal(decoded, values.to(half).to(dtype))


@quick
@given(counts, st.integers(0, 100), dtypes)
def test_eight_bits_lose_half_a_step_of_their_own_block(num_elements: int, seed: int, dtype: torch.dtype) -> None:
    values = values_of(num_elements, seed, dtype)
    decoded = decode("int8", encode("int8", values), num_elements, dtype)
    for start in range(0, num_elements, INT8_BLOCK):
        block = slice(start, start + INT8_BLOCK)
        step = values[block].abs().max() / 127
        assert ((decoded - values)[block].abs() <= step * 0.5001).all()


def test_zeros_stay_zeros() -> None:
    for codec in LOSSY:
        assert torch.equal(decode(codec, encode(codec, torch.zeros(600)), 600, torch.float32), torch.zeros(600))


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_noticed_after_decoding(codec: CodecName, bad: float) -> None:
    values = torch.ones(600)
    values[300] = bad
    decoded = decode(codec, encode(codec, values), 600, torch.float32)
    assert not decoded[300].isfinite()
    assert torch.equal(decoded[:INT8_BLOCK], torch.ones(INT8_BLOCK)), "other blocks are as they were"


@pytest.mark.parametrize("codec", LOSSY)
def test_a_message_of_another_size_is_refused(codec: CodecName) -> None:
    encoded = encode(codec, torch.ones(600))
    with pytest.raises(CommError, match=f"{encoded.numel() - 1} bytes arrived for 600 elements in {codec}"):
        decode(codec, encoded[:-1], 600, torch.float32)


@pytest.mark.parametrize(
    ("codec", "dtype", "num_elements", "operation", "is_so"),
    [
        ("bf16", torch.float32, 1024, ReduceOp.SUM, True),
        ("int8", torch.float64, 1024, ReduceOp.AVG, True),
        ("none", torch.float32, 1024, ReduceOp.SUM, False),
        ("bf16", torch.float32, 1023, ReduceOp.SUM, False),
        ("bf16", torch.float32, 1024, ReduceOp.MAX, False),
        ("bf16", torch.bfloat16, 1024, ReduceOp.SUM, False),
        ("int8", torch.int64, 1024, ReduceOp.SUM, False),
    ],
)
def test_sums_of_many_floats_are_encoded_and_nothing_else(
    codec: CodecName, dtype: torch.dtype, num_elements: int, operation: object, is_so: bool
) -> None:
    assert is_coded(codec, torch.zeros(num_elements, dtype=dtype), operation) is is_so


def test_what_is_lost_is_kept_with_the_tensors_memory_and_goes_with_it() -> None:
    residuals = Residuals()
    tensor = torch.ones(2000)
    kept = residuals.of(tensor, tensor, "int8")
    assert kept is not None
    kept.fill_(3.0)
    assert residuals.of(tensor.view(2, 1000), tensor, "int8") is kept, "the same memory"
    parts = [residuals.of(part, part, "int8") for part in tensor.split(1000)]  # type: ignore[no-untyped-call]
    assert parts[0] is not parts[1], "parts of one memory are kept apart"
    assert residuals.of(tensor, tensor, "bf16") is None
    del tensor
    other = torch.ones(2000)
    fresh = residuals.of(other, other, "int8")
    assert fresh is not None
    assert torch.equal(fresh, torch.zeros(2000)), "what another tensor lost is not added to this one"
    assert len(residuals._kept) == 1
