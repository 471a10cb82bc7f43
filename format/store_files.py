"""Decodes the files of a stridemap store: records, manifests and tables, chapters 2 to 5 and 7 of SPEC.md."""
import bisect
import heapq
import math
import os
import re
import stat
import struct
from collections import Counter, namedtuple

import numpy as np

try:
    import xxhash
except ImportError:
    xxhash = None

VERSION = struct.pack("<Q", 1)
MAX_MANIFEST = 16 << 20
MAX_CHANGES = 4096
MAX_ATTRIBUTES = 1 << 20
PAGE = 4096
MAX_PAGES = 9  # of one node
MAX_LEVEL = 40
MAX_RESERVED = 1 << 46
SEALED, MUTABLE, LIVE, EXTERNAL = 0, 1, 2, 3

# The name of each dtype, and the numpy dtype of its elements, or of their raw bits for a dtype in RAW. A dtype's code in
# a file is its index here.
DTYPES = [dtype.split(":") for dtype in (
    "bool:? uint8:u1 uint16:<u2 uint32:<u4 uint64:<u8 int8:i1 int16:<i2 int32:<i4 int64:<i8 float16:<f2 bfloat16:<u2 "
    "float32:<f4 float64:<f8 complex64:<c8 complex128:<c16 float8_e4m3fn:u1 float8_e5m2:u1 float8_e4m3fnuz:u1 "
    "float8_e5m2fnuz:u1 float8_e8m0fnu:u1 float4_e2m1fn_x2:u1").split()]
NUMPY = {name: np.dtype(numpy_code) for name, numpy_code in DTYPES}
RAW = {name for name in NUMPY if name.startswith(("bfloat", "float8", "float4"))}

# The records of tensors (offset and strides in elements) and storages. The `detail` of a storage is a `Sealed` for a
# sealed one, the access size in bytes for a live one, and None for others.
Header = namedtuple("Header", "dtype size stride offset storage_id dim_names")
Storage = namedtuple("Storage", "length tensor_count kind detail is_restored")
Sealed = namedtuple("Sealed", "chunks tail reserved")
Tag = namedtuple("Tag", "generation message")
Kept = namedtuple("Kept", "time next_id table tag_count")
TableRef = namedtuple("TableRef", "generation pages trees")
TreeRef = namedtuple("TreeRef", "root count")
Bounds = namedtuple("Bounds", "generation next_id")  # those of the manifest that has the record
Node = namedtuple("Node", "page tree level pages entries")  # the entries are bytes


class FormatError(Exception):
    """A store breaks a rule: that of a number, F-1 and so on, or of a text such as "R-1"."""

    def __init__(self, rule, message):
        self.rule, self.label = rule, rule if isinstance(rule, str) else f"F-{rule}"
        super().__init__(f"{self.label}: {message}")


class MissingFile(FormatError):
    """A file of the store is missing. A writer may have deleted it in the meantime."""


def require(condition, rule, message):
    if not condition:
        raise FormatError(rule, message)


def check_digest(rule, what, data, digest):
    require(not xxhash or xxhash.xxh3_128(data).digest() == digest, rule, f"{what} does not match its digest")


def open_regular(path, rule, missing=None):
    """Open a regular file and return it with its size. Links are refused, and so are pipes, without blocking.

    A file of the wrong kind breaks `rule`. A missing one breaks `missing`, or `rule` if `missing` is not given.
    """
    try:
        require(stat.S_ISREG(os.lstat(path).st_mode), rule, f"{path} is not a regular file")
        file = open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise MissingFile(missing or rule, f"{path} is missing") from None
    return file, os.fstat(file.fileno()).st_size


def read_at(file, count, offset, rule):
    data = os.pread(file.fileno(), count, offset)
    require(len(data) == count, rule, "a file ends early")
    return data


class Record:
    """Decodes the values of a record (chapter 3) one after another, and checks them in the order of chapter 7."""

    def __init__(self, data, bounds):
        self.data, self.bounds, self.at = data, bounds, 0
        self.key = None  # of the kept generation that is being decoded
        self.flaw = None  # the first value that is not in canonical form: it counts only if the rest can be decoded
        self.wrong = None  # the first value that breaks another rule: it counts only if the encoding is canonical

    def check(self, condition, rule, message):
        if not condition and not self.wrong:
            self.wrong = FormatError(rule, message)

    def end(self):
        require(self.at == len(self.data), 14, "bytes follow the end of a record")
        require(not self.flaw, 14, self.flaw)
        if self.wrong:
            raise self.wrong

    def take(self, count):
        require(count <= len(self.data) - self.at, 14, "a record ends early")
        self.at += count
        return self.data[self.at - count:self.at]

    def uint(self):
        first = self.take(1)[0]
        if first <= 250:
            return first
        require(first <= 253, 14, f"{first} does not begin an integer")
        width, shorter = {251: (2, 250), 252: (4, 2**16 - 1), 253: (8, 2**32 - 1)}[first]
        value = int.from_bytes(self.take(width), "little")
        if value <= shorter:
            self.flaw = self.flaw or "an integer does not have its shortest encoding"
        return value

    def int(self):
        value = self.uint()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def count(self):
        """Return the number of items that follow. Each takes at least one byte."""
        count = self.uint()
        require(count <= len(self.data) - self.at, 14, "a record ends before the items that it counts")
        return count

    def text(self):
        """Return the bytes of a text."""
        raw = self.take(self.uint())
        try:
            raw.decode()
        except UnicodeDecodeError:
            raise FormatError(14, "text is not UTF-8") from None
        return raw

    def name(self, least=1):
        """Return the bytes of a name, an attribute key, a scope (which may be empty) or a path."""
        raw = self.text()
        self.check(least <= len(raw) <= 4096 and 0 not in raw, 4,
                   f"{raw[:80]!r} is not {least} to 4096 bytes without NUL")
        return raw

    def flag(self):
        flag = self.take(1)[0]
        require(flag <= 1, 14, f"{flag} is neither 0 nor 1")
        return flag == 1

    def optional(self, read):
        return read() if self.flag() else None

    def list(self, read):
        """Return a list with an item for each dimension."""
        items = tuple(read() for _ in range(self.count()))
        require(len(items) <= 64, 5, f"a tensor has {len(items)} dimensions")
        return items

    def changes(self, read_key, read_value):
        """Return the changes of one tree."""
        return self.map(read_key, lambda: self.optional(read_value), MAX_CHANGES)

    def map(self, read_key, read_value, most, size=lambda key, value: 1):
        result, last, total = {}, None, 0
        for _ in range(self.count()):
            key, value = read_key(), read_value()
            if last is not None and last >= key:
                self.flaw = self.flaw or "the keys of a map do not ascend"
            result[key], last, total = value, key, total + size(key, value)
        require(total <= most, 13, f"a map of the manifest has a size of {total}; at most {most} is allowed")
        return result

    def storage_id(self):
        value = self.uint()
        self.check(1 <= value < self.bounds.next_id, 12, f"storage id {value} is 0 or not below the next id")
        return value

    def generation(self, last=None):
        value, last = self.uint(), self.bounds.generation if last is None else last
        self.check(1 <= value <= last, 18, f"generation {value} is 0 or above {last}")
        return value

    def storage(self):
        length, tensor_count, kind = self.uint(), self.uint(), self.uint()
        self.check(length < 2**63, 11, f"a storage of {length} bytes is too long")
        require(kind <= EXTERNAL, 10, f"storage kind {kind} is unknown")
        if kind == EXTERNAL:
            self.name()
            offset, _inode, size, _mtime = self.uint(), self.uint(), self.uint(), self.int()
            self.check(offset + length <= size, 11, "an external storage does not end inside its file")
        detail = None
        if kind == SEALED:
            detail = Sealed(self.take(16), self.take(16), self.uint())
            self.check(detail.reserved <= MAX_RESERVED, 11, f"a storage reserves {detail.reserved} bytes")
        if kind == LIVE:
            detail = self.take(1)[0]
            self.check(detail in (1, 2, 4, 8), 10, f"a live storage has accesses of {detail} bytes")
        return Storage(length, tensor_count, kind, detail, self.flag())

    def garbage(self):
        storage = self.storage()
        self.check(storage.tensor_count == 0, 28, "tensors refer to garbage")
        return storage

    def tag(self):
        return Tag(self.generation(), self.optional(self.name))

    def kept(self):
        is_tagged, generation = self.key
        kept = Kept(self.int(), self.uint(), self.optional(lambda: self.generation(generation)), self.uint())
        self.check(1 <= kept.next_id <= self.bounds.next_id, 12, "the next id of a kept generation is 0 or too high")
        self.check(is_tagged == (kept.tag_count > 0), 28, "a kept generation is listed as tagged, but counts no tag, or vice versa")
        return kept

    def kept_key(self):
        self.key = self.flag(), self.generation()
        return self.key

    def garbage_key(self):
        return self.flag(), self.generation(), self.storage_id()

    def any_kept_key(self):
        return self.flag(), self.uint()

    def any_garbage_key(self):
        return self.flag(), self.uint(), self.uint()

    def table_ref(self, own):
        """Return a reference to a table whose entries are in the trees `own`."""
        generation, pages = self.generation(), self.uint()
        trees = tuple(TreeRef(self.uint(), self.uint()) for _ in TREES)
        self.check(all(number in own or not tree.count for number, tree in enumerate(trees)), 23,
                   "a table has entries of a tree that it cannot have")
        self.check(all(tree.count or not tree.root for tree in trees), 23, "a tree without entries has a root")
        return TableRef(generation, pages, trees)

    def tensor(self):
        code, size, stride = self.take(1)[0], self.list(self.uint), self.list(self.int)
        offset, storage_id, names = self.uint(), self.storage_id(), self.optional(lambda: self.list(self.dim_name))
        self.check(code < len(DTYPES), 6, f"dtype code {code} is unknown")
        self.check(len(size) == len(stride), 5, "a tensor does not have a stride for each dimension")
        self.check(math.prod(size) < 2**63, 7, "a tensor has too many elements")
        if names is not None:
            given = [name for name in names if name is not None]
            self.check(len(names) == len(size), 9, "the numbers of dimensions and of their names differ")
            self.check(given, 9, "a list of dimension names has no name")
            self.check(len(set(given)) == len(given), 9, "a dimension name appears twice")
            self.check(all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,254}", name) for name in given), 9,
                       "a dimension name is not an identifier")
        return Header(DTYPES[code][0] if code < len(DTYPES) else None, size, stride, offset, storage_id, names)

    def dim_name(self):
        return self.optional(lambda: self.text().decode())


# How an entry of each tree is decoded: the key without checks, as in an inner node; the key; and the record.
TREES = [
    (Record.uint, Record.storage_id, Record.storage),
    (Record.text, Record.name, Record.tensor),
    (Record.text, Record.name, Record.tag),
    (Record.any_kept_key, Record.kept_key, Record.kept),
    (Record.any_garbage_key, Record.garbage_key, Record.garbage),
]
STORAGES, TENSORS, TAGS, KEPT, GARBAGE = range(5)


class Manifest:
    """A manifest (chapter 4), checked against the uuid of the store and the generation in its file name."""

    def __init__(self, data, uuid, generation):
        require(40 <= len(data) <= MAX_MANIFEST, 15, "a manifest is too short or longer than 16 MiB")
        magic, version, length = struct.unpack_from("<8s8sQ", data)
        require(magic == b"SMAPMAN\n" and length == len(data) - 40, 15, "not a manifest of the stated length")
        check_digest(16, "the manifest", data[:-16], data[-16:])
        require(version == VERSION, 3, "the version of the manifest is unknown")
        record = Record(data[24:-16], Bounds(generation, 0))
        record.check(record.take(16) == uuid, 17, "the manifest belongs to a different store")
        record.check(record.uint() == generation, 18, "the generation of the manifest is not that of its file name")
        record.check(generation >= 1, 18, "the generation of the manifest is 0")
        self.time, self.message, next_id = record.int(), record.optional(record.name), record.uint()
        self.bounds = record.bounds = Bounds(generation, next_id)
        record.check(next_id >= 1, 12, "the next storage id is 0")
        self.table = record.optional(lambda: record.table_ref((STORAGES, TENSORS)))
        self.history = record.optional(lambda: record.table_ref((TAGS, KEPT, GARBAGE)))
        self.storages = record.changes(record.storage_id, record.storage)
        self.tensors = record.changes(record.name, record.tensor)
        attributes = record.map(lambda: (record.name(least=0), record.name()), record.text, MAX_ATTRIBUTES,
                                lambda key, value: 16 + len(key[0]) + len(key[1]) + len(value))
        self.attributes = {(scope.decode(), key.decode()): value.decode() for (scope, key), value in attributes.items()}
        self.tags = record.changes(record.name, record.tag)
        self.kept = record.changes(record.kept_key, record.kept)
        self.garbage = record.changes(record.garbage_key, record.garbage)
        twice = [number for (is_tagged, number), kept in self.kept.items() if kept and self.kept.get((not is_tagged, number))]
        record.check(not twice, 28, f"the kept generations {twice} are listed both with tags and without")
        record.end()


class Table:
    """An open table (chapter 5). Nodes are read on demand."""

    def __init__(self, opened, uuid, bounds, reference):
        self.bounds, self.uuid, self.reference = bounds, uuid, reference
        self.file, size = opened
        require(size == reference.pages * PAGE, 20, "the table does not have as many pages as the manifest states")

    def node(self, page):
        """Read the node that begins at a page."""
        require(page < self.reference.pages, 23, f"page {page} is not in the table")
        data = read_at(self.file, PAGE, page * PAGE, 20)
        pages, = struct.unpack_from("<H", data, 54)
        more = min(max(pages, 1), MAX_PAGES, self.reference.pages - page) - 1
        data += read_at(self.file, more * PAGE, (page + 1) * PAGE, 20)
        what = f"the node at page {page}"
        check_digest(21, what, data[16:], data[:16])
        uuid, generation, own_page, tree, level, count, _ = struct.unpack_from("<16s2Q4H", data, 16)
        require(uuid == self.uuid, 17, f"{what} belongs to a different store")
        require(generation == self.reference.generation, 18, f"{what} belongs to a different generation")
        end_of_slots = 58 + 2 * count
        require(own_page == page and pages * PAGE == len(data) >= end_of_slots, 22, f"{what} is not at its page")
        slots = struct.unpack_from(f"<{count + 1}H", data, 56)
        require(slots[0] == end_of_slots and all(map(int.__lt__, slots, slots[1:])) and -(-slots[-1] // PAGE) == pages
                and not any(data[slots[-1]:]), 22, f"the slots of {what} do not ascend within its last page")
        require(tree < len(TREES), 23, f"{what} belongs to tree {tree}, and there are only 0 to 4")
        return Node(page, tree, level, pages, [data[start:end] for start, end in zip(slots, slots[1:])])

    def nodes(self):
        """Iterate over all nodes, in the order of the file."""
        page = 0
        while page < self.reference.pages:
            node = self.node(page)
            page += node.pages
            yield node


class Tree:
    """One tree of a table."""

    def __init__(self, table, number):
        self.table, self.number = table, number
        self.any_key, self.read_key, self.read_value = TREES[number]
        root, count = table.reference.trees[number]
        self.root = self.checked(table.node(root)) if count else None

    def checked(self, node, level=None):
        """Check F-23: a child is at `level`. An inner node has two entries, and a leaf one."""
        is_filled = len(node.entries) >= (2 if node.level else 1)
        is_at_level = node.level <= MAX_LEVEL if level is None else node.level == level
        require(node.tree == self.number and is_at_level and is_filled, 23,
                f"the node at page {node.page} is not in its place")
        return node

    def entry(self, node, index):
        """Return the key of an entry, and its value or the page of the child."""
        record = Record(node.entries[index], self.table.bounds)
        read_key, read_value = (self.any_key, Record.uint) if node.level else (self.read_key, self.read_value)
        result = read_key(record), read_value(record)
        record.end()
        return result

    def child(self, node, index):
        key, page = self.entry(node, index)
        return key, self.checked(self.table.node(page), node.level - 1)

    def first_greater(self, node, key):
        """Return the index of the first entry of a node whose key is greater."""
        return bisect.bisect_right(node.entries, key, key=self.key_of)

    def key_of(self, entry):
        return self.any_key(Record(entry, self.table.bounds))

    def get(self, key):
        """Return the value of a key, or None."""
        node = self.root
        while node:
            index = self.first_greater(node, key) - 1
            if index < 0:
                return None
            if node.level == 0:
                return self.entry(node, index)[1] if self.key_of(node.entries[index]) == key else None
            _, node = self.child(node, index)
        return None

    def scan(self, start):
        """Iterate over keys from `start` on, ascending, and their values."""
        return self.scan_below(self.root, start) if self.root else iter(())

    def scan_below(self, node, start):
        first = max(self.first_greater(node, start) - 1, 0)
        for index in range(first, len(node.entries)):
            if node.level == 0:
                key, value = self.entry(node, index)
                if key >= start:
                    yield key, value
            else:
                key, child = self.child(node, index)
                require(self.entry(child, 0)[0] == key, 24,
                        f"the node at page {child.page} does not begin with the key that its parent states")
                yield from self.scan_below(child, start)

    def reach(self, node, leaves, others):
        """Add the first page of each node to `leaves`, a list, or `others`, a set."""
        if node.level == 0:
            require(not leaves or leaves[-1] < node.page, 24, f"the leaf at page {node.page} is not after the leaf before it")
            leaves.append(node.page)
            return
        require(node.page not in others, 24, f"two links lead to the node at page {node.page}")
        others.add(node.page)
        for index in range(len(node.entries)):
            self.reach(self.child(node, index)[1], leaves, others)


class Catalog:
    """The entries of a tree: the changes in the manifest, and the tree in the table, if there is one."""

    def __init__(self, changes, tree=None):
        self.changes, self.tree = changes, tree

    def get(self, key):
        """Return the value of a key, or None."""
        if key in self.changes or not self.tree:
            return self.changes.get(key)
        return self.tree.get(key)

    def scan(self, start):
        """Iterate over keys from `start` on, ascending, and their values. A change hides the table's entry."""
        changes = ((key, 0, value) for key, value in self.changes.items() if key >= start)
        entries = ((key, 1, value) for key, value in self.tree.scan(start)) if self.tree else ()
        last = start, -1
        for key, layer, value in heapq.merge(changes, entries, key=lambda entry: entry[:2]):
            require(last < (key, layer), 24, "the entries of the table do not ascend")
            if value is not None and last != (key, 0):
                yield key, value
            last = key, layer


def check_table(table):
    """Check that the trees lead to each node, and their leaves in order (F-23, F-24), and count the entries (F-28)."""
    reached = set()
    for number in range(len(TREES)):
        tree, leaves, others = Tree(table, number), [], set()
        if tree.root:
            tree.reach(tree.root, leaves, others)
        reached.update(leaves, others)
    counts = Counter()
    for node in table.nodes():
        require(node.page in reached, 23, f"no root leads to the node at page {node.page}")
        reached.remove(node.page)
        counts[node.tree] += 0 if node.level else len(node.entries)
    require(not reached, 23, f"the pages {sorted(reached)} are inside other nodes")
    require(all(counts[number] == tree.count for number, tree in enumerate(table.reference.trees)), 28,
            "the table does not have as many entries as the manifest states")
