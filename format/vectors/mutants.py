#!/usr/bin/env python3
"""Tests the vectors: changes reader.py, store_files.py and remote_files.py in many ways, and checks that some vector
notices each.

    python3 mutants.py   print each change that no vector notices; exit with 1 if there is one

The changes are those in MUTANTS, and the removal of each check that is not in NOT_NEEDED. What is in these lists and no
longer in the source is an error.
"""
import ast
import sys
import types
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent
READERS = "store_files", "remote_files", "reader"  # in the order of their imports
PATHS = {**{name: HERE.parent / f"{name}.py" for name in READERS}, "check": HERE / "check.py"}
SOURCES = {name: path.read_text() for name, path in PATHS.items()}

# What is changed, the text in store_files.py or remote_files.py, and its replacement.
MUTANTS = [
    ("F-4: names of 4097 bytes", "len(raw) <= 4096", "len(raw) <= 4097"),
    ("F-4: names of at most 4095 bytes", "len(raw) <= 4096", "len(raw) <= 4095"),
    ("F-4: empty names", "least <= len(raw)", "0 <= len(raw)"),
    ("F-4: no empty scope", "record.name(least=0)", "record.name()"),
    ("F-4: checked for names of children", "(Record.text, Record.name, Record.tensor)",
     "(Record.name, Record.name, Record.tensor)"),
    ("F-12: checked for ids of children", "Record.uint, Record.storage_id,", "Record.storage_id, Record.storage_id,"),
    ("F-18: checked for garbage of children", "Record.any_garbage_key, Record.garbage_key,",
     "Record.garbage_key, Record.garbage_key,"),
    ("F-4: tags may be empty", "Record.text, Record.name, Record.tag", "Record.text, Record.text, Record.tag"),
    ("F-4: not checked for tags in a manifest", "record.changes(record.name, record.tag)",
     "record.changes(record.text, record.tag)"),
    ("F-4: not checked for messages", "record.int(), record.optional(record.name)",
     "record.int(), record.optional(record.text)"),
    ("F-4: not checked for messages of tags", "Tag(self.generation(), self.optional(self.name))",
     "Tag(self.generation(), self.optional(self.text))"),
    ("F-5: 63 dimensions", "len(items) <= 64", "len(items) <= 63"),
    ("F-5: 65 dimensions", "len(items) <= 64", "len(items) <= 65"),
    ("F-5: no limit on names of dimensions", "self.optional(lambda: self.list(self.dim_name))",
     "self.optional(lambda: [self.dim_name() for _ in range(self.count())])"),
    ("F-5: before the items", "items = tuple(read() for _ in range(self.count()))",
     "items = range(self.count()); require(len(items) <= 64, 5, ''); items = tuple(read() for _ in items)"),
    ("F-13: before the entries", "key, value = read_key(), read_value()",
     "require(_ < most, 13, ''); key, value = read_key(), read_value()"),
    ("F-13: at most 4095 changes", "MAX_CHANGES = 4096", "MAX_CHANGES = 4095"),
    ("F-13: 4097 changes", "MAX_CHANGES = 4096", "MAX_CHANGES = 4097"),
    ("F-13: no limit on tags", "record.changes(record.name, record.tag)",
     "record.map(record.name, lambda: record.optional(record.tag), 1 << 20)"),
    ("F-13: no limit on kept generations", "record.changes(record.kept_key, record.kept)",
     "record.map(record.kept_key, lambda: record.optional(record.kept), 1 << 20)"),
    ("F-13: no limit on garbage", "record.changes(record.garbage_key, record.garbage)",
     "record.map(record.garbage_key, lambda: record.optional(record.garbage), 1 << 20)"),
    ("F-14: any byte is a flag", "require(flag <= 1, 14,", "require(True, 14,"),
    ("F-14: garbage by generation first", "return self.flag(), self.generation(), self.storage_id()",
     "flag = self.flag(); return self.generation(), flag, self.storage_id()"),
    ("F-14: kept generations by number", "self.key = self.flag(), self.generation()",
     "flag = self.flag(); self.key = self.generation(), flag"),
    ("an unsigned time", "self.time, self.message, next_id = record.int(),",
     "self.time, self.message, next_id = record.uint(),"),
    ("an unsigned time of a kept generation", "Kept(self.int(),", "Kept(self.uint(),"),
    ("F-18: generations are not checked", "self.check(1 <= value <= last, 18,", "self.check(True, 18,"),
    ("F-18: generation 0", "self.check(1 <= value <= last, 18,", "self.check(value <= last, 18,"),
    ("F-18: less than the manifest's", "self.check(1 <= value <= last, 18,", "self.check(1 <= value < last, 18,"),
    ("F-18: a table of a kept generation up to the manifest's", "lambda: self.generation(generation)", "self.generation"),
    ("F-18: a tag of any generation", "Tag(self.generation(),", "Tag(self.uint(),"),
    ("F-18: a kept generation is any", "self.key = self.flag(), self.generation()", "self.key = self.flag(), self.uint()"),
    ("F-18: garbage of any generation", "return self.flag(), self.generation(), self.storage_id()",
     "return self.flag(), self.uint(), self.storage_id()"),
    ("F-12: garbage with any id", "return self.flag(), self.generation(), self.storage_id()",
     "return self.flag(), self.generation(), self.uint()"),
    ("F-12: a kept generation has a lower next id", "1 <= kept.next_id <= self.bounds.next_id",
     "1 <= kept.next_id < self.bounds.next_id"),
    ("F-12: a kept generation has the next id 0", "1 <= kept.next_id <= self.bounds.next_id",
     "kept.next_id <= self.bounds.next_id"),
    ("F-12: a kept generation has any next id", "1 <= kept.next_id <= self.bounds.next_id", "1 <= kept.next_id"),
    ("F-28: a tagged generation without tags", "is_tagged == (kept.tag_count > 0)",
     "is_tagged or not kept.tag_count"),
    ("F-28: a generation without tags that has some", "is_tagged == (kept.tag_count > 0)",
     "kept.tag_count or not is_tagged"),
    ("F-28: a removed generation counts as listed", "if kept and self.kept.get((not is_tagged, number))]",
     "if (not is_tagged, number) in self.kept]"),
    ("F-28: garbage is any storage", "Record.any_garbage_key, Record.garbage_key, Record.garbage)",
     "Record.any_garbage_key, Record.garbage_key, Record.storage)"),
    ("F-23: a table of anything", "record.table_ref((STORAGES, TENSORS))", "record.table_ref(range(5))"),
    ("F-23: a history of anything", "record.table_ref((TAGS, KEPT, GARBAGE))", "record.table_ref(range(5))"),
    ("F-23: a table with garbage", "record.table_ref((STORAGES, TENSORS))", "record.table_ref((STORAGES, TENSORS, GARBAGE))"),
    ("F-23: a history without garbage", "record.table_ref((TAGS, KEPT, GARBAGE))", "record.table_ref((TAGS, KEPT))"),
    ("F-13: no limit on attributes", "MAX_ATTRIBUTES = 1 << 20", "MAX_ATTRIBUTES = 1 << 30"),
    ("F-13: one byte of attributes less", "MAX_ATTRIBUTES = 1 << 20", "MAX_ATTRIBUTES = (1 << 20) - 1"),
    ("F-13: without plus 16", "16 + len(key[0])", "len(key[0])"),
    ("F-13: without scopes", "16 + len(key[0])", "16"),
    ("F-13: without keys", "+ len(key[1])", ""),
    ("F-13: without values", "+ len(value))", ")"),
    ("F-15: no limit of 16 MiB", "MAX_MANIFEST = 16 << 20", "MAX_MANIFEST = 1 << 40"),
    ("F-15: less than 16 MiB", "MAX_MANIFEST = 16 << 20", "MAX_MANIFEST = (16 << 20) - 1"),
    ("F-18: a manifest of generation 0", "record.check(generation >= 1,", "record.check(generation >= 0,"),
    ("F-12: the next id 0", "record.check(next_id >= 1,", "record.check(next_id >= 0,"),
    ("F-11: one byte more", "offset + length <= size", "offset + length <= size + 1"),
    ("F-11: one byte less", "offset + length <= size", "offset + length < size"),
    ("F-17: after F-18", "record.check(record.take(16) == uuid, 17, ",
     "state = record.take(16) == uuid, 17; record.check(record.data[16] == generation, 18, ''); record.check(*state, "),
    ("F-22: slots that are equal", "map(int.__lt__", "map(int.__le__"),
    ("F-22: any number of pages", "pages * PAGE == len(data) >= end_of_slots", "len(data) >= end_of_slots"),
    ("F-22: pages after the end of the file", "min(max(pages, 1), MAX_PAGES, self.reference.pages - page)",
     "min(max(pages, 1), MAX_PAGES)"),
    ("F-22: at most 8 pages", "MAX_PAGES = 9", "MAX_PAGES = 8"),
    ("F-22: 10 pages", "MAX_PAGES = 9", "MAX_PAGES = 10"),
    ("F-23: an inner node with one child", "(2 if node.level else", "(1 if node.level else"),
    ("F-23: an empty leaf", "(2 if node.level else 1)", "(2 if node.level else 0)"),
    ("F-23: an empty root", "(2 if node.level else 1)", "(2 if node.level else level is not None)"),
    ("F-23: a root at page 0 of a tree without entries", "if count else None", ""),
    ("F-23: level 41", "MAX_LEVEL = 40", "MAX_LEVEL = 41"),
    ("F-23: a child of any level", "node.level == level", "True"),
    ("F-24: before the child's own entry", "self.entry(child, 0)[0] == key", "self.key_of(child.entries[0]) == key"),
    ("F-24: keys that are equal", "last < (key, layer)", "last <= (key, layer)"),
    ("canonical form before the end of the record", "self.flaw = self.flaw or \"an integer",
     "require(False, 14, 'early'); self.flaw = \"an integer"),
    ("values before canonical form", "        require(not self.flaw, 14, self.flaw)\n        if self.wrong:\n"
     "            raise self.wrong\n",
     "        if self.wrong:\n            raise self.wrong\n        require(not self.flaw, 14, self.flaw)\n"),
    ("values before the rest of the record", "            self.wrong = FormatError(rule, message)",
     "            raise FormatError(rule, message)"),
    ("R-5: 64 MiB less 1 byte", "MAX_REMOTE_MANIFEST = 64 << 20", "MAX_REMOTE_MANIFEST = (64 << 20) - 1"),
    ("R-5: 64 MiB and 1 byte", "MAX_REMOTE_MANIFEST = 64 << 20", "MAX_REMOTE_MANIFEST = (64 << 20) + 1"),
    ("R-5: HEAD with a length of 0", "1 <= self.length <=", "0 <= self.length <="),
    ("R-5: a manifest of 0 bytes", "1 <= len(self.manifest)", "0 <= len(self.manifest)"),
    ("R-5: a manifest of 16 MiB and 1 byte", "len(self.manifest) <= MAX_MANIFEST", "len(self.manifest) <= MAX_MANIFEST + 1"),
    ("R-4: previous of generation 0", "self.previous[0] >= 1", "self.previous[0] >= 0"),
    ("R-6: kind 5 of files", "kind < len(KINDS)", "kind <= len(KINDS)"),
    ("R-6: no kind 4 of files", "kind < len(KINDS)", "kind < len(KINDS) - 1"),
    ("R-7: 65 MiB less 1 byte", "MAX_OBJECT = 65 << 20", "MAX_OBJECT = (65 << 20) - 1"),
    ("R-7: 65 MiB and 1 byte", "MAX_OBJECT = 65 << 20", "MAX_OBJECT = (65 << 20) + 1"),
    ("R-7: 64 MiB less 1 byte", "MAX_SEGMENT = 64 << 20", "MAX_SEGMENT = (64 << 20) - 1"),
    ("R-7: 64 MiB and 1 byte", "MAX_SEGMENT = 64 << 20", "MAX_SEGMENT = (64 << 20) + 1"),
    ("R-7: 0 bytes", "1 <= length <=", "0 <= length <="),
    ("R-7: only the length", "offset + length <= MAX_OBJECT", "length <= MAX_OBJECT"),
    ("R-7: wraps", "offset + length <= MAX_OBJECT", "(offset + length) % (1 << 64) <= MAX_OBJECT"),
    ("R-7: before the rest of the page", "self.check(1 <= length", "require(1 <= length"),
    ("R-7: digests at any place", "digests_end <= MAX_OBJECT", "True"),
    ("R-7: digests wrap", "digests_end <= MAX_OBJECT", "digests_end % (1 << 64) <= MAX_OBJECT"),
    ("R-7: a digest too few", "-(-length // BLOCK)", "(length // BLOCK)"),
    ("R-7: digests of one block", "length > BLOCK or digests == 0", "length >= BLOCK or digests == 0"),
    ("R-8: 4 MiB less 1 byte", "MAX_INDEX_PAGE = 4 << 20", "MAX_INDEX_PAGE = (4 << 20) - 1"),
    ("R-8: 4 MiB and 1 byte", "MAX_INDEX_PAGE = 4 << 20", "MAX_INDEX_PAGE = (4 << 20) + 1"),
    ("R-8: 8191 files", "MAX_FILES = 8192", "MAX_FILES = 8191"),
    ("R-8: 8193 files", "MAX_FILES = 8192", "MAX_FILES = 8193"),
    ("R-8: 0 files stated", "1 <= page.count", "0 <= page.count"),
    ("R-8: files are counted once", 'require(count <= MAX_FILES, "R-8"', 'require(len(files) <= MAX_FILES, "R-8"'),
    ("R-9: pages that are equal", "require(page.first < following.first", "require(page.first <= following.first"),
    ("R-9: overlap by one file", "keys[-1] < self.pages", "keys[-1] <= self.pages"),
    ("R-10: 65537 pages", "MAX_INDEX_PAGES = 65536", "MAX_INDEX_PAGES = 65537"),
    ("R-10: before the items", "items = [read() for _ in range(self.count())]\n        require",
     "items = range(self.count()); require(len(items) <= most, 'R-10', ''); items = [read() for _ in items]\n        require"),
    ("R-10: replaced objects that are equal", "bytes.__lt__", "bytes.__le__"),
    ("F-14: files that are equal", "last >= key:\n                self.flaw = self.flaw or \"the files",
     "last > key:\n                self.flaw = self.flaw or \"the files"),
    ("F-14: the check before the length", "name, offset, length, digests = self.take(32), self.uint(), self.uint(), self.uint()",
     "name, length, offset, digests = self.take(32), self.uint(), self.uint(), self.uint()"),
]

# The messages of checks without which every vector has the same result, and why.
SEVERAL_FILES = "a vector is one whole, regular file"
NOT_NEEDED = {
    "is not a regular file": SEVERAL_FILES,
    "a file ends early": SEVERAL_FILES,
    "is not a directory": SEVERAL_FILES,
    "has no manifest": SEVERAL_FILES,
    "has no record": SEVERAL_FILES,
    "is shorter than its record says": SEVERAL_FILES,
    "the .sum file of {what} was changed": SEVERAL_FILES,
    "does not have a digest for each chunk": SEVERAL_FILES,
    "refer to it": SEVERAL_FILES,
    "the kept generations do not count": SEVERAL_FILES,
    "is listed as kept by a tag, but is not": SEVERAL_FILES,
    "and is listed as one without": SEVERAL_FILES,
    "has a history of its own": SEVERAL_FILES,
    "is not as the newest manifest says": SEVERAL_FILES,
    "is neither used nor listed as garbage": SEVERAL_FILES,
    "and there are only 0 to 4": "such a node is no root and no child, which breaks the same rule",
    "before the items that it counts": "the first item that is missing breaks the same rule",
    "are inside other nodes": "then the other node is not reached, or the keys in it break other rules",
    "ends before one of its segments": SEVERAL_FILES,
    "the segment at {segment.offset}": SEVERAL_FILES,
    "ends before the digests of a segment": SEVERAL_FILES,
    "the digests at {segment.digests}": SEVERAL_FILES,
    "{path} has {size} bytes": SEVERAL_FILES,
    "does not have the digest in its name": SEVERAL_FILES,
    "HEAD is not 96 bytes": "a digest of another length does not match, which breaks the same rule",
    "the generation of the remote manifest is 0": "that of HEAD is not 0, which breaks the same rule",
    "two links lead to": "the keys do not ascend, which breaks the same rule",
}


def load(sources):
    """Return check.py as a module. It uses these sources of the others."""
    for name, source in sources.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(PATHS[name])
        exec(source if isinstance(source, types.CodeType) else compile(source, PATHS[name], "exec"), module.__dict__)
    return sys.modules["check"]


def noticed_by(sources, rule=""):
    """Return a vector with a wrong result, or None. Those of a rule are read first."""
    check = load(sources)
    for path in sorted(check.all_vectors(), key=lambda path: not path.name.startswith(f"{rule}-")):
        try:
            wrong = check.check(path)
        except Exception as error:  # a changed reader may fail in any way
            wrong = repr(error)
        if wrong:
            return f"{path.parent.name}/{path.name}"
    return None


def replaced(source, what, old, new):
    if source.count(old) != 1:
        raise SystemExit(f"mutants.py: {what}: {source.count(old)} times in the source, not once: {old!r}")
    return source.replace(old, new)


def checks(source):
    """Return the condition, the rule and the message of each check in a source."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) == 3]
    named = [node for node in calls if getattr(node.func, "id", getattr(node.func, "attr", "")) in ("require", "check")]
    return [(node.args[0], *map(ast.unparse, node.args[1:])) for node in named]


def without(source, condition):
    """Return the source with `True` in place of the condition of a check."""
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[:condition.lineno - 1]) + lines[condition.lineno - 1][:condition.col_offset]
    after = lines[condition.end_lineno - 1][condition.end_col_offset:] + b"".join(lines[condition.end_lineno:])
    return (before + b"True" + after).decode()


def main():
    if noticed_by(SOURCES):
        print("mutants.py: check.py fails without any change", file=sys.stderr)
        return 2
    mutants = []
    for what, old, new in MUTANTS:
        name = "remote_files" if what.startswith("R-") or old not in SOURCES["store_files"] else "store_files"
        mutants.append((what, name, replaced(SOURCES[name], what, old, new)))
    not_needed = dict(NOT_NEEDED)
    for name in READERS:
        for condition, rule, message in checks(SOURCES[name]):
            listed = [part for part in NOT_NEEDED if part in message]
            if not listed:
                label = ast.literal_eval(rule) if rule.startswith("'") else f"F-{rule}"
                mutants.append((f"{label}: without the check {message}", name, without(SOURCES[name], condition)))
            not_needed = {part: why for part, why in not_needed.items() if part not in listed}
    if not_needed:
        raise SystemExit(f"mutants.py: NOT_NEEDED has messages that are not in the source: {list(not_needed)}")
    missed = []
    for what, name, source in mutants:
        vector = noticed_by({**SOURCES, name: source}, what.split(":")[0])
        if "-v" in sys.argv:
            print(f"{what}: {vector}")
        if not vector:
            missed.append(what)
    print(*missed, f"{len(mutants) - len(missed)} of {len(mutants)} changes are noticed", sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
