"""Decodes the objects of a remote in a directory, and puts the files of its store together from them: REMOTE.md.

The digests in the names of objects are checked with the blake3 module, which `pip install blake3` installs.
"""
import os
import struct
import tempfile
from collections import namedtuple

from store_files import VERSION, Bounds, MissingFile, Record, check_digest, open_regular, read_at, require

MAX_REMOTE_MANIFEST = 64 << 20
MAX_MANIFEST = 16 << 20
MAX_OBJECT = 65 << 20
MAX_SEGMENT = 64 << 20
BLOCK = 64 << 10
MAX_INDEX_PAGE = 4 << 20
MAX_FILES = 8192
MAX_INDEX_PAGES = 65536
MAX_REPLACED = 1 << 20

# The directory and the extension of each kind of file in an index.
KINDS = ("generations", "man"), ("generations", "tab"), ("meta", "his"), ("storages", "bin"), ("storages", "sum")

Segment = namedtuple("Segment", "object offset length digests check")
PageRef = namedtuple("PageRef", "first count place")  # place: bytes or a segment


def blake3(data):
    """Return the BLAKE3 digest of bytes."""
    try:
        from blake3 import blake3 as hasher
    except ImportError:
        raise RuntimeError("reading a remote needs the blake3 module: pip install blake3") from None
    return hasher(data).digest()


def block_digests(data):
    """Return the digests of the blocks of a segment (chapter 3)."""
    return b"".join(blake3(data[start:start + BLOCK])[:16] for start in range(0, len(data), BLOCK))


def check_of(digests):
    """Return the check of a segment whose blocks have these digests."""
    return digests if len(digests) == 16 else blake3(digests)[:16]


class RemoteRecord(Record):
    """Decodes the values of remote manifests and pages."""

    def file_key(self):
        """Return the kind and the number of a file."""
        kind = self.uint()
        require(kind < len(KINDS), "R-6", f"the kind of file {kind} is unknown")
        return kind, self.uint()

    def segment(self):
        choice = self.uint()
        require(choice == 0, "R-6", f"the kind of segment {choice} is unknown")
        name, offset, length, digests = self.take(32), self.uint(), self.uint(), self.uint()
        digests_end = digests + -(-length // BLOCK) * 16
        self.check(1 <= length <= MAX_SEGMENT and offset + length <= MAX_OBJECT and digests_end <= MAX_OBJECT, "R-7",
                   f"a segment has {length} bytes at offset {offset} of an object, and digests at {digests}")
        self.check(length > BLOCK or digests == 0, "R-7", f"a segment of one block has digests at {digests}")
        return Segment(name, offset, length, digests, self.take(16))

    def place(self):
        choice = self.uint()
        require(choice <= 1, "R-6", f"the place of a page {choice} is unknown")
        if choice == 0:
            return self.take(self.uint())
        segment = self.segment()
        self.check(segment.length <= MAX_INDEX_PAGE, "R-8", f"a page has {segment.length} bytes")
        return segment

    def page_ref(self):
        page = PageRef(self.file_key(), self.uint(), self.place())
        self.check(1 <= page.count <= MAX_FILES, "R-8", f"a page has {page.count} files")
        return page

    def items(self, read, most, what):
        items = [read() for _ in range(self.count())]
        require(len(items) <= most, "R-10", f"a remote manifest has {len(items)} {what}")
        return items

    def files(self):
        """Return the segments of each file of a page."""
        files, last, count = {}, None, self.count()
        for _ in range(count):
            key, segments = self.file_key(), [self.segment() for _ in range(self.count())]
            if last is not None and last >= key:
                self.flaw = self.flaw or "the files of a page do not ascend"
            files[key], last = segments, key
        require(count <= MAX_FILES, "R-8", f"a page has {count} files")
        self.check(files, "R-8", "a page has no files")
        return files


def page_files(data):
    """Return the segments of each file of a page (chapter 4)."""
    require(len(data) <= MAX_INDEX_PAGE, "R-8", f"a page has {len(data)} bytes")
    record = RemoteRecord(data, Bounds(0, 0))
    files = record.files()
    record.end()
    return files


class Head:
    """HEAD (chapter 2), checked against the uuid in FORMAT."""

    def __init__(self, data, uuid):
        require(data.startswith(b"SMAPHEAD"), "R-1", "HEAD does not begin with the magic of the head of a remote")
        require(len(data) == 96, "R-2", "HEAD is not 96 bytes")
        check_digest("R-2", "HEAD", data[:80], data[80:])
        self.data, self.uuid = data, data[16:32]
        require(data[8:16] == VERSION, 3, "the version of HEAD is unknown")
        require(self.uuid == uuid, "R-3", "HEAD belongs to a different store")
        self.generation, self.manifest, self.length = struct.unpack_from("<Q32sQ", data, 32)
        require(self.generation >= 1, "R-4", "the generation of HEAD is 0")
        require(1 <= self.length <= MAX_REMOTE_MANIFEST, "R-5", f"a remote manifest of {self.length} bytes")


class RemoteManifest:
    """A remote manifest (chapter 3), checked against the uuid in FORMAT and the generation in HEAD."""

    def __init__(self, data, uuid, generation):
        require(len(data) <= MAX_REMOTE_MANIFEST, "R-5", "a remote manifest is longer than 64 MiB")
        require(data.startswith(b"SMAPREM\n") and len(data) >= 16, "R-5", "not a remote manifest")
        require(data[8:16] == VERSION, 3, "the version of the remote manifest is unknown")
        require(data[16:24] == struct.pack("<Q", len(data) - 24) if len(data) >= 24 else False, "R-5",
                "the remote manifest is not as long as it states")
        record = RemoteRecord(data[24:], Bounds(0, 0))
        record.check(record.take(16) == uuid, "R-3", "the remote manifest belongs to a different store")
        self.generation, self.nonce = record.uint(), record.take(16)
        self.previous = record.optional(lambda: (record.uint(), record.take(32)))
        record.check(self.generation >= 1, "R-4", "the generation of the remote manifest is 0")
        record.check(not self.previous or self.previous[0] >= 1, "R-4", "the generation of the previous one is 0")
        self.manifest = record.take(record.uint())
        record.check(1 <= len(self.manifest) <= MAX_MANIFEST, "R-5", f"a manifest of {len(self.manifest)} bytes")
        self.pages = record.items(record.page_ref, MAX_INDEX_PAGES, "pages")
        self.replaced = record.items(lambda: record.take(32), MAX_REPLACED, "replaced objects")
        record.check(all(map(bytes.__lt__, self.replaced, self.replaced[1:])), "R-10", "the replaced objects do not ascend")
        record.end()
        for page, following in zip(self.pages, self.pages[1:]):
            require(page.first < following.first, "R-9", "the pages do not ascend")
        for position, page in enumerate(self.pages):
            if isinstance(page.place, bytes):
                self.page(position, page.place)
        require(self.generation == generation, "R-4", "the generation of the remote manifest is not that of HEAD")

    def page(self, position, data):
        """Return the segments of each file of a page, after checking what this manifest states of it."""
        page, files = self.pages[position], page_files(data)
        require(len(files) == page.count, "R-8", f"a page has {len(files)} files, not {page.count}")
        keys = list(files)
        require(keys[0] == page.first, "R-9", "a page does not begin with the file that its remote manifest states")
        is_last = position + 1 == len(self.pages)
        require(is_last or keys[-1] < self.pages[position + 1].first, "R-9", "a page has a file of the next page")
        return files


class Remote:
    """A remote in a directory, at the generation that was newest when it was opened."""

    def __init__(self, path, uuid):
        self.path, self.uuid, self.page_cache = path, uuid, {}
        self.head = self._head()
        path = f"generations/{self.head.generation:016x}-{self.head.manifest.hex()}"
        data = self._object(path, self.head.manifest, self.head.length)
        self.manifest = RemoteManifest(data, uuid, self.head.generation)

    def open(self, name, rule, missing=None):
        """Put a file of the store together in a temporary file, and return it with its size."""
        directory, _, file_name = name.partition("/")
        number, _, extension = file_name.partition(".")
        segments = self._segments((KINDS.index((directory, extension)), int(number, 16)))
        if segments is None:
            raise MissingFile(missing or rule, f"{self.path} has no {name}")
        file = tempfile.TemporaryFile()
        for segment in segments:
            file.write(self._segment(segment))
        file.flush()
        file.seek(0)
        return file, sum(segment.length for segment in segments)

    def _head(self):
        file, _ = open_regular(os.path.join(self.path, "HEAD"), "R-1")
        with file:
            return Head(file.read(97), self.uuid)

    def _segments(self, key):
        """Return the segments of a file, or None."""
        position = sum(page.first <= key for page in self.manifest.pages) - 1
        if position < 0:
            return None
        if position not in self.page_cache:
            place = self.manifest.pages[position].place
            data = place if isinstance(place, bytes) else self._segment(place)
            self.page_cache[position] = self.manifest.page(position, data)
        return self.page_cache[position].get(key)

    def _segment(self, segment):
        """Return the bytes of a segment, after checking them."""
        path = f"objects/{segment.object.hex()}"
        file, size = open_regular(os.path.join(self.path, path), "R-12")
        with file:
            require(segment.offset + segment.length <= size, "R-11", f"{path} ends before one of its segments")
            data = read_at(file, segment.length, segment.offset, "R-11")
            digests = block_digests(data)
            require(check_of(digests) == segment.check, "R-11", f"the segment at {segment.offset} of {path} was changed")
            if segment.length > BLOCK:
                require(segment.digests + len(digests) <= size, "R-11", f"{path} ends before the digests of a segment")
                found = read_at(file, len(digests), segment.digests, "R-11")
                require(found == digests, "R-11", f"the digests at {segment.digests} of {path} were changed")
        return data

    def _object(self, path, name, length):
        """Return all bytes of an object, after checking them."""
        file, size = open_regular(os.path.join(self.path, path), "R-12")
        with file:
            require(size == length, "R-11", f"{path} has {size} bytes, not {length}")
            data = read_at(file, length, 0, "R-11")
        require(blake3(data) == name, "R-11", f"{path} does not have the digest in its name")
        return data
