#!/usr/bin/env python3
"""Compares NumPy files of the command line bit for bit with what NumPy itself writes and reads.

    python3 numpy_files.py STRIDEMAP      (needs numpy and ml_dtypes)

Stores that the command line wrote are read by format/reader.py, which shares no code with it.
"""
import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np

COMMAND = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "format"))
from reader import Store  # noqa: E402

PLAIN = {"bool": "?", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "int8": "i1", "int16": "i2",
         "int32": "i4", "int64": "i8", "float16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8",
         "complex128": "c16"}
# Types of ml_dtypes that both sides have. Those in `TOLD` have a unique descriptor.
LACKING = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
TOLD = ["bfloat16", "float8_e5m2"]
SHAPES = [(), (1,), (7,), (0,), (2, 3), (3, 1, 4), (2, 0, 3), (2, 3, 4, 5), (1, 1, 1, 2) * 4 + (1,) * 48, (60, 70)]
rng = np.random.default_rng(7)


def stridemap(*args, fails=False, memory=None):
    """Runs a command that must succeed, or fail with a message. `memory` limits its address space, in bytes."""
    def limit():
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    ran = subprocess.run([COMMAND, *args], capture_output=True, text=True, preexec_fn=limit)
    assert (ran.returncode == 2) == fails and ran.returncode in (0, 2), (args, ran)
    return ran.stderr


def noise(dtype, shape):
    """Random bits: NaNs with payloads, subnormals, both zeros."""
    dtype = np.dtype(dtype)
    bits = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    if dtype == bool:
        bits &= 1
    return bits.view(dtype).reshape(shape)


def arrays(dtype):
    """Every shape, in both orders."""
    for shape in SHAPES:
        array = noise(dtype, shape)
        yield f"{len(shape)}d{array.size}C", array
        yield f"{len(shape)}d{array.size}F", np.asfortranarray(array)


def check(store, name, dtype, array):
    """Returns whether a store has this array under this name."""
    header, found = store.header(name), store.tensor(name)
    assert header.dtype == dtype, (name, header)
    assert found.shape == array.shape, (name, found.shape)
    assert found.tobytes() == array.tobytes(), name
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    assert not is_fortran or found.flags.f_contiguous, f"{name} was gathered"


def npy_in():
    """Every dtype, order, shape and version of the format."""
    cases, files = {}, []
    for dtype in [*PLAIN, *TOLD]:
        for what, array in arrays(PLAIN.get(dtype) or getattr(ml_dtypes, dtype)):
            for version in [(1, 0), (2, 0), (3, 0)]:
                name = f"{dtype} {what} v{version[0]}"
                with open(f"{name}.npy", "wb") as file:
                    np.lib.format.write_array(file, array, version)
                files.append(f"{name}.npy")
                cases[name] = dtype, array
    stridemap("import", *files, "npy.smap")
    store = Store("npy.smap")
    assert sorted(store.names()) == sorted(cases)
    for name, case in cases.items():
        check(store, name, *case)
    print(f"{len(cases)} npy files of NumPy: read")


def npz_in():
    """The same arrays, stored and deflated, with all kinds of names."""
    for save, path in [(np.savez, "s.npz"), (np.savez_compressed, "c.npz")]:
        cases = {f"{dtype}/../ü {what}": (dtype, array) for dtype in [*PLAIN, *TOLD]
                 for what, array in arrays(PLAIN.get(dtype) or getattr(ml_dtypes, dtype))}
        zeros = np.zeros((1 << 20, 2), "f8")  # compresses by 99.9 %
        cases |= {"/etc/passwd": ("float64", zeros), "a": ("uint8", np.frombuffer(b"\x93NUMPY", "u1"))}
        save(path, **{name: array for name, (_, array) in cases.items()})
        stridemap("import", path, f"{path}.smap")
        store = Store(f"{path}.smap")
        assert sorted(store.names()) == sorted(cases)
        for name, case in cases.items():
            check(store, name, *case)
        print(f"{path}: {len(cases)} arrays in {os.path.getsize(path)} bytes: read")


def big_endian():
    cases = {}
    for dtype, code in PLAIN.items():
        for what, array in arrays(code):
            # Integers with the same bits, because a conversion could change the bits of NaNs.
            swapped = array.view(array.dtype.newbyteorder(">"))
            cases[f"{dtype} {what}"] = dtype, swapped
    np.savez_compressed("big.npz", **{name: array for name, (_, array) in cases.items()})
    stridemap("import", "big.npz", "big.smap")
    store = Store("big.smap")
    for name, (dtype, array) in cases.items():
        unit = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
        little = np.frombuffer(array.tobytes(), np.uint8).reshape(-1, unit)[:, ::-1].tobytes()
        assert (store.header(name).dtype, store.tensor(name).tobytes()) == (dtype, little), name
    print(f"{len(cases)} big-endian arrays: read")


def untyped():
    for dtype in LACKING:
        array = noise(getattr(ml_dtypes, dtype), (3, 4))
        np.save("x.npy", array)
        if dtype not in TOLD:
            said = stridemap("import", "x.npy", "x.smap", fails=True)
            assert "'<V1'" in said.replace('"', "'") and "--untyped" in said, said
        stridemap("import", "x.npy", "x.smap", "--untyped", dtype, "--force")
        check(Store("x.smap"), "x", dtype, array)
        stridemap("rm", "x.smap", "x")
        # Arrays that NumPy has read and written again have lost more of their type.
        np.save("x.npy", array.view(f"V{array.itemsize}"))
        stridemap("import", "x.npy", "x.smap", fails=True)
        stridemap("import", "x.npy", "x.smap", "--untyped", dtype, "--force")
        check(Store("x.smap"), "x", dtype, array)
    print("types that NumPy has no names for: told, or refused until they are said")


def structured():
    """Each field is a view, and all fields of an array share one storage."""
    fields = [("f", "f4"), ("i", "i2", (3,)), ("u", "u1", (2, 3)), ("c", "c8")]
    kind = np.dtype([(f"{name}ü", *rest) for name, *rest in fields], align=True)
    records = {what: array for what, array in arrays(kind) if array.ndim < 60}
    cases = {f"{what}.{name}": array[name] for what, array in records.items() for name in kind.names}
    np.savez("r.npz", title=np.array("a tïtle"), kind=np.array(b"bytes"), **records)
    np.save("2d6C.npy", records["2d6C"])
    for path in ["r.npz", "2d6C.npy"]:
        said = stridemap("import", path, f"{path}.smap")
        store = Store(f"{path}.smap")
        names = [name for name in cases if path == "r.npz" or name.startswith("2d6C.")]
        assert sorted(store.names()) == sorted(names), (said, names)
        for name in names:
            found, array = store.tensor(name), cases[name]
            assert (found.shape, found.dtype) == (array.shape, array.dtype), name
            assert found.tobytes() == array.tobytes(), name
            moving = [axis for axis, size in enumerate(array.shape) if size > 1 and array.size]
            assert all(found.strides[axis] == array.strides[axis] for axis in moving), name
    # A field that is not aligned cannot be a view, and is copied.
    packed = np.array([(1, 2.5), (3, -4.0)], [("a", "u1"), ("b", "f4")])
    np.save("packed.npy", packed)
    np.savez_compressed("packed.npz", packed=packed)
    for path in ["packed.npy", "packed.npz"]:
        stridemap("import", path, f"{path}.smap")
        store = Store(f"{path}.smap")
        for name in packed.dtype.names:
            found, array = store.tensor(f"packed.{name}"), packed[name]
            assert (found.shape, found.dtype, found.tobytes()) == (array.shape, array.dtype, array.tobytes()), (path, name)
    print(f"{len(cases)} fields of structured arrays: read as views; packed ones: copied")


def refused():
    for array, what in [(np.array([{}, 1], object), "pickle"), (np.zeros(2, [("a", [("b", "f4")])]), "a structure"),
                        (np.array(["a"]), "strings"), (np.array([b"a"]), "strings"),
                        (np.zeros(2, "M8[s]"), "times"), (np.zeros(2, "m8[ns]"), "times"),
                        (np.zeros(2, "g"), "does not have"), (np.zeros(2, "G"), "does not have"),
                        (np.zeros(2, "V5"), "without a type"), (np.zeros(2, ml_dtypes.int4), "without a type")]:
        np.save("r.npy", array, allow_pickle=True)
        np.savez_compressed("r.npz", good=np.zeros(2), bad=array)
        for path in ["r.npy", "r.npz"]:
            said = stridemap("import", path, "r.smap", fails=True)
            assert what in said and said.count("\n") == 1 and not os.path.exists("r.smap"), said
    print("what no tensor can be: refused in one line")


def out():
    """Reads everything in a store by exporting it and loading the files in NumPy."""
    cases = {}
    for dtype in PLAIN:
        cases |= {f"{dtype}/ü {what}": array for what, array in arrays(PLAIN[dtype])}
    for dtype in LACKING:
        cases |= {f"{dtype}.{what}": array for what, array in arrays(getattr(ml_dtypes, dtype))}
    for dtype, names in [(None, [n for n in cases if "/" in n or n.split(".")[0] in TOLD]),
                         *((d, [n for n in cases if n.startswith(d + ".")]) for d in LACKING if d not in TOLD)]:
        np.savez("in.npz", **{name: cases[name] for name in names})
        stridemap("import", "in.npz", "out.smap", *(["--untyped", dtype] if dtype else []))
    base = np.arange(60, dtype="i4").reshape(3, 4, 5)
    np.save("base.npy", base)
    stridemap("import", "base.npy", "out.smap")
    views = {"base.permute(2, 0, 1)": base.transpose(2, 0, 1), "base[::2, ::-1]": base[::2, ::-1],
             "base[1].t()": base[1].T, "base[:, :0]": base[:, :0], "base[2, 1, 3]": base[2, 1, 3]}
    for expression in views:
        stridemap("view", "out.smap", expression, f"view {expression}")
    cases |= {"base": base} | {f"view {expression}": view for expression, view in views.items()}

    for flags in [(), ("--compress",), ("--order", "F"), ("--order", "F", "--compress")]:
        stridemap("export", "out.smap", "out.npz", "--force", *flags)
        with np.load("out.npz") as loaded:
            assert sorted(loaded.files) == sorted(cases)
            for name, array in cases.items():
                compare(loaded[name], array, flags)
        with zipfile.ZipFile("out.npz") as members, open("out.npz", "rb") as file:
            assert members.testzip() is None
            for member in members.infolist():
                assert (member.compress_type == zipfile.ZIP_DEFLATED) == ("--compress" in flags)
                file.seek(member.header_offset + 26)
                name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                assert (member.header_offset + 30 + name + extra) % 64 == 0 or "--compress" in flags, member
        stridemap("import", "out.npz", f"back{len(flags)}.smap", "--untyped", "float8_e4m3fn")
        print(f"out.npz {' '.join(flags)}: {len(cases)} arrays in {os.path.getsize('out.npz')} bytes")

    for name, array in cases.items():
        for flags in [(), ("--order", "F")]:
            stridemap("export", "out.smap", "one.npy", name, "--force", *flags)
            compare(np.load("one.npy"), array, flags)
            if array.dtype.kind != "V" and array.size:
                compare(np.load("one.npy", mmap_mode="r"), array, flags)
    print(f"{2 * len(cases)} npy files: read by NumPy")


def memory():
    """Imports and exports arrays of 192 MiB in processes limited to 128 MiB."""
    zeros = np.zeros((3, 1 << 23), "f8")
    zeros[1, 5] = 1.5
    np.savez_compressed("zeros.npz", zeros=zeros, swapped=zeros.astype(">f8"))
    limit = 128 << 20
    stridemap("import", "zeros.npz", "zeros.smap", memory=limit)
    store = Store("zeros.smap")
    assert store.tensor("zeros").tobytes() == zeros.tobytes() == store.tensor("swapped").tobytes()
    for flags in [(), ("--compress",), ("--order", "F"), ("--order", "F", "--compress")]:
        stridemap("export", "zeros.smap", "out.npz", "--force", *flags, memory=limit)
    with np.load("out.npz") as loaded:
        compare(loaded["zeros"], zeros, flags)
    print(f"arrays of {zeros.nbytes >> 20} MiB: in and out within {limit >> 20} MiB")


def compare(found, array, flags):
    if array.dtype.name in LACKING:
        assert found.dtype.kind == "V", found.dtype
        found = found.view(array.dtype)
    assert found.dtype == array.dtype and found.dtype.isnative, (found.dtype, array.dtype)
    assert found.shape == array.shape and found.tobytes() == array.tobytes()
    assert found.flags.f_contiguous if "F" in flags else found.flags.c_contiguous


with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    for part in [npy_in, npz_in, big_endian, untyped, structured, refused, out, memory]:
        part()
    os.chdir("/")
