"""What notebooks show of stores and tensors: bounded, escaped, and readable in light and dark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stridemap
import stridemap.numpy
import stridemap.torch

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</div></style><b>x", "evil\u202egnp.exe", "a" * 300]


class Page(HTMLParser):
    """The elements of a page, which must be closed in their order, and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.depth = 0
        self.feed(html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.attributes += attrs
        self.depth = max(self.depth, len(self._open))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)


def check(html: str) -> Page:
    """Return a page that has no script, and asks for nothing from elsewhere."""
    page = Page(html)
    assert set(page.tags) <= {
        "style", "div", "details", "summary", "span", "b", "table", "tr", "th", "td", "svg", "rect",
    }  # fmt: skip
    assert {key for key, _ in page.attributes} <= {"class", "open", "style", "title", "viewbox", "preserveaspectratio", "role", "aria-label"}
    assert "url(" not in html and "@import" not in html
    # A page of the theme of Jupyter, or one that prefers dark.
    assert "prefers-color-scheme:dark" in html and "--jp-content-font-color1" in html
    return page


def test_a_store_is_shown_as_a_tree_with_shares(store: stridemap.Store) -> None:
    with store.transaction() as txn:
        for layer in range(11):
            txn[f"model.layers.{layer}.weight"] = np.zeros((4, 8), "f4")
            txn[f"model.layers.{layer}.bias"] = np.zeros(4, "f4")
        txn["head/weight"] = np.zeros(352, "f4")
        txn["trailing."] = 1
    store.attrs["author"] = "<b>me</b>"
    for shown in (store, store.snapshot()):
        page = check(shown._repr_html_())
        texts = page.texts
        assert store.path in texts and any("24 tensors, 2.93 KiB" in text for text in texts)
        # What all names of a group have in common is one level, and numbers are in their order.
        assert texts.index("model.layers.") < texts.index("9.") < texts.index("10.")
        assert texts[texts.index("10.") + 1] == "2 tensors" and "head/weight" in texts and "trailing." in texts
        at = texts.index("weight")
        assert texts[at + 1 : at + 4] == ["(4, 8)", "float32", "128 B"]
        assert page.tags.count("details") == 13 and "<b>me</b>" in texts
    assert ("style", "width:46.9%") in page.attributes


def test_names_and_attributes_stay_text(store: stridemap.Store) -> None:
    for name in HOSTILE:
        store[name] = np.arange(3)
        store.attrs[name] = name
        page = check(store[name]._repr_html_())
        assert name[:50].replace("\u202e", "\\u202e") in "".join(page.texts)
        assert "\u202e" not in repr(store[name])
    html = store._repr_html_()
    page = check(html)
    assert HOSTILE[0] in page.texts and HOSTILE[1] in page.texts and "\u202e" not in html
    assert "a" * 200 not in html


def test_attributes_of_any_value_are_shown(store: stridemap.Store) -> None:
    values = {"text": "a", "rate": 0.5, "none": None, "on": True, "sizes": [1, {"é": 2}]}
    store.attrs.update(values)
    texts = check(store._repr_html_()).texts
    for key, shown in zip(values, ["a", "0.5", "null", "true", '[1, {"é": 2}]'], strict=True):
        assert texts[texts.index(key) + 1] == shown


@pytest.mark.parametrize("form", ["flat", "layers", "deep", "wide"])
def test_100_000_names_are_shown_in_bounded_space(store: stridemap.Store, form: str) -> None:
    forms = {
        "flat": lambda i: f"t{i}",
        "layers": lambda i: f"model.layers.{i // 9}.block.{i % 9}.weight",
        "deep": lambda i: ".".join("x" * (i % 50)) + f".{i}",
        "wide": lambda i: f"{i // 300}/{i % 300}.{'n' * 200}",
    }
    view = type("Snapshot", (), {"attrs": {}, "generation": 1})()
    names = [forms[form](i) for i in range(100_000)]
    view._handle = type("Handle", (), {"_origin": ("x.smap",), "tensors": lambda _: [(name, "float32", [1], 4) for name in names]})()
    from stridemap import _html

    html = _html.of_store(view)
    page = check(html)
    assert len(html) < 700_000 and html.count('class="sm-name"') <= 1000 and page.depth < 60
    shown = sum(int(n.replace(",", "")) for n in re.findall(r"and ([0-9,]+) more", html))
    assert shown > 1000 and "100,000 tensors" in html


def test_a_tensor_is_shown_with_elements_and_a_histogram(store: stridemap.Store) -> None:
    store["x"] = np.arange(600, dtype="f4").reshape(3, 10, 20)
    store.save_view("x", store["x"].refine_names("batch", "...", "time"))
    html = store["x"].transpose(1, 2)._repr_html_()
    page = check(html)
    for text in ("(batch: 3, time: 20, 10)", "float32", "2.34 KiB", f"{store.path}, generation 3", "(800, 4, 80) bytes", "at [0, ...]"):
        assert text in page.texts, text
    assert page.texts.count("\u2026") == 6 + 9 and page.tags.count("rect") == 40 and "600 elements" in page.texts


ELEMENTS: dict[str, tuple[Any, str]] = {
    "scalar": (np.float64(0.5), "0.5"),
    "bool": ([True, False, True], "True"),
    "int8": (np.array([-128, 127], "i1"), "-128"),
    "uint64": (np.array([0, 2**64 - 1], "u8"), "18446744073709551615"),
    "complex": ([3 + 4j, 0], "3+4j"),
    "extremes": ([-1.7e308, 1.7e308], "-1.7e+308"),
    "not finite": ([np.nan, np.inf, -np.inf, 1.0], "4 elements, 1 NaN, 2 infinite"),
    "all NaN": ([np.nan, np.nan], "2 elements, 2 NaN"),
    "constant": ([2.5] * 9, "2.5"),
    "none": (np.zeros((0, 3)), "There are no elements."),
    "many": (np.arange(3_000_000.0), "of 3,000,000 elements, in equal distances"),
    "dimensions": (np.zeros((1,) * 30 + (2,)), "2 elements"),
}


@pytest.mark.parametrize("case", ELEMENTS)
def test_elements_of_each_kind_are_shown(store: stridemap.Store, case: str) -> None:
    value, expected = ELEMENTS[case]
    store["x"] = value
    for tensor in (store["x"], store["x"].copy()):
        page = check(tensor._repr_html_())
        assert any(expected in text for text in page.texts), page.texts


def test_dtypes_that_numpy_does_not_have_are_shown(store: stridemap.Store) -> None:
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        store["x"] = stridemap_zeros(store, dtype)
        assert "0" in check(store["x"]._repr_html_()).texts


def stridemap_zeros(store: stridemap.Store, dtype: str) -> stridemap.Tensor:
    store.create(dtype, (3,), dtype)
    return store[dtype]


def test_a_store_that_cannot_be_read_is_shown_with_the_reason(store: stridemap.Store, path: Path) -> None:
    store["x"] = np.zeros(3)
    store.save("m", np.zeros(3), kind="mutable")
    with store["m"].lock():
        assert "exclusive lock" in store["m"]._repr_html_() and "(3,) float64" in repr(store["m"])
    tensor = store["x"]
    store.close()
    assert "closed" in store._repr_html_() and store._ipython_key_completions_() == []
    assert "3 elements" in tensor._repr_html_()


def test_repr_names_the_store_and_the_tensor_and_reads_nothing(store: stridemap.Store) -> None:
    store["w"] = np.zeros((2, 3), "f4")
    assert repr(store["w"]) == str(store["w"]) == f"<stridemap.Tensor (2, 3) float32, of 'w' in {store.path!r}>"
    assert repr(store["w"].refine_names("row", None)) == f"<stridemap.Tensor (row: 2, 3) float32, of 'w' in {store.path!r}>"
    assert repr(store["w"].copy()) == "<stridemap.Tensor (2, 3) float32, in memory>"
    assert "tensor(" not in repr(store["w"])


def test_names_are_completed(store: stridemap.Store) -> None:
    store.update({"a.b": 1, "c": 2})
    assert store._ipython_key_completions_() == ["a.b", "c"] == store.snapshot()._ipython_key_completions_()


def test_the_package_lists_its_public_names() -> None:
    assert set(stridemap.__all__) <= set(dir(stridemap)) and not [name for name in dir(stridemap) if re.match("_[a-z]", name)]


class Bars:
    """Stands for `tqdm.auto`."""

    def __init__(self) -> None:
        self.shown: list[Bars.tqdm] = []
        shown = self.shown

        class tqdm:
            def __init__(self, desc: str, **_: object) -> None:
                self.desc, self.n, self.total, self.closed = desc, 0, 0, False
                shown.append(self)

            def update(self, n: int) -> None:
                assert n >= 0
                self.n += n

            def close(self) -> None:
                self.closed = True

        self.tqdm = tqdm


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bars]:
    bars = Bars()
    pytest.importorskip("tqdm")
    monkeypatch.setitem(sys.modules, "tqdm.auto", bars)
    yield bars


def test_progress_is_a_bar_of_tqdm(store: stridemap.Store, bars: Bars, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store["x"] = np.ones(5_000_000)
    url = "memory://progress/x.smap"
    assert store.verify(progress=True) == []
    store.push(url, progress=True)
    stridemap.pull(url, path.with_name("copy.smap"), progress=True)
    stridemap.numpy.save_file({"x": np.ones(1000), "y": [1]}, store, prefix="arrays", progress=True)
    stridemap.torch.save_model(torch.nn.Linear(30, 20), store, prefix="model", progress=True)
    assert [bar.desc for bar in bars.shown] == ["verify", "push", "pull", "save_file", "save_model"]
    assert [(bar.closed, bar.n > 0.99 * bar.total > 0) for bar in bars.shown] == [(True, True)] * 5
    for off in (None, False):
        assert store.verify(progress=off) == []
    from stridemap import _progress

    monkeypatch.setattr(_progress, "find_spec", lambda _: None)
    assert store.verify(progress=True) == [], "without tqdm, nothing is shown"
    assert len(bars.shown) == 5


def test_save_file_calls_a_function_after_each_tensor_which_can_end_it(store: stridemap.Store) -> None:
    weight = torch.ones(100)
    tensors = {"weight": weight, "tied": weight, "bias": torch.ones(50)}
    calls: list[tuple[int, int]] = []
    stridemap.torch.save_file(tensors, store, progress=lambda *call: calls.append(call))
    assert calls[-1] == (600, 600) and len(calls) == 2, "tied tensors are saved once"

    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    for save_file in (stridemap.torch.save_file, stridemap.numpy.save_file):
        with pytest.raises(RuntimeError, match="enough"):
            save_file({"new": torch.ones(3)}, store, prefix="more", progress=stop)
    assert list(store) == ["bias", "tied", "weight"]


def test_verify_calls_a_function_which_can_end_it(store: stridemap.Store) -> None:
    store["x"] = np.ones(5_000_000)
    calls: list[tuple[int, int]] = []
    assert store.verify(progress=lambda *call: calls.append(call)) == []
    assert calls[-1] == (40_000_000, 40_000_000) and calls == sorted(calls)

    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        store.verify(progress=stop)
