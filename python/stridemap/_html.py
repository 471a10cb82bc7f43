"""What notebooks show of stores and tensors: HTML without scripts, in the colors of the page.

Names and attributes are those of a file, so they are escaped, and what is shown of them is bounded.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from . import _errors

if TYPE_CHECKING:
    from ._store import Store
    from ._snapshots import SnapshotView
    from ._stridemap import Tensor

#: The number of characters of a name, or of the value of an attribute, that is shown.
MAX_TEXT = 120

#: The number of attributes that are shown.
_MAX_ATTRIBUTES = 50

# Jupyter's variables are those of its theme, and it has rules for tables. Other pages have the color of their text, and
# prefer light or dark.
_STYLE = """<style>
.stridemap{--sm-bar:var(--jp-brand-color1,#1976d2);--sm-line:var(--jp-border-color2,#8885);max-width:60em;
color:var(--jp-content-font-color1,inherit);font:13px/1.5 var(--jp-content-font-family,system-ui,sans-serif)}
@media(prefers-color-scheme:dark){.stridemap{--sm-bar:var(--jp-brand-color1,#64b5f6)}}
.stridemap .sm-head{border-bottom:1px solid var(--sm-line);padding:2px 0;overflow-wrap:anywhere}
.stridemap .sm-faint{opacity:.7}
.stridemap .sm-row,.stridemap summary{display:flex;gap:1em;align-items:baseline;padding:0 0 0 1.1em}
.stridemap details>:not(summary){margin-left:1.1em}
.stridemap summary{cursor:pointer;padding:0}
.stridemap summary::before{content:"\\25b8";flex:none;width:1.1em;margin-right:-1em}
.stridemap details[open]>summary::before{content:"\\25be"}
.stridemap .sm-name{flex:1;min-width:8em;overflow-wrap:anywhere;font-family:var(--jp-code-font-family,monospace)}
.stridemap .sm-shape{flex:none;max-width:16em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.stridemap .sm-dtype{flex:none;width:6em}
.stridemap .sm-bytes{flex:none;width:6em;text-align:right}
.stridemap .sm-share{flex:none;width:6em;height:.6em;border:1px solid var(--sm-line)}
.stridemap .sm-share span{display:block;height:100%;background:var(--sm-bar)}
.stridemap table{border-collapse:collapse;margin:4px 0;font-size:inherit}
.stridemap tr{background:none!important}
.stridemap table.sm-header th,.stridemap table.sm-header td{text-align:left!important;padding:0 1em 0 0}
.stridemap table.sm-header th{font-weight:normal;opacity:.7}
.stridemap table.sm-cells td{text-align:right;padding:1px 6px;border:1px solid var(--sm-line);
font-family:var(--jp-code-font-family,monospace)}
.stridemap svg{display:block;width:24em;height:4em;fill:var(--sm-bar)}
.stridemap .sm-range{display:flex;justify-content:space-between;width:24em}
</style>"""


def of_store(shown: Store | SnapshotView) -> str:
    """Return a tree of the names of a store or a snapshot, with their shapes, dtypes, bytes and shares."""
    from . import _html_tree

    try:
        if getattr(shown, "closed", False):
            return page(_head(repr(shown)))
        snapshot = shown.snapshot() if hasattr(shown, "snapshot") else shown
        tensors = snapshot._handle.tensors()
    except _errors.Error as error:
        return page(_head(repr(shown)), f"<div>{text(str(error), 1000)}</div>")
    total = sum(tensor[3] for tensor in tensors)
    counted = f"{len(tensors):,} tensor{'' if len(tensors) == 1 else 's'}, {size(total)}"
    head = _head(str(snapshot._handle._origin[0]), f"generation {snapshot.generation}, {counted}")
    return page(head, _html_tree.tree(tensors, total), _attributes(dict(snapshot.attrs)))


def of_tensor(tensor: Tensor) -> str:
    """Return the header of a tensor, some of its elements, and a histogram."""
    from . import _html_elements

    rows = {"shape": _shape(tensor), "dtype": tensor._dtype_name, "bytes": size(tensor.nbytes)}
    if not tensor.is_contiguous():
        rows["strides"] = f"{tensor.strides} bytes"
    origin = tensor._origin
    if origin is not None:
        rows["store"] = f"{origin[0]}, generation {origin[3]}"
    lines = "".join(f"<tr><th>{key}</th><td>{text(value, 400)}</td></tr>" for key, value in rows.items())
    head = _head("a tensor in memory" if origin is None else origin[4])
    return page(head, f'<table class="sm-header">{lines}</table>', _html_elements.elements(tensor))


def described(tensor: Tensor) -> str:
    """Return the text that represents a tensor: its shape, with the names of dimensions, its dtype and its origin.

    >>> import tempfile, stridemap
    >>> with stridemap.open(tempfile.mkdtemp() + "/x.smap", "x") as store:
    ...     store["w"] = [[1.0, 2.0, 3.0]]
    ...     print(described(store["w"].refine_names("row", None)).replace(store.path, "x.smap"))
    ...     print(described(store["w"].copy()))
    <stridemap.Tensor (row: 1, 3) float64, of 'w' in 'x.smap'>
    <stridemap.Tensor (1, 3) float64, in memory>
    """
    origin = tensor._origin
    place = "in memory" if origin is None else f"of {origin[4]!r} in {str(origin[0])!r}"
    return f"<stridemap.Tensor {_shape(tensor)} {tensor._dtype_name}, {place}>"


def printed(tensor: Tensor) -> str:
    """Return the number of a tensor without dimensions, as NumPy prints it, and otherwise what represents the tensor.

    >>> print(x[1, 2], x[1].sum() / x[1, 2])
    5 2.4
    """
    if tensor.ndim == 0:
        try:
            return str(tensor.numpy()[()])
        except _errors.Error:
            pass  # Its lock is held, for example.
    return described(tensor)


def _shape(tensor: Tensor) -> str:
    named = zip(tensor.names, tensor.shape, strict=True)
    sizes = [str(n) if name is None else f"{name}: {n}" for name, n in named]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def page(*parts: str) -> str:
    """Return parts of HTML with the style that they need."""
    return f'{_STYLE}<div class="stridemap">{"".join(parts)}</div>'


def text(value: str, limit: int = MAX_TEXT) -> str:
    """Return a text for HTML, without its middle if it is long.

    Characters that are not printable, such as those that change the direction of a text, are shown as escapes.

    >>> text("<b>"), text("evil\\u202egnp.exe"), text("x" * 20, 9)
    ('&lt;b&gt;', 'evil\\\\u202egnp.exe', 'xxxx…xxxx')
    """
    if len(value) > limit:
        half = (limit - 1) // 2
        value = f"{value[:half]}…{value[-half:]}"
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value))


def size(nbytes: float) -> str:
    """Return a number of bytes for people.

    >>> size(12), size(1536), size(3 << 40)
    ('12 B', '1.5 KiB', '3 TiB')
    """
    units = iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while nbytes >= 1023.5 and unit != "EiB":
        nbytes, unit = nbytes / 1024, next(units)
    return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"


def _head(name: str, rest: str = "") -> str:
    return f'<div class="sm-head"><b>{text(name, 300)}</b> <span class="sm-faint">{escape(rest)}</span></div>'


def _attributes(attributes: dict[str, Any]) -> str:
    if not attributes:
        return ""
    shown = list(attributes.items())[:_MAX_ATTRIBUTES]
    values = ((key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for key, value in shown)
    lines = "".join(f"<tr><th>{text(key)}</th><td>{text(value)}</td></tr>" for key, value in values)
    rest = f"<div>and {len(attributes) - len(shown):,} more</div>" if len(attributes) > len(shown) else ""
    return f'<details><summary>attributes ({len(attributes):,})</summary><table class="sm-header">{lines}</table>{rest}</details>'
