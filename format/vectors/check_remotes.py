#!/usr/bin/env python3
"""Cuts stores into remotes, in several ways, and reads these with reader.py: all content must be that of the store. Then
damages each object, and checks that the reader names the rule.

    python3 check_remotes.py [STORE...]   read these stores, or those in tests/data/stores/good
"""
import contextlib
import io
import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import reader  # noqa: E402
import remote_files  # noqa: E402
import store_files  # noqa: E402
from remote_files import BLOCK, KINDS, blake3, block_digests, check_of  # noqa: E402

STORES = HERE.parent.parent / "tests/data/stores/good"
# How stores are cut: the longest segment, the longest page, and whether the segments and pages are parts of a pack.
WAYS = (1 << 26, 1 << 14, False), (1 << 26, 1 << 14, True), (1000, 100, True), (7001, 1, False)

MOST_DAMAGED = 60  # objects of a remote that are damaged one by one


def uint(value):
    for first, code, last in (None, "<B", 250), (251, "<H", 2**16 - 1), (252, "<I", 2**32 - 1), (253, "<Q", 2**64 - 1):
        if value <= last:
            return (b"" if first is None else bytes([first])) + struct.pack(code, value)


def needed_files(path, store):
    """Return the keys of the files that a reader of the newest generation and of its tags needs (chapter 1)."""
    keys, manifest = set(), store._manifest

    def add_own(of):
        if of._manifest.table:
            keys.add((1, of._manifest.table.generation))

    add_own(store)
    if manifest.history:
        keys.add((2, manifest.history.generation))
    for _, tag in store.tags():
        if tag.generation != store.generation or (path / f"generations/{tag.generation:016x}.man").exists():
            keys.add((0, tag.generation))
            tagged = store._at_same_place()
            tagged._open_kept(tag.generation)
            add_own(tagged)
    storages = dict(store._storages.scan(0))
    storages.update({key[2]: storage for key, storage in store._catalog(reader.GARBAGE).scan((True, 0, 0))})
    for number, storage in storages.items():
        keys.add((3, number))
        if storage.kind == reader.SEALED and storage.length >= reader.CHUNK:
            keys.add((4, number))
    return sorted(keys)


def stored_digests(data):
    """Return the digests of a segment that its object has: those of several blocks."""
    return block_digests(data) if len(data) > BLOCK else b""


class Writer:
    """Writes a remote."""

    def __init__(self, path, longest_segment, longest_page, is_packed):
        self.path, self.is_packed, self.longest_page = path, is_packed, longest_page
        self.longest_segment, self.pieces = longest_segment, []
        (path / "objects").mkdir(parents=True)
        (path / "generations").mkdir()

    def put(self, data):
        name = blake3(data)
        (self.path / "objects" / name.hex()).write_bytes(data)
        return name

    def segments(self, runs):
        """Put bytes into objects, and return the encodings of their segments."""
        if not self.is_packed or not runs:
            # The digests of the blocks are after the segment.
            return [self.segment(self.put(data + stored_digests(data)), 0, data, len(data)) for data in runs]
        # The pack begins with bytes that nothing refers to, and then has all digests.
        digests = b"".join(map(stored_digests, runs))
        name, encoded = self.put(b"unused" + digests + b"".join(runs)), []
        digests_at, offset = 6, 6 + len(digests)
        for data in runs:
            encoded.append(self.segment(name, offset, data, digests_at))
            offset, digests_at = offset + len(data), digests_at + len(stored_digests(data))
        return encoded

    @staticmethod
    def segment(name, offset, data, digests_at):
        """Return the encoding of a segment."""
        place = uint(offset) + uint(len(data)) + uint(digests_at if len(data) > BLOCK else 0)
        return b"\0" + name + place + check_of(block_digests(data))

    def cut(self, data):
        return [data[start:start + self.longest_segment] for start in range(0, len(data), self.longest_segment)]

    def push(self, store_path, store):
        pages, page, first, count = [], b"", None, 0
        keys = needed_files(store_path, store)
        for key in keys:
            directory, extension = KINDS[key[0]]
            segments = self.segments(self.cut((store_path / directory / f"{key[1]:016x}.{extension}").read_bytes()))
            entry = uint(key[0]) + uint(key[1]) + uint(len(segments)) + b"".join(segments)
            if count and len(page) + len(entry) > self.longest_page:
                pages.append((first, count, uint(count) + page))
                page, count = b"", 0
            first = key if count == 0 else first
            page, count = page + entry, count + 1
        if count:
            pages.append((first, count, uint(count) + page))
        stored = self.segments([page for _, _, page in pages]) if self.is_packed else None
        places = [b"\1" + segment for segment in stored] if stored else [b"\0" + uint(len(p)) + p for _, _, p in pages]
        refs = b"".join(uint(first[0]) + uint(first[1]) + uint(count) + place for (first, count, _), place in zip(pages, places))
        manifest = (store_path / "meta" / f"{store.generation:016x}.man").read_bytes()
        body = (store.uuid + uint(store.generation) + bytes(range(16)) + b"\0" + uint(len(manifest)) + manifest
                + uint(len(pages)) + refs + b"\0")
        whole = b"SMAPREM\n" + struct.pack("<QQ", 1, len(body)) + body
        name = blake3(whole)
        (self.path / "generations" / f"{store.generation:016x}-{name.hex()}").write_bytes(whole)
        shutil.copy(store_path / "FORMAT", self.path / "FORMAT")
        head = b"SMAPHEAD" + struct.pack("<Q16sQ32sQ", 1, store.uuid, store.generation, name, len(whole))
        (self.path / "HEAD").write_bytes(head + store_files.xxhash.xxh3_128(head).digest())


def content(path):
    """Return what reader.py prints of a store, of its tags and of the generations that these name."""
    out = io.StringIO()
    tags = [tag for tag, _ in reader.open_store(path).tags()]
    with contextlib.redirect_stdout(out):
        for tag in [None, *tags]:
            store = reader.open_store(path, tag)
            print(json.dumps([tag, store.generation, str(store._attributes)]))
            for name, _ in store.items():
                reader.print_tensor(store, name)
    reader.open_store(path).verify()
    return out.getvalue()


def label(path):
    """Return the rule that a reader names, if it finds that the remote is damaged."""
    try:
        store = reader.open_store(path)
        store.verify()
    except store_files.FormatError as error:
        return error.label
    return None


def check_damage(remote):
    """Change each object, then remove it, and return what the reader did not notice as it should."""
    wrong, labels = [], {"FORMAT": {"F-1", "F-2"}, "HEAD": {"R-1", "R-2"}}
    for path in [path for path in sorted(remote.rglob("*")) if path.is_file()]:
        data, name = path.read_bytes(), str(path.relative_to(remote))
        # In a pack, a byte that is in no segment is never read.
        for at in {0, len(data) // 2, len(data) - 1} if data and not data.startswith(b"unused") else {len(data) - 1}:
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1:])
            if (found := label(remote)) not in labels.get(name, {"R-11"}):
                wrong.append(f"{name} with byte {at} changed: {found}")
        path.write_bytes(data[:-1])
        if (found := label(remote)) not in labels.get(name, {"R-11"}):
            wrong.append(f"{name} cut short: {found}")
        if name != "HEAD":
            path.unlink()
            if (found := label(remote)) not in labels.get(name, {"R-12"}):
                wrong.append(f"{name} removed: {found}")
        path.write_bytes(data)
    return wrong


def check(store_path):
    """Return what was wrong with the remotes of a store, and the number of remotes whose objects were damaged."""
    wrong, damaged, store, expected = [], 0, reader.Store(store_path), content(store_path)
    for way in WAYS:
        with tempfile.TemporaryDirectory() as temporary:
            remote = Path(temporary) / "remote"
            Writer(remote, *way).push(store_path, store)
            found = [] if content(remote) == expected else ["the content differs"]
            if sum(path.is_file() for path in remote.rglob("*")) <= MOST_DAMAGED:
                found, damaged = found + check_damage(remote), damaged + 1
            wrong += [f"{store_path}, cut as {way}: {what}" for what in found]
    return wrong, damaged


def fixtures(temporary):
    """Iterate over copies of the stores in the repository. An external storage cannot be in a remote."""
    for path in sorted(STORES.iterdir()):
        if path.name != "external":
            shutil.copytree(path, temporary / path.name, symlinks=True)
            filled = json.loads((path / "expected.json").read_text()).get("filled", {})
            for file, fill in filled.items():  # a large file of one repeated byte
                (temporary / path.name / file).write_bytes(bytes([fill["byte"]]) * fill["length_bytes"])
            yield temporary / path.name / "store"


def main():
    try:
        blake3(b"")
    except RuntimeError as error:
        print(f"check_remotes.py: skipped: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        stores = [Path(path) for path in sys.argv[1:]] or list(fixtures(Path(temporary)))
        results = [check(store) for store in stores]
    wrong = [what for found, _ in results for what in found]
    print(*wrong, f"{len(stores)} stores were cut in {len(WAYS)} ways, and each object of {sum(n for _, n in results)} remotes "
          f"was damaged, with {len(wrong)} wrong results", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
