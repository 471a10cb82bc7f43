#!/usr/bin/env python3
"""Compares a real safetensors model through the command line bit for bit with Python's safetensors.

    python3 real_model.py STRIDEMAP MODEL      (needs numpy and safetensors)
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

COMMAND, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
# Two programs that map the store and read it as strided views: the command line, and format/reader.py.
READER = Path(__file__).resolve().parent.parent / "format/reader.py"


def stridemap(*args):
    return subprocess.run([COMMAND, *args], check=True, stdout=subprocess.PIPE).stdout


def stored_bytes(store):
    return sum(path.stat().st_size for path in Path(store, "storages").iterdir())


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def main():
    model = load_file(MODEL)
    stridemap("import", MODEL, "model.smap")
    inspected = json.loads(stridemap("info", "--all", "model.smap", "--json"))
    tensors = {tensor["name"]: tensor for tensor in inspected["tensors"]}
    assert tensors.keys() == model.keys()
    for name, array in model.items():
        header = tensors[name]
        strides = [stride // array.itemsize for stride in array.strides]
        assert (header["dtype"], header["size"]) == (str(array.dtype), list(array.shape)), header
        assert header["stride"] == strides and header["is_contiguous"], header
    print(f"{len(tensors)} tensors, {stored_bytes('model.smap')} bytes stored")

    weight = max((name for name, array in model.items() if array.ndim == 2), key=lambda name: model[name].size)
    before = stored_bytes("model.smap")
    views = {"transposed": ("{}.t()", model[weight].T), "stepped": ("{}[::3, 1::2]", model[weight][::3, 1::2]),
             "reversed": ("{}.flip(0)[-1]", model[weight][::-1][-1])}
    for name, (expression, _) in views.items():
        stridemap("view", "model.smap", expression.format(weight), name)
    assert stored_bytes("model.smap") == before, "a view moved data"
    print(f"views of {weight}: {before} bytes stored before and after")

    for name, (_, expected) in views.items():
        shown = json.loads(stridemap("show", "model.smap", name, "--json"))
        assert np.array_equal(np.array(shown["values"], expected.dtype).reshape(shown["size"]), expected), name
        read = subprocess.run([sys.executable, "-B", READER, "model.smap", name], check=True, stdout=subprocess.PIPE)
        assert json.loads(read.stdout)["values"] == shown["values"], name
    print("the views read the same from two other processes")

    stridemap("export", "model.smap", "out.safetensors")
    exported = load_file("out.safetensors")
    assert exported.keys() == model.keys() | views.keys()
    for name, array in model.items():
        assert same(exported[name], array), name
    for name, (_, expected) in views.items():
        assert same(exported[name], np.ascontiguousarray(expected)), name
    stridemap("export", "model.smap", "parts.safetensors", "--max-shard-size", "400KB")
    with open("parts.safetensors.index.json", encoding="utf-8") as file:
        weight_map = json.load(file)["weight_map"]
    loaded = {part: load_file(part) for part in set(weight_map.values())}
    assert weight_map.keys() == exported.keys() and len(loaded) > 2
    assert all(same(loaded[part][name], exported[name]) for name, part in weight_map.items())
    stridemap("import", "parts.safetensors.index.json", "parts.smap")
    stridemap("export", "parts.smap", "again.safetensors")
    again = load_file("again.safetensors")
    assert again.keys() == exported.keys() and all(same(again[name], exported[name]) for name in again)
    print(f"the same in {len(loaded)} parts, and from them")
    stridemap("export", "model.smap", "transposed.npy", "transposed")
    assert same(np.load("transposed.npy"), np.ascontiguousarray(model[weight].T))
    stridemap("verify", "model.smap")
    print(f"{len(exported)} exported tensors agree bit for bit")


with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    main()
