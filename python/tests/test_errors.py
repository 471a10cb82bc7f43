"""Messages of errors have the words of Python, not those of Rust."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stridemap
from stridemap import _errors

ROOT = Path(__file__).parents[2]

#: A comment, a character or a text of Rust.
_LITERAL = re.compile(r"//[^\n]*|'(?:\\.|[^'\\])'|\"((?:\\.|[^\"\\])*)\"", re.DOTALL)

#: A path of Rust, and names of the library in Rust that the package has under different names.
_RUST = re.compile(
    r"[A-Za-z]::[A-Za-z]|\b(guards?|appender|save_as|clone_data|to_dtype|on_existing|open_mapped|open_or_create"
    r"|lock_timeout|StoreOptions|allow_network_mapping)\b|\b[FRD]-[0-9]+\b"
)

#: What the package does not call: appenders, arithmetic and typed views of Rust, and Rust's own lending of elements.
_NOT_CALLED = {
    "src/store/appender.rs",
    "src/tensor/access.rs",
    "src/tensor/arithmetic.rs",
    "src/tensor/dlpack/lend.rs",
    "src/tensor/guard.rs",
    "src/tensor/index_select.rs",
}


def _literals(path: Path) -> Iterator[str]:
    text = path.read_text().split("#[cfg(test)]\nmod")[0]
    for found in _LITERAL.finditer(text):
        # Attributes have texts that are for readers of the code.
        if found[1] and not re.search(r"(reason|doc|must_use|feature|name|with) ?= ?$", text[: found.start()]):
            yield re.sub(r"\\\n\s*", "", found[1])


def test_no_message_of_the_library_keeps_words_of_rust() -> None:
    files = [path for part in ("src", "remote/src") for path in sorted((ROOT / part).rglob("*.rs"))]
    texts = [
        (str(path.relative_to(ROOT)), text)
        for path in files
        if "test" not in path.name and str(path.relative_to(ROOT)) not in _NOT_CALLED
        for text in _literals(path)
        # A message has words; "retain" and the like are also steps and names.
        if " " in text and not text.startswith("# ")
    ]
    assert sum(bool(_RUST.search(text)) for _, text in texts) > 8, "the messages are not found where they are expected"
    left = [(path, shown) for path, text in texts if _RUST.search(shown := str(_errors.make("Corrupt", text)))]
    assert left == []


def test_translations_are_of_messages_that_exist() -> None:
    texts = [text for part in ("src", "remote/src") for path in (ROOT / part).rglob("*.rs") for text in _literals(path)]
    # A message that is composed has its beginning elsewhere.
    beginnings = ("retain: the policy has", "the file already exists, and", "state their type (", "say so (")
    composed = {theirs for theirs in _errors._WORDS if theirs.startswith(beginnings) or theirs.endswith(": ") or "this thread has" in theirs}
    assert [theirs for theirs in _errors._WORDS if not any(theirs in text for text in texts) and theirs not in composed] == []


def test_refusals_say_what_to_do_in_python(store: stridemap.Store) -> None:
    store["sealed"] = np.zeros(3)
    store.save("mutable", np.zeros(3), kind="mutable")
    with pytest.raises(ValueError, match="save the name again with other elements, or with kind='mutable'"), store["sealed"].lock():
        pass
    with pytest.raises(ValueError, match='save it with kind="live" to make a live copy'):
        store["sealed"].live()
    with pytest.raises(stridemap.NameExistsError, match="give replace=True"):
        store.save("sealed", 1, replace=False)
    with store["mutable"].lock(), pytest.raises(TimeoutError, match="exclusive lock of the storage; use its array, or release"):
        store["mutable"].numpy()
    with store["mutable"].lock(exclusive=False), pytest.raises(TimeoutError, match="shared lock of the storage; release it"):
        with store["mutable"].lock():
            pass
    with pytest.raises(ValueError, match="prune: no rule keeps a tag; give keep_last"):
        store.prune()
