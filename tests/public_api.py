#!/usr/bin/env python3
"""Counts the public types and functions of the `stridemap` crate.

    tests/public_api.py            the counts, by type
    tests/public_api.py --unused   also the functions that nothing outside `src` calls

A type is a struct, an enum or a trait that `src/lib.rs` exports, by itself or in a public module, and that the
documentation shows. A function is a public method of such a type, a method of such a trait, or an exported function or
macro. Methods of traits of other crates (`From`, `Display`) are not counted.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.rs"))
OF_FORMAT = {"DType", "Header", "Rule"}
USERS = ["README.md", "docs", "cli", "interop", "candle", "python", "examples", "benches"]


def code(path):
    """The source without comments."""
    return "\n".join(line for line in path.read_text().split("\n") if not line.strip().startswith("//"))


def end_of_block(text, start):
    """The position after the block that begins at the first brace after `start`."""
    depth = 0
    for place in range(text.index("{", start), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError("a block does not end")


def exported():
    """The names that `lib.rs` and its public modules export, with `#[doc(hidden)]` items left out."""
    lib = (ROOT / "src/lib.rs").read_text()
    texts = [lib]
    modules = re.findall(r"^(#\[[^\n]*\n(?://[^\n]*\n)*)?pub mod (\w+)(;| \{)", lib, re.M)
    for attribute, module, _ in modules:
        if not attribute:
            candidates = [ROOT / f"src/{module}.rs", ROOT / f"src/{module}/mod.rs"]
            texts += [path.read_text() for path in candidates if path.exists()]
    names = set()
    for text in texts:
        text = re.sub(r"#\[doc\(hidden\)\]\n(//[^\n]*\n)*\s*pub use [^;]*;", "", text)
        for path in re.findall(r"^\s*pub use ([^;]*);", text, re.M):
            listed = re.search(r"\{(.*)\}", path, re.S)
            names |= set(re.findall(r"\w+", listed[1] if listed else path.split("::")[-1]))
    return names


def main():
    names, defined = exported(), {}
    for path in SOURCES:
        for kind, name in re.findall(r"^pub (struct|enum|trait|fn|type) (\w+)", code(path), re.M):
            if name in names:
                defined[name] = kind
    generated = {name for name in names if re.fullmatch(r"F8E\w+", name)}
    types = {name for name, kind in defined.items() if kind not in ("fn", "type")} | generated
    # From the crate of the format.
    types |= names & OF_FORMAT

    functions = defaultdict(list)
    for name, kind in defined.items():
        if kind == "fn":
            functions["(free functions)"].append(name)
    for path in SOURCES + [ROOT / "format/src/dtype.rs", ROOT / "format/src/error.rs", ROOT / "format/src/header.rs"]:
        text = re.sub(r"#\[cfg\(feature = \"simulation\"\)\]\s*pub fn|#\[doc\(hidden\)\]\s*(pub )?fn", "hidden", code(path))
        is_of_format = path not in SOURCES
        functions["(macros)"] += re.findall(r"#\[macro_export\]\s*macro_rules! (\w+)", text)
        for found in re.finditer(r"^\s*(?:unsafe )?impl(?:<.*>)? ([\w$]+)[^\n{;]*\{", text, re.M):
            owner = found[1]
            if " for " in found[0] or (owner not in types and owner != "$name"):
                continue
            if is_of_format and owner not in OF_FORMAT:
                continue
            methods = re.findall(
                r"^\s*pub (?:const |unsafe )*fn (\w+)", text[found.start() : end_of_block(text, found.start())], re.M
            )
            for owner in generated if owner == "$name" else [owner]:
                functions[owner] += methods
        for found in re.finditer(r"^pub trait (\w+)", text, re.M):
            if found[1] in types:
                block = text[found.start() : end_of_block(text, found.start())]
                functions[found[1]] += re.findall(r"^    fn (\w+)", block, re.M)
    functions = {owner: sorted(set(found)) for owner, found in functions.items() if found}

    for owner in sorted(functions, key=lambda owner: -len(functions[owner])):
        print(f"{len(functions[owner]):4}  {owner}: {' '.join(functions[owner])}")
    silent = sorted(types - set(functions))
    print(f"   0  without functions: {' '.join(silent)}")
    print(f"\n{len(types)} types, {sum(map(len, functions.values()))} functions")

    if "--unused" in sys.argv:
        listed = subprocess.run(["git", "ls-files", *USERS], cwd=ROOT, capture_output=True, text=True, check=True)
        users = [path for path in listed.stdout.split() if path.endswith((".rs", ".md"))]
        text = "\n".join((ROOT / path).read_text() for path in users)
        print("\nNot called outside `src`:")
        for owner, found in sorted(functions.items()):
            unused = [name for name in found if not re.search(rf"[.:]{name}\b", text)]
            if unused:
                print(f"      {owner}: {' '.join(unused)}")


if __name__ == "__main__":
    main()
