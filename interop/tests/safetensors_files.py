#!/usr/bin/env python3
"""Writes files with Python's safetensors and numpy, and checks the files that stridemap wrote from the same tensors.

    python3 safetensors_files.py write DIR    writes DIR/python.safetensors, and a model of several files
    python3 safetensors_files.py check DIR    compares DIR/rust.safetensors and DIR/rust.safetensors.index.json
"""
import json
import os
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
          "float64", "complex64"]
METADATA = {"format": "np"}
MAX_SHARD_BYTES = 150


def tensors():
    arrays = {}
    for dtype in map(np.dtype, DTYPES):
        mask = 1 if dtype == bool else 255
        bytes_ = bytes(i * 37 & mask for i in range(12 * dtype.itemsize))
        arrays[f"{dtype.name} \u03bb"] = np.frombuffer(bytes_, dtype).reshape(3, 4)
    arrays["scalar"] = np.array(-0.0)
    arrays["none"] = np.zeros((2, 0, 3), np.int16)
    return arrays


def write(directory):
    arrays = tensors()
    save_file(arrays, os.path.join(directory, "python.safetensors"), METADATA)
    names = sorted(arrays)
    weight_map = {}
    for number, part in enumerate([names[::2], names[1::2]], 1):
        file = f"python-{number:05}-of-00002.safetensors"
        save_file({name: arrays[name] for name in part}, os.path.join(directory, file), METADATA)
        weight_map.update({name: file for name in part})
    index = {"metadata": {"total_size": sum(array.nbytes for array in arrays.values())}, "weight_map": weight_map}
    # As transformers writes it, including escapes.
    with open(os.path.join(directory, "python.safetensors.index.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(index, indent=2, sort_keys=True) + "\n")


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def check(directory):
    arrays = tensors()
    with safe_open(os.path.join(directory, "rust.safetensors"), framework="np") as file:
        assert file.metadata() == METADATA, file.metadata()
        assert set(file.keys()) == arrays.keys()
        for name, array in arrays.items():
            assert same(file.get_tensor(name), array), name
    with open(os.path.join(directory, "rust.safetensors.index.json"), encoding="utf-8") as file:
        text = file.read()
    index = json.loads(text)
    # Identical text, except for escapes.
    assert text == json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n", text
    assert index["metadata"] == {"total_size": sum(array.nbytes for array in arrays.values())}
    parts = sorted(set(index["weight_map"].values()))
    assert parts == [f"rust-{n:05}-of-{len(parts):05}.safetensors" for n in range(1, len(parts) + 1)], parts
    assert len(parts) > 3
    seen = {}
    for part in parts:
        with safe_open(os.path.join(directory, part), framework="np") as file:
            assert file.metadata() == METADATA, file.metadata()
            found = {name: file.get_tensor(name) for name in file.keys()}
        assert all(index["weight_map"][name] == part for name in found)
        assert len(found) == 1 or sum(array.nbytes for array in found.values()) <= MAX_SHARD_BYTES
        seen.update(found)
    assert seen.keys() == arrays.keys() == index["weight_map"].keys()
    assert all(same(seen[name], array) for name, array in arrays.items())
    print(f"python read {len(arrays)} tensors, from one file and from {len(parts)}")


{"write": write, "check": check}[sys.argv[1]](sys.argv[2])
