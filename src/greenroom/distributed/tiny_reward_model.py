"""An ONNX reward model that is small enough to be written by hand: the score is the number of tokens.

The smoke test needs a model with a known answer, in an image that cannot build one. The bytes are those of a
`ModelProto` (onnx.proto, IR version 7, operator set 11) in protobuf's wire format.
"""

from __future__ import annotations

FLOAT = 1
INTS = 7


def _field(number: int, value: int | str | bytes) -> bytes:
    """Return a field on the wire: a varint for a number, else bytes with their length before them."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _matrix(name: str, width: int) -> bytes:
    dimensions = _field(1, _field(2, "batch")) + _field(1, _field(1, width))
    return _field(1, name) + _field(2, _field(1, _field(1, FLOAT) + _field(2, dimensions)))


def token_count_model(width: int) -> bytes:
    """Return the model's file.

    Args:
        width: columns of its input, at least 1; every token counts in one of them, so the score does not depend on it.
    """
    axes = _field(1, "axes") + _field(8, 1) + _field(20, INTS)
    total = _field(1, "counts") + _field(2, "score") + _field(4, "ReduceSum") + _field(5, axes)
    graph = (
        _field(1, total)
        + _field(2, "token count")
        + _field(11, _matrix("counts", width))
        + _field(12, _matrix("score", 1))
    )
    return _field(1, 7) + _field(7, graph) + _field(8, _field(2, 11))
