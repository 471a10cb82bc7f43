"""Attributes hold what JSON has, and other readers of the store see texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridemap

VALUES: list[Any] = [
    "", "text", "5", "json:", "json:5", "json:\n", "Grüße \U0001f600", True, False, None, 0, -(2**80), 1.5, 1e-300, [], {},
    [1, [2.5, None], {"a": "b"}], {"nested": {"list": [True]}, "": "empty key"},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_value_comes_back_as_it_is(value: Any, path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store.attrs["key"] = value
        with store.transaction() as txn:
            txn.attrs_of("x")["key"] = value
            assert txn.attrs_of("x")["key"] == value
        store.attrs.setdefault("other", value)
    with stridemap.open(path) as store:
        for found in (store.attrs, store.attrs_of("x"), store.snapshot().attrs, store.snapshot().attrs_of("x")):
            assert found["key"] == value and type(found["key"]) is type(value)
        assert store.attrs == {"key": value, "other": value}


def test_numbers_of_numpy_and_tuples_become_those_of_python(store: stridemap.Store) -> None:
    store.attrs.update(a=np.float32(1.5), b=np.int64(3), c=(1, np.bool_(True)), d=np.str_("x"))
    assert store.attrs == {"a": 1.5, "b": 3, "c": [1, True], "d": "x"}


def test_values_that_json_does_not_have_are_refused(store: stridemap.Store) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circular: list[Any] = []
    circular.append(circular)
    for value, error in (
        (math.nan, ValueError), ([math.inf], ValueError), ({1: 2}, TypeError), (b"x", TypeError), ({1}, TypeError),
        (np.arange(3), TypeError), (object(), TypeError), (1j, TypeError), (deep, ValueError), (circular, ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            store.attrs.update(first="set", second=value)
    assert store.attrs == {} and store.generation == 1


def test_what_is_not_json_in_a_store_is_a_text(store: stridemap.Store) -> None:
    texts = ["json:", "json:{", "json:[1", "json:" + "[" * 200_000, "json:" + "9" * 10_000, "json:\ud83d"[:5], "json: nope"]
    for text in texts:
        with store.transaction() as txn:
            txn._handle.set_attribute("", "key", text)
        assert store.attrs["key"] == text and repr(store.attrs) == repr({"key": text})


def test_value_is_a_copy(store: stridemap.Store) -> None:
    store.attrs["list"] = [1]
    store.attrs["list"].append(2)
    assert store.attrs["list"] == [1]
