"""The header reader against files that the `gguf` package wrote, and against damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelError
from model.weights.gguf_header import read_gguf_header
from tests.support.examples import examples

METADATA = {
    "general.name": "héllo 🌍",
    "t.u8": ("add_uint8", 255),
    "t.i8": ("add_int8", -128),
    "t.u16": ("add_uint16", 65535),
    "t.i16": ("add_int16", -32768),
    "t.u32": ("add_uint32", 2**32 - 1),
    "t.i32": ("add_int32", -(2**31)),
    "t.u64": ("add_uint64", 2**64 - 1),
    "t.i64": ("add_int64", -(2**63)),
    "t.f32": ("add_float32", 0.5),
    "t.f64": ("add_float64", 0.1),
    "t.bool": ("add_bool", True),
    "t.strings": ("add_array", ["", "Ġa", "\u0120🌍"]),
    "t.ints": ("add_array", [1, -2, 3]),
    "t.floats": ("add_array", [1.5, -2.5]),
}


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, arch="llama")
    for key, value in METADATA.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            getattr(writer, value[0])(key, value[1])
    writer.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensor_table_come_back_as_written(small_file: Path) -> None:
    header = read_gguf_header(small_file)
    expected: dict[str, Any] = {key: v if isinstance(v, str) else v[1] for key, v in METADATA.items()}
    assert header.metadata == {"general.architecture": "llama", **expected}
    reader = gguf.GGUFReader(small_file)
    assert [(t.name, t.shape, t.type.name, t.offset, t.nbytes) for t in header.tensors.values()] == [
        (t.name, tuple(reversed(t.shape.tolist())), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]


def test_the_embedded_file_equals_what_the_packages_reader_finds(embedded_source: Any) -> None:
    header = read_gguf_header(embedded_source.path)
    assert len(header.tensors) == 272
    assert sum(np.prod(tensor.shape) for tensor in header.tensors.values()) == 134_515_008
    assert header.metadata["tokenizer.ggml.tokens"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    last = list(header.tensors.values())[-1]
    assert last.offset + last.nbytes == embedded_source.path.stat().st_size


def test_every_cut_of_the_file_is_refused_in_one_line(small_file: Path, tmp_path: Path) -> None:
    whole = small_file.read_bytes()
    padding = 64  # the last tensor is padded to the alignment; cuts within the padding lose nothing
    for length in [*range(0, len(whole) - padding, 7), 4, 8, 24]:
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf: ") as error:
            read_gguf_header(cut)
        assert "\n" not in str(error.value)


@examples(100)
@given(data=st.data())
def test_damaged_bytes_raise_nothing_but_model_error(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("damaged") / "f.gguf"
    body = bytearray(MINIMAL)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(4, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    path.write_bytes(body)
    try:
        header = read_gguf_header(path)
    except ModelError:
        return
    assert all(t.offset + t.nbytes <= len(body) for t in header.tensors.values())


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _minimal(version: int = 3, tensor_type: int = 0, dimensions: tuple[int, ...] = (8,)) -> bytes:
    entry = _string("general.architecture") + struct.pack("<I", 8) + _string("llama")
    array = _string("numbers") + struct.pack("<IIQ", 9, 4, 3) + struct.pack("<III", 1, 2, 3)
    tensor = _string("x") + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    tensor += struct.pack("<IQ", tensor_type, 0)
    head = b"GGUF" + struct.pack("<IQQ", version, 1, 2) + entry + array + tensor
    return head + bytes(-len(head) % 32) + bytes(32)


MINIMAL = _minimal()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 some zip", "not a GGUF file"),
        (_minimal(version=1), "version 1 is not supported"),
        (_minimal(tensor_type=16), "ggml type 16, which is not supported"),
        (_minimal(dimensions=(1, 1, 1, 1, 8)), "5 dimensions"),
        (_minimal(dimensions=(9,)), "truncated: tensor x ends at byte"),
        (_minimal(tensor_type=2, dimensions=(24,)), "rows of 24 weights"),
    ],
)
def test_what_is_wrong_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf_header(path)


def test_a_missing_file_and_a_rewritten_one(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    with pytest.raises(ModelError, match="No such file"):
        read_gguf_header(path)
    path.write_bytes(MINIMAL)
    assert read_gguf_header(path).tensors["x"].shape == (8,)
    path.write_bytes(_minimal(dimensions=(2, 4)) + b"more")
    assert read_gguf_header(path).tensors["x"].shape == (4, 2)
