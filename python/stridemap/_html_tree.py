"""A tree of the names of tensors, as HTML. Names are divided after each `.` and `/`."""

from __future__ import annotations

import os.path
import re
from collections import deque
from dataclasses import dataclass, field
from html import escape

from ._html import size, text

#: The name of a tensor, its dtype, its shape, and the number of its bytes.
Info = tuple[str, str, list[int], int]

#: The number of rows in one group of a tree, in the whole tree, and of groups within groups.
_MAX_IN_GROUP, _MAX_ROWS, _MAX_DEPTH = 100, 1000, 20

#: A tree with this many rows is shown open.
_FEW_ROWS = 30


@dataclass
class _Group:
    """Tensors whose names begin with the same `start` characters. If `children` is empty, the group is not opened."""

    label: str
    start: int
    depth: int
    tensors: list[Info]
    children: list[_Group | Info] = field(default_factory=list)
    hidden: int = 0


def tree(tensors: list[Info], total: int) -> str:
    """Return a tree of tensors. Its length is bounded: it ends groups early that have many names."""
    root = _Group("", 0, 0, tensors)
    groups, row_count = deque([root]), 0
    # By level, so that a large group at the beginning leaves rows for what follows it.
    while groups:
        group = groups.popleft()
        children = _children(group)
        shown = children[: min(_MAX_IN_GROUP, _MAX_ROWS - row_count)]
        group.children = shown
        group.hidden = sum(_count(child) for child in children[len(shown) :])
        row_count += len(shown)
        groups += [child for child in shown if isinstance(child, _Group) and child.depth <= _MAX_DEPTH]
    return _rows(root, max(total, 1), row_count <= _FEW_ROWS)


def _count(child: _Group | Info) -> int:
    return len(child.tensors) if isinstance(child, _Group) else 1


def _children(group: _Group) -> list[_Group | Info]:
    """Return the tensors of a group and the groups within it, with numbers in their order."""
    parts: dict[str, list[Info]] = {}
    for tensor in group.tensors:
        end = re.compile("[./]").search(tensor[0], group.start)
        # A name that ends with a separator is a tensor, and not a group; no label of a group is empty.
        is_tensor = end is None or end.end() == len(tensor[0])
        parts.setdefault("" if is_tensor or end is None else tensor[0][group.start : end.end()], []).append(tensor)
    children: list[tuple[str, _Group | Info]] = [(tensor[0][group.start :], tensor) for tensor in parts.pop("", [])]
    for label, members in parts.items():
        if len(members) == 1:
            children.append((members[0][0][group.start :], members[0]))
            continue
        # What all names have in common is one label, such as "model.layers.".
        common = os.path.commonprefix([tensor[0] for tensor in members])
        length = max(common.rfind("."), common.rfind("/")) + 1
        whole = common[group.start : length] if length > group.start + len(label) else label
        children.append((whole, _Group(whole, group.start + len(whole), group.depth + 1, members)))
    return [child for _, child in sorted(children, key=lambda pair: _in_order(pair[0]))]


def _in_order(label: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers by their value: "layer.9" before "layer.10"."""
    parts = re.split("([0-9]+)", label)
    numbers = [part.lstrip("0") for part in parts]
    return [(1, len(n), n) if at % 2 else (0, 0, part) for at, (part, n) in enumerate(zip(parts, numbers, strict=True))]


def _rows(group: _Group, total: int, is_open: bool) -> str:
    parts = []
    for child in group.children:
        if isinstance(child, _Group):
            nbytes = sum(tensor[3] for tensor in child.tensors)
            row = _cells(child.label, f"{len(child.tensors):,} tensors", "", nbytes, total)
            if child.children:
                opened = " open" if is_open else ""
                parts.append(f"<details{opened}><summary>{row}</summary><div>{_rows(child, total, is_open)}</div></details>")
            else:
                parts.append(f'<div class="sm-row">{row}</div>')
        else:
            name, dtype, shape, nbytes = child
            row = _cells(name[group.start :], str(tuple(shape)), dtype, nbytes, total)
            parts.append(f'<div class="sm-row">{row}</div>')
    if group.hidden:
        parts.append(f'<div class="sm-row sm-faint">and {group.hidden:,} more</div>')
    return "".join(parts)


def _cells(label: str, shape: str, dtype: str, nbytes: int, total: int) -> str:
    share = 100 * nbytes / total
    return (
        f'<span class="sm-name">{text(label)}</span><span class="sm-shape">{escape(shape[:100])}</span>'
        f'<span class="sm-dtype">{escape(dtype)}</span><span class="sm-bytes">{size(nbytes)}</span>'
        f'<span class="sm-share" title="{share:.3g} %"><span style="width:{min(share, 100):.3g}%"></span></span>'
    )
