"""Traces as records, from which a member builds stages without the model's code and without a compiler."""

from zooid.layers.record.decoder import decode_constants, decode_trace, rebuild
from zooid.layers.record.encoder import EncodedTrace, encode_trace
from zooid.layers.record.nests import UnknownClass

__all__ = ["EncodedTrace", "UnknownClass", "decode_constants", "decode_trace", "encode_trace", "rebuild"]
