#!/usr/bin/env python3
"""Reads every vector with reader.py. The good ones must match their JSON; the bad ones must be refused by their rule.

    python3 check.py        prints the number of vectors; on a failure, prints each one and exits with 1
"""
import json
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import reader  # noqa: E402

UUID, GENERATION, NEXT_ID = bytes(range(16)), 7, 400


def read_marker(path):
    store = reader.Store.__new__(reader.Store)
    store.path = "."
    plain_open, reader.open_regular = reader.open_regular, lambda _, rule: plain_open(path, rule)
    try:
        return store._read_format()
    finally:
        reader.open_regular = plain_open


def read_table(path, uuid, next_id, reference):
    """All storages and tensors of a table."""
    table = reader.Table(path, uuid, next_id, *reference)
    for ordinal in range(table.storages + table.tensors):
        table.bounds(ordinal)
    storages = reader.Catalog({}, table, 0, table.storages, lambda r: (r.storage_id(), r.storage()))
    tensors = reader.Catalog({}, table, table.storages, table.tensors, lambda r: (r.name(), r.tensor()))
    return dict(storages.scan(0)), dict(tensors.scan(b""))


def check_extents(storages, tensors):
    """F-8, for tensors whose storage is in the same file."""
    store = reader.Store.__new__(reader.Store)
    store._storages = storages
    for header in tensors.values():
        if header and storages.get(header.storage_id):
            store._checked(header)


def read(path, content):
    uuid = bytes.fromhex(content["uuid"]) if content else UUID
    if path.suffix == ".format":
        return read_marker(path)
    if path.suffix == ".man":
        manifest = reader.Manifest(path.read_bytes(), uuid, content["generation"] if content else GENERATION)
        storages, tensors, attributes = manifest.storages, manifest.tensors, manifest.attributes
    else:
        if content is None and path.name.startswith("F-21"):
            content = json.loads((HERE / "good/small-table.json").read_text())
        if content:
            stated = content["reference"]
            reference = stated["generation"], stated["length_bytes"], bytes.fromhex(stated["header_digest"])
        else:
            header = path.read_bytes()[:64]
            reference = GENERATION, path.stat().st_size, reader.xxhash.xxh3_128(header).digest()
        storages, tensors = read_table(path, uuid, content["next_storage_id"] if content else NEXT_ID, reference)
        attributes = {}
    check_extents(storages, tensors)
    return storages, tensors, attributes


def as_json(storages, tensors, attributes):
    """The fields of a decoded file that reader.py keeps, in the JSON form of the vectors."""
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
    """The problem with how the vector was read, or None."""
    if path.parent.name == "good":
        content = json.loads(path.with_suffix(".json").read_text())
        found = read(path, content)
        is_right = found.hex() == content["uuid"] if path.suffix == ".format" else as_json(*found) == expected(content)
        return None if is_right else "read otherwise than its JSON says"
    rule = int(path.name.split("-")[1])
    try:
        read(path, None)
    except reader.FormatError as error:
        return None if error.rule == rule else f"refused by {error}"
    return "not refused"


def main():
    if not reader.xxhash:
        print("check.py: skipped: there is no module xxhash", file=sys.stderr)
        return 2
    vectors = [path for path in sorted(HERE.glob("*/*")) if path.suffix in (".format", ".man", ".tab")]
    wrong = [f"{os.path.relpath(path, HERE)}: {what}" for path in vectors if (what := check(path))]
    print(*wrong, f"{len(vectors) - len(wrong)} of {len(vectors)} vectors read as they should be", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
