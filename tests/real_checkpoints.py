#!/usr/bin/env python3
"""Compares real PyTorch checkpoints through the command line bit for bit with what Python reads.

    python3 real_checkpoints.py STRIDEMAP FILE...      (needs numpy; compares with torch too if installed)

The checkpoints are read here by Python's own pickle, with the few names for tensors mapped to numpy views.
"""
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict

import numpy as np

COMMAND = os.path.abspath(sys.argv[1])
DTYPES = {"FloatStorage": np.float32, "DoubleStorage": np.float64, "HalfStorage": np.float16, "LongStorage": np.int64,
          "IntStorage": np.int32, "ShortStorage": np.int16, "CharStorage": np.int8, "ByteStorage": np.uint8, "BoolStorage": np.bool_}


class Storage:
    """A flat array, which is filled after the pickle has been read."""

    def __init__(self, dtype, key, numel):
        self.dtype, self.key, self.numel, self.array = np.dtype(dtype), key, numel, None


class View:
    def __init__(self, storage, offset, size, stride):
        self.storage, self.offset, self.size, self.stride = storage, offset, list(size), list(stride)

    def array(self):
        steps = [step * self.storage.dtype.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(self.storage.array[self.offset:], self.size, steps)


class Unpickler(pickle.Unpickler):
    storages = None

    def find_class(self, module, name):
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        known = {"OrderedDict": OrderedDict, "_rebuild_tensor": View,
                 "_rebuild_tensor_v2": lambda *args: View(*args[:4]),
                 "_rebuild_parameter": lambda view, *_: view}
        return known[name]

    def persistent_load(self, saved):
        _, dtype, key, _, numel, *_ = saved
        return self.storages.setdefault(key, Storage(dtype, key, numel))


def unpickled(file):
    unpickler = Unpickler(file, encoding="utf-8")
    unpickler.storages = {}
    return unpickler.load(), unpickler.storages


def read_checkpoint(path):
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickled) as file:
                saved, storages = unpickled(file)
            for storage in storages.values():
                data = archive.read(f"{os.path.dirname(pickled)}/data/{storage.key}")
                storage.array = np.frombuffer(data, storage.dtype, storage.numel)
        return saved
    with open(path, "rb") as file:
        for _ in range(3):
            unpickled(file)
        saved, storages = unpickled(file)
        keys, _ = unpickled(file)
        for key in keys:
            storage = storages[key]
            (numel,) = struct.unpack("<q", file.read(8))
            assert numel == storage.numel
            storage.array = np.frombuffer(file.read(numel * storage.dtype.itemsize), storage.dtype)
        assert not file.read()
    return saved


def tensors(saved, name=""):
    if isinstance(saved, View):
        yield name, saved
    elif isinstance(saved, (dict, list, tuple)):
        for key, value in saved.items() if isinstance(saved, dict) else enumerate(saved):
            yield from tensors(value, f"{name}.{key}" if name else str(key))


def stridemap(*args):
    return subprocess.run([COMMAND, *args], check=True, stdout=subprocess.PIPE).stdout


def check(path, *, in_place):
    expected = dict(tensors(read_checkpoint(path)))
    stridemap("import", *(["--in-place", "--external", "anywhere"] if in_place else []), path, "checkpoint.smap")
    inspected = json.loads(stridemap("info", "--all", "checkpoint.smap", "--json"))
    headers = {header["name"]: header for header in inspected["tensors"]}
    assert headers.keys() == expected.keys(), headers.keys() ^ expected.keys()
    shared = {}
    for name, view in expected.items():
        header = headers[name]
        found = (header["dtype"], header["size"], header["stride"])
        assert found == (str(view.storage.dtype), view.size, view.stride), (name, found)
        # Small storages of the checkpoint share one in the store, each at a multiple of 64 bytes.
        begin = (header["storage_offset"] - view.offset) * view.storage.dtype.itemsize
        assert begin % 64 == 0 and not (in_place and begin), (name, begin)
        assert shared.setdefault(view.storage.key, (header["storage"], begin)) == (header["storage"], begin), name
    assert len(set(shared.values())) == len(shared)
    assert {storage for storage, _ in shared.values()} == {storage["id"] for storage in inspected["storages"]}
    stridemap("export", "--external", "anywhere", "checkpoint.smap", "checkpoint.npz")
    with np.load("checkpoint.npz", allow_pickle=False) as exported:
        assert set(exported.files) == expected.keys()
        for name, view in expected.items():
            array = view.array()
            assert (exported[name].dtype, exported[name].shape) == (array.dtype, array.shape), name
            assert exported[name].tobytes() == array.tobytes(), name
    print(f"{path}: {len(expected)} tensors on {len(shared)} storages{', in place' if in_place else ''}")


def check_torch(path):
    try:
        import torch
    except ImportError:
        return False
    expected = dict(tensors(read_checkpoint(path)))
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        assert torch.equal(tensor, torch.from_numpy(expected[name].array().copy())), name
    return True


def main():
    paths = [os.path.abspath(path) for path in sys.argv[2:]]
    assert paths, __doc__
    for path in paths:
        for in_place in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                check(path, in_place=in_place)
                os.chdir("/")
    if all([check_torch(path) for path in paths]):
        print("torch reads the same")
    else:
        print("skipped: torch is not there to be asked")


main()
