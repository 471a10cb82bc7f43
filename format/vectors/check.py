#!/usr/bin/env python3
"""Reads every vector with reader.py. Good vectors must match their JSON; bad ones must be refused by their rule.

    python3 check.py   print the number of correct results, and a line for each wrong one; exit with 1 if there is one
"""
import json
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import reader  # noqa: E402
import store_files  # noqa: E402

UUID, GENERATION, NEXT_ID = bytes(range(16)), 7, 400
OF_GENERATION_0 = "F-18-generation-0.man"
REFERENCES = json.loads((HERE / "bad/tables.json").read_text())  # those that are not the usual one
LARGE = json.loads((HERE / "bad/large.json").read_text())  # pieces in hexadecimal, each with its number of times


def read_marker(path):
    store = reader.Store.__new__(reader.Store)
    store.path = "."
    plain_open, reader.open_regular = reader.open_regular, lambda _, rule: plain_open(path, rule)
    try:
        return store._read_format()
    finally:
        reader.open_regular = plain_open


def table_ref(stated):
    """Return the reference in its JSON form as one of reader.py."""
    trees = stated["storages"], stated["tensors"]
    return store_files.TableRef(stated["generation"], stated["page_count"],
                           *(tree[field] for tree in trees for field in ("root_page", "entry_count")))


def read_table(path, uuid, next_id, reference):
    """Return all storages and tensors of a table, and check that a lookup finds each."""
    table = store_files.Table(path, uuid, next_id, reference)
    found = []
    for tree, start in zip(store_files.trees(table), (0, b"")):
        entries = dict(store_files.Catalog({}, tree).scan(start))
        assert all(tree.get(key) == value for key, value in entries.items()), "a lookup differs from the scan"
        assert not any(tree.get(key[:-1]) for key in entries if start == b"" and key[:-1] not in entries)
        found.append(entries)
    store_files.check_table(table)
    return found


def check_extents(storages, tensors):
    """Check F-8 for tensors whose storage is in the same file."""
    store = reader.Store.__new__(reader.Store)
    store._storages = storages
    for header in tensors.values():
        if header and storages.get(header.storage_id):
            store._checked(header)


def bytes_of(path):
    if path.name in LARGE:
        return b"".join(bytes.fromhex(piece) * count for piece, count in LARGE[path.name])
    return path.read_bytes()


def read(path, content):
    uuid = bytes.fromhex(content["uuid"]) if content else UUID
    if path.suffix == ".format":
        return read_marker(path)
    if path.suffix == ".man":
        generation = content["generation"] if content else 0 if path.name == OF_GENERATION_0 else GENERATION
        manifest = store_files.Manifest(bytes_of(path), uuid, generation)
        storages, tensors, attributes = manifest.storages, manifest.tensors, manifest.attributes
    else:
        stated = content["reference"] if content else REFERENCES.get(path.name)
        reference = table_ref(stated) if stated else store_files.TableRef(GENERATION, 2, 0, 1, 1, 1)
        storages, tensors = read_table(path, uuid, content["next_storage_id"] if content else NEXT_ID, reference)
        attributes = {}
    check_extents(storages, tensors)
    return storages, tensors, attributes


def as_json(storages, tensors, attributes):
    """Return the parts of a decoded file that reader.py keeps, in the form of `expected`."""
    def tensor(header):
        return header and [header.dtype, list(header.size), list(header.stride), header.offset, header.storage_id,
                           None if header.dim_names is None else list(header.dim_names)]

    def storage(record):
        return record and [record.length, record.tensor_count, record.detail if isinstance(record.detail, int) else record.detail and
                           [record.detail[0].hex(), record.detail[1].hex(), record.detail[2]]]

    return ({str(key): storage(value) for key, value in storages.items()},
            {key.decode(): tensor(value) for key, value in tensors.items()}, attributes)


def expected(content):
    def tensor(t):
        return t and [t["dtype"], t["size"], t["stride"], t["offset_elems"], t["storage_id"], t["dim_names"]]

    def storage(s):
        sealed = [s["chunks"], s["tail"], s["reserved_bytes"]] if s and s["kind"] == "sealed" else None
        return s and [s["length_bytes"], s["tensor_count"], sealed or s.get("access_bytes")]

    return ({key: storage(value) for key, value in content["storages"].items()},
            {key: tensor(value) for key, value in content["tensors"].items()},
            {(scope, key): value for scope, texts in content.get("attributes", {}).items() for key, value in texts.items()})


def check(path):
    """Return what was wrong with the result of a vector, or None."""
    if path.parent.name == "good":
        content = json.loads(path.with_suffix(".json").read_text())
        found = read(path, content)
        is_right = found.hex() == content["uuid"] if path.suffix == ".format" else as_json(*found) == expected(content)
        return None if is_right else "does not match its JSON"
    rule = int(path.name.split("-")[1])
    try:
        read(path, None)
    except store_files.FormatError as error:
        return None if error.rule == rule else f"refused by {error}"
    return "not refused"


def all_vectors():
    """Return the paths of all vectors, the large ones last."""
    files = [path for path in sorted(HERE.glob("*/*")) if path.suffix in (".format", ".man", ".tab")]
    return files + [HERE / "bad" / name for name in LARGE]


def main():
    if not reader.xxhash:
        print("check.py: skipped: the xxhash module is not installed", file=sys.stderr)
        return 2
    vectors = all_vectors()
    wrong = [f"{os.path.relpath(path, HERE)}: {what}" for path in vectors if (what := check(path))]
    print(*wrong, f"{len(vectors) - len(wrong)} of {len(vectors)} vectors have the expected result", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
