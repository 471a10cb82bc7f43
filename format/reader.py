#!/usr/bin/env python3
"""A reader of stridemap stores, written only from SPEC.md. Digests are checked if the xxhash module is installed.

STORE can be a remote in a local directory too, written only from REMOTE.md, which needs the blake3 module.

    python3 reader.py STORE            print one JSON object per line for each tensor
    python3 reader.py STORE NAME       print one tensor with its elements, in row-major order
    python3 reader.py --at TAG STORE [NAME]   print what the generation that a tag names has
    python3 reader.py --tags STORE     print one JSON object per line for each tag
    python3 reader.py --verify STORE   verify the whole store; exit with 1 if it is damaged
"""
import fcntl
import json
import math
import os
import re
import sys
from collections import Counter
from itertools import takewhile

import numpy as np

from remote_files import Remote
from store_files import (EXTERNAL, GARBAGE, KEPT, MAX_MANIFEST, MUTABLE, NUMPY, RAW, SEALED, STORAGES, TAGS, TENSORS,
                         VERSION, Catalog, FormatError, Manifest, MissingFile, Table, Tree, check_digest, check_table,
                         open_regular, read_at, require, xxhash)

CHUNK = 1 << 20
ATTEMPTS = 20  # attempts to open the newest manifest while writers delete older ones


class Store:
    """A store at the generation that was newest when it was opened, or at the one that the tag `at` names.

    This object keeps that generation from deletion.
    """

    _remote = None

    def __init__(self, path, at=None):
        self.path = os.fspath(path)
        self.uuid = self._read_format()
        for _ in range(ATTEMPTS):
            try:
                self._open_newest()
                return self._open_kept(self.tag(at).generation) if at is not None else None
            except MissingFile as error:  # or a tag was moved or removed
                missing = error
        raise missing

    def tag(self, name):
        tag = self._catalog(TAGS).get(name.encode())
        if tag is None:
            raise KeyError(f"no tag is named {name!r}")
        return tag

    def tags(self):
        """Iterate over pairs of a name and a tag. A generation that a tag names has none itself."""
        return ((name.decode(), tag) for name, tag in self._catalog(TAGS).scan(b""))

    def names(self, prefix=""):
        """Iterate over the names that begin with `prefix`, ascending byte by byte."""
        return (name.decode() for name, _ in self._scan(prefix))

    def items(self, prefix=""):
        """Iterate over pairs of name and header, in the order of `names`."""
        return ((name.decode(), self._checked(header)) for name, header in self._scan(prefix))

    def header(self, name):
        header = self._tensors.get(name.encode())
        if header is None:
            raise KeyError(f"no tensor is named {name!r}")
        return self._checked(header)

    def attributes_of(self, scope):
        """Return the attributes of a tensor, of a prefix, or of the store (scope "")."""
        return {key: value for (of, key), value in self._attributes.items() if of == scope}

    def tensor(self, name):
        """Return a read-only strided view of the mapped storage. Dtypes that numpy lacks are returned as raw bits."""
        header = self.header(name)
        dtype, data = NUMPY[header.dtype], self._map(header.storage_id)
        if 0 in header.size:
            return np.ndarray(header.size, dtype, buffer=b"")
        # The stride of a dimension of size 1 is arbitrary, and may exceed numpy's limit.
        strides = [stride * dtype.itemsize if size > 1 else 0 for size, stride in zip(header.size, header.stride)]
        return np.ndarray(header.size, dtype, data, header.offset * dtype.itemsize, strides)

    def elements(self, name):
        """Iterate over the elements of a tensor in row-major order, as short flat arrays."""
        header = self.header(name)
        if 0 in header.size:  # the other sizes may exceed numpy's limit
            self._map(header.storage_id)
            return ()
        return np.nditer(self.tensor(name), flags=["external_loop", "buffered"], order="C")

    def verify(self):
        """Verify every entry of the tables, every record and every sealed byte, also of the generations with tags."""
        if not xxhash:
            raise RuntimeError("verifying a store needs the xxhash module")
        self._verify_own()
        if self._history:
            check_table(self._history)
        named = Counter(tag.generation for _, tag in self.tags())
        kept = {generation: kept for (_, generation), kept in self._catalog(KEPT).scan((True, 0))}
        for (is_tagged, generation), _ in self._catalog(KEPT).scan((False, 0)):
            require(is_tagged or generation not in kept, 28,
                    f"generation {generation} is kept by a tag, and is listed as one without")
        require(named == {generation: kept.tag_count for generation, kept in kept.items()}, 28,
                "the kept generations do not count the tags that name them")
        for (is_tagged, dropped, storage_id), _ in self._catalog(GARBAGE).scan((False, 0, 0)):
            last = max((generation for generation in kept if generation < dropped), default=None)
            require(is_tagged == (last is not None and storage_id < kept[last].next_id), 28,
                    f"the garbage {storage_id:016x} is listed as kept by a tag, but is not, or vice versa")
        garbage = {key[2] for key, _ in self._catalog(GARBAGE).scan((True, 0, 0))}
        for generation, stated in kept.items():
            tagged = self._at_same_place()
            try:
                tagged._open_kept(generation)
            except MissingFile:
                if self._newest() != f"{self.generation:016x}.man":
                    raise RuntimeError("the store was changed during the verification; verify it again") from None
                raise
            table = tagged._manifest.table
            require((tagged._manifest.bounds.next_id, table and table.generation) == (stated.next_id, stated.table), 28,
                    f"generation {generation} is not as the newest manifest says")
            tagged._verify_own()
            for storage_id, _ in tagged._storages.scan(0):
                require(storage_id in garbage or self._storages.get(storage_id), 28,
                        f"storage {storage_id:016x} of a tag is neither used nor listed as garbage")

    def _verify_own(self):
        """Verify what this generation refers to."""
        if self._table:
            check_table(self._table)
        counts = Counter(header.storage_id for _, header in self.items())
        for storage_id, storage in self._storages.scan(0):
            require(counts[storage_id] == storage.tensor_count, 28, f"storage {storage_id:016x} counts "
                    f"{storage.tensor_count} tensors, but {counts[storage_id]} refer to it")
            if storage.kind != EXTERNAL:
                with self._open_storage(storage_id, storage) as file:
                    if storage.kind == SEALED:
                        self._check_sealed(file, storage_id, storage)

    def _at_same_place(self):
        """Return a store at the same path, of which no generation is open yet."""
        other = type(self).__new__(type(self))
        other.path, other.uuid, other._remote = self.path, self.uuid, self._remote
        return other

    def _read_format(self):
        file, size = open_regular(os.path.join(self.path, "FORMAT"), 1)
        with file:
            data = file.read(48)
        require(data.startswith(b"\x89SMAP\r\n\x1a"), 1, "FORMAT does not begin with the magic of a stridemap store")
        require(len(data) == size == 48, 2, "FORMAT is not 48 bytes")
        check_digest(2, "FORMAT", data[:32], data[32:])
        require(data[8:16] == VERSION, 3, "the version of the store is unknown")
        return data[16:32]

    def _open_newest(self):
        for name, rule in ("storages", 26), ("meta", 19), ("generations", 19):
            path = os.path.join(self.path, name)
            require(os.path.isdir(path) and not os.path.islink(path), rule, f"{path} is not a directory")
        newest = self._newest()
        require(newest, 19, f"{os.path.join(self.path, 'meta')} has no manifest")
        self._open_manifest("meta", int(newest[:16], 16))

    def _newest(self):
        """Return the name of the newest manifest. One listing during a commit may miss it."""
        newest, last = "", None
        while newest != last:
            found = [name for name in os.listdir(os.path.join(self.path, "meta")) if re.fullmatch(r"[0-9a-f]{16}\.man", name)]
            newest, last = max(found, default=""), newest
        return newest

    def _open_kept(self, generation):
        self._open_manifest("generations", generation)

    def _open_manifest(self, directory, generation):
        """Open a manifest and its tables. MissingFile may mean that a writer has just deleted a file."""
        self.generation, name = generation, f"{directory}/{generation:016x}.man"
        manifest, path = Manifest(self._read_manifest(name), self.uuid, generation), os.path.join(self.path, name)
        has_history = manifest.history or manifest.tags or manifest.kept or manifest.garbage
        require(directory == "meta" or not has_history, 28, f"{path} has a history of its own")
        self._manifest, self._attributes = manifest, manifest.attributes
        self.attributes = self.attributes_of("")
        self._table = self._open_table("generations", "tab", manifest.table)
        self._storages, self._tensors = self._catalog(STORAGES), self._catalog(TENSORS)
        self._history = self._open_table("meta", "his", manifest.history)

    def _open_table(self, directory, extension, reference):
        if not reference:
            return None
        opened = self._open_file(f"{directory}/{reference.generation:016x}.{extension}", 20, missing=19)
        return Table(opened, self.uuid, self._manifest.bounds, reference)

    def _open_file(self, name, rule, missing=None):
        return open_regular(os.path.join(self.path, name), rule, missing)

    def _read_manifest(self, name):
        path = os.path.join(self.path, name)
        self._file, _ = open_regular(path, 15, missing=19)  # kept open, because the lock on it keeps this generation
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MissingFile(19, f"{path} is being deleted") from None
        if not os.path.exists(path) or not os.path.samestat(os.fstat(self._file.fileno()), os.lstat(path)):
            raise MissingFile(19, f"{path} has been deleted")
        return os.pread(self._file.fileno(), MAX_MANIFEST + 1, 0)

    def _catalog(self, tree):
        """Return the entries of a tree, after checking its root."""
        manifest, table = self._manifest, self._table if tree in (STORAGES, TENSORS) else self._history
        changes = (manifest.storages, manifest.tensors, manifest.tags, manifest.kept, manifest.garbage)[tree]
        return Catalog(changes, table and Tree(table, tree))

    def _scan(self, prefix):
        start = prefix.encode()
        return takewhile(lambda item: item[0].startswith(start), self._tensors.scan(start))

    def _checked(self, header):
        """Return the header, after checking that its storage has a record (F-27) and contains every element (F-8)."""
        storage = self._storages.get(header.storage_id)
        require(storage, 27, f"storage {header.storage_id:016x} has no record")
        lowest = end = header.offset
        if 0 not in header.size:
            steps = [(size - 1) * stride for size, stride in zip(header.size, header.stride)]
            lowest += sum(min(0, step) for step in steps)
            end += sum(max(0, step) for step in steps) + 1
        require(0 <= lowest and end * NUMPY[header.dtype].itemsize <= storage.length, 8,
                f"a tensor is not inside storage {header.storage_id:016x}")
        return header

    def _open_storage(self, storage_id, storage):
        name = f"storages/{storage_id:016x}.bin"
        file, size = self._open_file(name, 26)
        # A mutable storage has its mark after its bytes.
        needed = storage.length + (storage.kind == MUTABLE)
        require(size >= needed, 26, f"{os.path.join(self.path, name)} is shorter than its record says")
        return file

    def _map(self, storage_id):
        """Return the bytes of a storage, mapped read-only."""
        storage = self._storages.get(storage_id)
        if storage.kind == EXTERNAL:
            raise ValueError(f"storage {storage_id:016x} is external; this reader does not open files outside the store")
        with self._open_storage(storage_id, storage) as file:
            return np.memmap(file, np.uint8, "r", shape=(storage.length,)) if storage.length else b""

    def _check_sealed(self, file, storage_id, storage):
        """Check F-25. The record has the digest of the tail, and the last link of a chain over the chunk digests."""
        what, (chunks, tail) = f"sealed storage {storage_id:016x}", divmod(storage.length, CHUNK)
        link = bytes(16)
        if chunks:
            sum_file, size = self._open_file(f"storages/{storage_id:016x}.sum", 26)
            with sum_file:
                require(size >= 16 * chunks, 26, f"the .sum file of {what} does not have a digest for each chunk")
                for start in range(0, chunks * CHUNK, CHUNK):
                    digest = sum_file.read(16)
                    link = xxhash.xxh3_128(link + digest).digest()
                    check_digest(25, f"the MiB at {start} of {what}", read_at(file, CHUNK, start, 26), digest)
        require(link == storage.detail.chunks, 25, f"the .sum file of {what} was changed")
        check_digest(25, f"the end of {what}", read_at(file, tail, chunks * CHUNK, 26), storage.detail.tail)


class RemoteStore(Store):
    """A store in a remote, which has no locks. Each file that is used is put together in a temporary file."""

    def _open_newest(self):
        self._remote = Remote(self.path, self.uuid)
        self._open_manifest("meta", self._remote.head.generation)

    def _newest(self):
        return f"{self._remote.head.generation:016x}.man"

    def _open_file(self, name, rule, missing=None):
        return self._remote.open(name, rule, missing)

    def _read_manifest(self, name):
        if name.startswith("meta/"):
            return self._remote.manifest.manifest
        file, _ = self._open_file(name, 15, missing=19)
        with file:
            return file.read(MAX_MANIFEST + 1)


def open_store(path, at=None):
    """Open a store, or a remote in a directory, which has a file HEAD."""
    return (RemoteStore if os.path.exists(os.path.join(path, "HEAD")) else Store)(path, at)


def describe(name, header):
    return {"name": name, "dtype": header.dtype, "size": header.size, "stride": header.stride,
            "storage_offset": header.offset, "storage": f"{header.storage_id:016x}"}


def plain(value):
    """Return a value in a form that JSON can represent."""
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def print_tensor(store, name):
    """Print a tensor piece by piece, because it may have far more elements than its storage."""
    header, elements = store.header(name), store.elements(name)
    print(json.dumps(describe(name, header))[:-1], end=', "bits": [' if header.dtype in RAW else ', "values": [')
    comma = ""
    for piece in elements:
        print(comma + json.dumps([plain(value) for value in piece.tolist()])[1:-1], end="")
        comma = ", "
    print("]}")


def main(arguments):
    option, at = (arguments.pop(0) if arguments[:1] in (["--verify"], ["--tags"], ["--at"]) else None), None
    if option == "--at" and arguments:
        at = arguments.pop(0)
    verify = option == "--verify"
    if not 1 <= len(arguments) <= (1 if option in ("--verify", "--tags") else 2):
        print("usage: reader.py [--at TAG] STORE [NAME] | reader.py --tags STORE | reader.py --verify STORE",
              file=sys.stderr)
        return 2
    if not xxhash and not verify:
        print("reader.py: digests are not checked, because the xxhash module is not installed", file=sys.stderr)
    try:
        store = open_store(arguments[0], at)
        if verify:
            store.verify()
        elif option == "--tags":
            for name, tag in store.tags():
                message = tag.message and tag.message.decode()
                print(json.dumps({"tag": name, "generation": tag.generation, "message": message}))
        elif len(arguments) == 2:
            print_tensor(store, arguments[1])
        else:
            for name, header in store.items():
                print(json.dumps(describe(name, header)))
    except (FormatError, OSError, KeyError, ValueError, RuntimeError) as error:
        print(f"reader.py: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1 if verify and isinstance(error, FormatError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
