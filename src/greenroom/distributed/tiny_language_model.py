"""A language model that is small enough to be written by hand: it continues the alphabet, byte after byte.

The smoke test needs a model with a known answer, in an image that cannot train one. The file is GGUF 3 with the tensors
of the `llama` architecture and a vocabulary of bytes. Its one layer adds nothing; each byte's embedding is a vector of
ones and minus ones of its own, and the output layer answers each with the byte that follows it: "abc" goes on "def".
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

WIDTH = 64
"""Of the embeddings: wide enough that no two bytes' vectors are nearly the same."""
_FEED_FORWARD = 32
_CONTEXT = 512
_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_UNKNOWN, _BEGIN, _END = 0, 1, 2
_FIRST_BYTE = 3
_KINDS = {"normal": 1, "unknown": 2, "control": 3, "byte": 6}


def alphabet_model() -> bytes:
    """Return the model's file."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_KINDS["unknown"], _KINDS["control"], _KINDS["control"], *[_KINDS["byte"]] * 256]
    metadata = [
        _pair("general.architecture", _STRING, _text("llama")),
        _pair("general.name", _STRING, _text("alphabet")),
        _pair("llama.context_length", _UINT32, struct.pack("<I", _CONTEXT)),
        _pair("llama.embedding_length", _UINT32, struct.pack("<I", WIDTH)),
        _pair("llama.block_count", _UINT32, struct.pack("<I", 1)),
        _pair("llama.feed_forward_length", _UINT32, struct.pack("<I", _FEED_FORWARD)),
        _pair("llama.attention.head_count", _UINT32, struct.pack("<I", 2)),
        _pair("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _pair("tokenizer.ggml.model", _STRING, _text("llama")),
        _pair("tokenizer.ggml.tokens", _ARRAY, _list(_STRING, [_text(word) for word in vocabulary])),
        _pair("tokenizer.ggml.scores", _ARRAY, _list(_FLOAT32, [struct.pack("<f", 0.0)] * len(vocabulary))),
        _pair("tokenizer.ggml.token_type", _ARRAY, _list(_INT32, [struct.pack("<i", kind) for kind in kinds])),
        _pair("tokenizer.ggml.unknown_token_id", _UINT32, struct.pack("<I", _UNKNOWN)),
        _pair("tokenizer.ggml.bos_token_id", _UINT32, struct.pack("<I", _BEGIN)),
        _pair("tokenizer.ggml.eos_token_id", _UINT32, struct.pack("<I", _END)),
        _pair("tokenizer.ggml.add_space_prefix", _BOOL, b"\0"),
    ]
    return _file(metadata, _tensors(len(vocabulary)))


def _tensors(tokens: int) -> list[tuple[str, Sequence[int], array[float]]]:
    """Return the tensors: name, extents (innermost first), values."""
    codes = [_code(token) for token in range(tokens)]
    # A row of the output layer is the code of the token before: it answers that one's embedding the loudest.
    before = [
        codes[_FIRST_BYTE + (token - _FIRST_BYTE - 1) % 256] if token >= _FIRST_BYTE else [0.0] * WIDTH
        for token in range(tokens)
    ]
    square, feed = [0.0] * WIDTH * WIDTH, [0.0] * WIDTH * _FEED_FORWARD
    ones = [1.0] * WIDTH
    return [
        ("token_embd.weight", (WIDTH, tokens), _flat(codes)),
        ("blk.0.attn_norm.weight", (WIDTH,), array("f", ones)),
        *((f"blk.0.attn_{part}.weight", (WIDTH, WIDTH), array("f", square)) for part in ("q", "k", "v", "output")),
        ("blk.0.ffn_norm.weight", (WIDTH,), array("f", ones)),
        ("blk.0.ffn_gate.weight", (WIDTH, _FEED_FORWARD), array("f", feed)),
        ("blk.0.ffn_up.weight", (WIDTH, _FEED_FORWARD), array("f", feed)),
        ("blk.0.ffn_down.weight", (_FEED_FORWARD, WIDTH), array("f", feed)),
        ("output_norm.weight", (WIDTH,), array("f", ones)),
        ("output.weight", (WIDTH, tokens), _flat(before)),
    ]


def _code(token: int) -> list[float]:
    """Return a token's vector: ones and minus ones that look random and are always the same."""
    bits = hashlib.sha256(b"token %d" % token).digest()
    return [1.0 if bits[at // 8] >> at % 8 & 1 else -1.0 for at in range(WIDTH)]


def _flat(rows: Sequence[Sequence[float]]) -> array[float]:
    return array("f", [value for row in rows for value in row])


def _file(metadata: Sequence[bytes], tensors: Sequence[tuple[str, Sequence[int], array[float]]]) -> bytes:
    infos, data = b"", b""
    for name, extents, values in tensors:
        infos += (
            _text(name) + struct.pack("<I", len(extents)) + b"".join(struct.pack("<Q", extent) for extent in extents)
        )
        infos += struct.pack("<IQ", 0, len(data))
        raw = struct.pack(f"<{len(values)}f", *values)
        data += raw + b"\0" * (-len(raw) % _ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + infos
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)
