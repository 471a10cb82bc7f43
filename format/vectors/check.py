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
import remote_files  # noqa: E402
import store_files  # noqa: E402

UUID, BOUNDS = bytes(range(16)), store_files.Bounds(7, 400)
OF_GENERATION_0 = "F-18-generation-0.man"
REFERENCES = json.loads((HERE / "bad/tables.json").read_text())  # those that are not the usual one
# By the name of the folder and of the vector: pieces in hexadecimal, each with its number of times.
LARGE = {(folder, name): pieces for folder in ("bad", "remotes/bad")
         for name, pieces in json.loads((HERE / folder / "large.json").read_text()).items()}
OF_REMOTES = ".head", ".remote", ".page"


def read_marker(path):
    store = reader.Store.__new__(reader.Store)
    store.path = "."
    plain_open, reader.open_regular = reader.open_regular, lambda _, rule: plain_open(path, rule)
    try:
        return store._read_format()
    finally:
        reader.open_regular = plain_open


MAPS = "storages", "tensors", "tags", "kept", "garbage"  # in the order of the trees
STARTS = 0, b"", b"", (False, 0), (False, 0, 0)


def table_ref(stated):
    """Return the reference in its JSON form as one of reader.py."""
    none = {"root_page": 0, "entry_count": 0}
    trees = (stated.get(name, none) for name in MAPS)
    return store_files.TableRef(stated["generation"], stated["page_count"],
                                tuple(store_files.TreeRef(tree["root_page"], tree["entry_count"]) for tree in trees))


def usual_reference(is_history):
    """Return the reference to a table of one leaf with one entry for each tree."""
    roots = [(0, 0), (0, 0), (0, 1), (1, 1), (2, 1)] if is_history else [(0, 1), (1, 1), (0, 0), (0, 0), (0, 0)]
    return store_files.TableRef(7, 3 if is_history else 2, tuple(store_files.TreeRef(*tree) for tree in roots))


def read_table(path, uuid, bounds, reference):
    """Return all entries of a table by tree, and check that a lookup finds each."""
    table = store_files.Table(store_files.open_regular(path, 20, missing=19), uuid, bounds, reference)
    found = []
    for number, start in enumerate(STARTS):
        tree = store_files.Tree(table, number)
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
    pieces = LARGE.get((str(path.parent.relative_to(HERE)), path.name))
    return path.read_bytes() if pieces is None else b"".join(bytes.fromhex(piece) * count for piece, count in pieces)


def read_remote(path, content):
    """Return an object of a remote in its JSON form."""
    uuid = bytes.fromhex(content["uuid"]) if content and path.suffix != ".page" else UUID

    def segment(of):
        return {"object": of.object.hex(), "offset_bytes": of.offset, "length_bytes": of.length,
                "digests_offset_bytes": of.digests, "check": of.check.hex()}

    def name(key):
        directory, extension = remote_files.KINDS[key[0]]
        return f"{directory}/{key[1]:016x}.{extension}"

    def page(of):
        place = {"inline": of.place.hex()} if isinstance(of.place, bytes) else {"stored": segment(of.place)}
        return {"first": name(of.first), "entry_count": of.count, "place": place}

    if path.suffix == ".head":
        head = remote_files.Head(bytes_of(path), uuid)
        return {"uuid": head.uuid.hex(), "generation": head.generation, "manifest": head.manifest.hex(),
                "manifest_length_bytes": head.length}
    if path.suffix == ".page":
        return [[name(key), [segment(of) for of in segments]] for key, segments in remote_files.page_files(bytes_of(path)).items()]
    manifest = remote_files.RemoteManifest(bytes_of(path), uuid, content["generation"] if content else BOUNDS.generation)
    previous = manifest.previous and {"generation": manifest.previous[0], "digest": manifest.previous[1].hex()}
    return {"uuid": uuid.hex(), "generation": manifest.generation, "nonce": manifest.nonce.hex(), "previous": previous,
            "manifest": manifest.manifest.hex(), "pages": [page(of) for of in manifest.pages],
            "replaced": [replaced.hex() for replaced in manifest.replaced]}


def read(path, content):
    """Return what a file contains: the uuid of FORMAT, or the maps of a manifest or table, and what else there is."""
    uuid = bytes.fromhex(content["uuid"]) if content else UUID
    if path.suffix == ".format":
        return read_marker(path)
    if path.suffix == ".man":
        generation = content["generation"] if content else 0 if path.name == OF_GENERATION_0 else BOUNDS.generation
        manifest = store_files.Manifest(bytes_of(path), uuid, generation)
        maps = [getattr(manifest, name) for name in MAPS]
        others = manifest.attributes, manifest.time, manifest.message, manifest.table, manifest.history
    else:
        stated = content["reference"] if content else REFERENCES.get(path.name)
        reference = table_ref(stated) if stated else usual_reference(path.suffix == ".his")
        bounds = store_files.Bounds(reference.generation, content["next_storage_id"]) if content else BOUNDS
        maps, others = read_table(path, uuid, bounds, reference), ()
    check_extents(*maps[:2])
    return maps, others


def as_json(maps, others):
    """Return a decoded file, as far as reader.py keeps it, in the form of `expected`."""
    def tensor(header):
        return [header.dtype, list(header.size), list(header.stride), header.offset, header.storage_id,
                None if header.dim_names is None else list(header.dim_names)]

    def storage(record):
        detail = record.detail
        sealed = isinstance(detail, store_files.Sealed) and [detail.chunks.hex(), detail.tail.hex(), detail.reserved]
        return [record.length, record.tensor_count, sealed or detail, record.is_restored]

    def tag(tag):
        return [tag.generation, tag.message and tag.message.decode()]

    plain = [
        {number: value and storage(value) for number, value in maps[0].items()},
        {name.decode(): value and tensor(value) for name, value in maps[1].items()},
        {name.decode(): value and tag(value) for name, value in maps[2].items()},
        {key: value and list(value) for key, value in maps[3].items()},
        {key: value and storage(value) for key, value in maps[4].items()},
    ]
    if others:
        attributes, time, message, *tables = others
        others = attributes, time, message and message.decode(), *tables
    return plain, others


def expected(content):
    def tensor(t):
        return [t["dtype"], t["size"], t["stride"], t["offset_elems"], t["storage_id"], t["dim_names"]]

    def storage(s):
        sealed = [s["chunks"], s["tail"], s["reserved_bytes"]] if s["kind"] == "sealed" else None
        return [s["length_bytes"], s["tensor_count"], sealed or s.get("access_bytes"), s["is_restored"]]

    plain = [
        {int(number): value and storage(value) for number, value in content.get("storages", {}).items()},
        {name: value and tensor(value) for name, value in content.get("tensors", {}).items()},
        {name: value and [value["generation"], value["message"]] for name, value in content.get("tags", {}).items()},
        {(key["is_tagged"], key["generation"]): value and [value[field] for field in
         ("time_ns", "next_storage_id", "table", "tag_count")] for key, value in content.get("kept", [])},
        {(key["is_tagged"], key["dropped"], key["id"]): value and storage(value)
         for key, value in content.get("garbage", [])},
    ]
    if "attributes" not in content:
        return plain, ()
    texts = {(scope, key): value for scope, texts in content["attributes"].items() for key, value in texts.items()}
    tables = [content[name] and table_ref(content[name]) for name in ("table", "history")]
    return plain, (texts, content["time_ns"], content["message"], *tables)


def check(path):
    """Return what was wrong with the result of a vector, or None."""
    if path.parent.name == "good":
        content = json.loads(path.with_suffix(".json").read_text())
        if path.suffix in OF_REMOTES:
            return None if read_remote(path, content) == content else "does not match its JSON"
        found = read(path, content)
        is_right = found.hex() == content["uuid"] if path.suffix == ".format" else as_json(*found) == expected(content)
        return None if is_right else "does not match its JSON"
    rule = "-".join(path.name.split("-")[:2])
    try:
        (read_remote if path.suffix in OF_REMOTES else read)(path, None)
    except store_files.FormatError as error:
        return None if error.label == rule else f"refused by {error}"
    return "not refused"


def all_vectors():
    """Return the paths of all vectors, the large ones last."""
    suffixes = (".format", ".man", ".tab", ".his", *OF_REMOTES)
    files = [path for path in sorted(HERE.glob("**/*")) if path.suffix in suffixes]
    return files + [HERE / folder / name for folder, name in LARGE]


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
