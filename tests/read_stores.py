"""Reads stores with the reader in `format/`, and compares them with the expected results beside each.

    python3 tests/read_stores.py DIR...

Each DIR has a `store` and an `expected.json`: the content of a good store, or the rule that a damaged one breaks.
"""

import contextlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "format"))
import reader  # noqa: E402


def check_good(store, expected):
    assert store.generation == expected["generation"]
    assert store.attributes == expected["attributes"]
    for scope, attributes in expected.get("attributes_of", {}).items():
        assert store.attributes_of(scope) == attributes, scope
    assert list(store.names()) == [tensor["name"] for tensor in expected["tensors"]]
    external = {storage["id"] for storage in expected["storages"] if storage["kind"] == "external"}
    for tensor in expected["tensors"]:
        header = reader.describe(tensor["name"], store.header(tensor["name"]))
        header = json.loads(json.dumps(header))
        assert all(value == tensor[key] for key, value in header.items()), f"{header} and {tensor}"
        if tensor["storage"] not in external:
            pieces = store.elements(tensor["name"])
            assert b"".join(piece.tobytes() for piece in pieces).hex() == tensor["bytes"], tensor["name"]
    store.verify()


def rule_of(path):
    """Returns the rule by which a damaged store is refused when it is opened, read or verified."""
    try:
        store = reader.Store(path)
        for name in store.names():
            with contextlib.suppress(KeyError):  # a search misses listed entries if they do not ascend
                for _ in store.elements(name):
                    pass
        store.verify()
    except reader.FormatError as error:
        return error.rule
    return None


def main(dirs):
    counts = {"read": 0, "refused": 0}
    for directory in dirs:
        with open(os.path.join(directory, "expected.json"), encoding="utf-8") as file:
            expected = json.load(file)
        path = os.path.join(directory, "store")
        if "tensors" in expected:
            store = reader.Store(path)
            check_good(store, expected)
            assert {name: tag.generation for name, tag in store.tags()} == expected.get("tags", {})
            for tag, generation in expected.get("tags", {}).items():
                check_good(reader.Store(path, at=tag), expected["tagged"][str(generation)])
            counts["read"] += 1
        else:
            said = [expected[key] for key in ("open", "load") if key in expected] or expected["verify"]
            rule = rule_of(path)
            assert rule in [one["rule"] for one in said], f"{expected}: refused by {rule}"
            counts["refused"] += 1
    print(f"python read {counts['read']} stores as rust does, and refused {counts['refused']} by the same rules")


main(sys.argv[1:])
