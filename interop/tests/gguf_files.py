"""Writes and checks files with the `gguf` package, which llama.cpp is developed with.

    python3 gguf_files.py write DIR           write the files of interop/tests/data/gguf
    python3 gguf_files.py check FILE OTHER    check that the package reads the same from both files
"""

import os
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

PLAIN = {
    "F32": np.float32,
    "F16": np.float16,
    "F64": np.float64,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
}

#: The types that candle reads, too.
COMMON = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"]


def counted(count):
    return (np.arange(count) * 37 % 251).astype(np.uint8)


def add_tensors(writer, types):
    """Add a tensor of each type with sizes that differ, so that reversed ones are found out."""
    for name in types:
        kind = GGMLQuantizationType[name]
        block_elems, block_bytes = GGML_QUANT_SIZES[kind]
        if name in PLAIN:
            numbers = np.arange(24).reshape(2, 3, 4) - 5
            writer.add_tensor(f"plain.{name}", (numbers * 1.5 if name[0] == "F" else numbers).astype(PLAIN[name]))
        else:
            rows = counted(3 * 2 * block_bytes).reshape(3, 2 * block_bytes)
            writer.add_tensor(f"blocks.{name}", rows, raw_dtype=kind)


def add_metadata(writer):
    for kind, value in [
        ("uint8", 200), ("int8", -3), ("uint16", 65535), ("int16", -300), ("uint32", 4_000_000_000), ("int32", -70_000),
        ("uint64", 2**64 - 1), ("int64", -(2**63)), ("float32", 1e-5), ("float64", 0.1), ("bool", True),
    ]:  # fmt: skip
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
        of = GGUFValueType[kind.upper()]
        writer.add_key_value(f"test.list.{kind}", [value, value], GGUFValueType.ARRAY, sub_type=of)
    writer.add_float32("test.infinite", float("-inf"))
    writer.add_float64("test.nan", float("nan"))
    writer.add_int32("test.small", 5)
    writer.add_string("test.text", "λ\n\"quoted\"")
    writer.add_string("test.like_json", "json:[1, 2]")
    writer.add_array("test.texts", ["a", "", "json:5", "ü"])


def write(path, types, *, alignment=None, vocabulary=0, metadata=True):
    writer = GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if metadata:
        add_metadata(writer)
    if vocabulary:
        writer.add_array("tokenizer.ggml.tokens", [f"token {i} ▁" for i in range(vocabulary)])
        writer.add_array("tokenizer.ggml.scores", [i / 3 for i in range(vocabulary)])
        of = GGUFValueType.INT32
        writer.add_key_value("tokenizer.ggml.token_type", [i % 7 for i in range(vocabulary)], GGUFValueType.ARRAY, sub_type=of)
    add_tensors(writer, types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(folder):
    every = [kind.name for kind in GGMLQuantizationType]
    write(os.path.join(folder, "all.gguf"), every)
    write(os.path.join(folder, "common.gguf"), COMMON)
    write(os.path.join(folder, "aligned.gguf"), ["I8", "F64", "Q4_K"], alignment=128, metadata=False)
    write(os.path.join(folder, "close.gguf"), ["I8", "F32", "Q6_K", "F64"], alignment=1, metadata=False)
    write(os.path.join(folder, "vocabulary.gguf"), ["F16"], vocabulary=1030, metadata=False)
    write(os.path.join(folder, "empty.gguf"), [], metadata=False)


def contents(path):
    reader = GGUFReader(path)
    fields = {
        name: ([kind.name for kind in field.types], b"".join(part.tobytes() for part in field.parts[3:]))
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (tensor.tensor_type.name, tensor.data.shape, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in reader.tensors
    }
    return fields, tensors


def check(path, other):
    for ours, theirs in zip(contents(path), contents(other), strict=True):
        assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
        for name in ours:
            assert ours[name] == theirs[name], (name, ours[name], theirs[name])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write_all(folder)
        case ["check", path, other]:
            check(path, other)
        case _:
            sys.exit(__doc__)
