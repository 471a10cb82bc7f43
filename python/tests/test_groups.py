"""A group is a view of the names with a prefix: it reads and changes what its store, snapshot or transaction has."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stridemap


def fill(store: stridemap.Store) -> None:
    store.update({"encoder.0.weight": [1, 2], "encoder.0.bias": 3, "encoder.1.weight": [4], "encoder": 5, "head/w": 6})


def test_group_has_the_names_after_the_prefix(store: stridemap.Store) -> None:
    fill(store)
    places: list[stridemap.Store | stridemap.SnapshotView] = [store, store.snapshot()]
    for place in places:
        group = place.group("encoder.")
        assert list(group) == ["0.bias", "0.weight", "1.weight"] and len(group) == 3 and group
        assert group["0.weight"].tolist() == [1, 2] and group.get("2.weight") is None
        assert "0.bias" in group and "encoder" not in group and "weight" not in group and 1 not in group
        assert [name for name, _ in group.items()] == list(group) and [x.size for x in group.values()] == [1, 2, 1]
        assert list(place["head/"]) == ["w"] and place["encoder."]["0."]["bias"].item() == 3
        assert group.group("0.").prefix == "encoder.0." and list(group["0."]) == ["bias", "weight"]
        assert "encoder." in place and "encoder.0." in place and "0." in group and "head." not in place
        assert not place.group("none.") and list(place.group("none/")) == [] and list(place.group("")) == list(place)
        for missing in ("none.", "enc", "encoder/"):
            with pytest.raises(KeyError, match="no tensor with this name"):
                place[missing]
        with pytest.raises(KeyError, match='"encoder.0.wieght".*did you mean "encoder.0.weight"'):
            group["0.wieght"]
        with pytest.raises(ValueError, match="ends with '.' or '/'"):
            place.group("encoder")
        with pytest.raises(TypeError):
            place.group(1)  # type: ignore[arg-type]


def test_changes_through_a_group_are_changes_of_the_store(store: stridemap.Store) -> None:
    fill(store)
    group = store.group("encoder.")

    def commits(act: Callable[[], object]) -> int:
        before = store.generation
        act()
        return store.generation - before

    assert commits(lambda: group.update({"a": 1, "b": 2})) == 1
    group["c"] = [1.0, 2.0]
    group.save_view("d", group["c"][1:])
    group.rename("a", "e")
    group.create("m", (3,), "int64")
    group["m"][1] = 5
    group.create_growable("log", (), "int64")
    assert group.append("log", [1, 2]) == range(2) and group.append("log", [3]) == range(2, 3)
    assert store["encoder.d"].item() == 2 and store["encoder.m"].tolist() == [0, 5, 0]
    assert store["encoder.log"].tolist() == [1, 2, 3] and "encoder.a" not in store and store["encoder.e"].item() == 1
    assert commits(lambda: group.pop("e")) == 1 and group.pop("e", None) is None and "encoder.e" not in store
    assert commits(lambda: group.setdefault("b", 9)) == 0 and group.setdefault("f", 9).item() == 9
    del group["f"]
    with pytest.raises(KeyError):
        del group["f"]
    group.group("deep/")["x"] = 1
    assert store["encoder.deep/x"].item() == 1
    assert commits(group.clear) == 1 and list(store) == ["encoder", "head/w"] and not group


def test_attributes_of_a_group_are_those_of_its_prefix(store: stridemap.Store) -> None:
    fill(store)
    group = store.group("encoder.")
    group.attrs["layers"] = 2
    group.attrs_of("0.weight")["unit"] = "m"
    assert store.attrs_of("encoder.") == {"layers": 2} == store.snapshot()["encoder."].attrs
    assert store.attrs_of("encoder.0.weight") == {"unit": "m"} == store.snapshot()["encoder."].attrs_of("0.weight")
    assert store.attrs == {} and group.attrs.pop("layers") == 2 and not store.attrs_of("encoder.")
    with pytest.raises(TypeError):
        store.snapshot()["encoder."].attrs["layers"] = 3


def test_group_of_a_transaction_sees_its_changes_and_notes_what_it_reads(store: stridemap.Store) -> None:
    fill(store)
    with store.transaction() as txn:
        group = txn.group("encoder.")
        group["0.bias"] = 7
        group["new"] = 8
        group.attrs["by"] = "me"
        assert len(group) == 4 and group["0.bias"].item() == 7 and "new" in group and "encoder.new" in txn
        assert store["encoder.0.bias"].item() == 3
    assert store["encoder.new"].item() == 8 and store.attrs_of("encoder.") == {"by": "me"}
    for read in (len, list, bool, lambda group: group["0.bias"], lambda group: "other" in group):
        with pytest.raises(stridemap.ConflictError), store.transaction() as txn:
            read(txn.group("encoder."))
            txn["x"] = 1
            store["encoder.0.bias"] = 9
            store["encoder.other"] = 1
        store["encoder.0.bias"] = 7
        del store["encoder.other"]
    with store.transaction() as txn:
        list(txn.group("encoder."))
        txn["x"] = 1
        store["head/w"] = 2
    assert store["x"].item() == 1


def test_name_that_ends_like_a_prefix_is_a_tensor_if_there_is_one(store: stridemap.Store) -> None:
    store["a."], store["a.b"] = 1, 2
    assert store["a."].item() == 1 and list(store.group("a.")) == ["", "b"] and store.group("a.")[""].item() == 1
    del store["a."]
    assert list(store["a."]) == ["b"]
    with pytest.raises(KeyError):
        del store["a."]
    with pytest.raises(KeyError):
        store.pop("a.")
    assert store["a.b"].item() == 2


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_length_is_the_number_of_names_after_any_changes(count: int, path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store.update({f"t{index}": 0 for index in range(count)})
        for index in range(0, count, 7):
            del store[f"t{index}"]
            if index > 140:
                break
        store["new"], store["new"], store["t1"] = 1, 2, 3
        assert len(store) == len(list(store)) == len(store.snapshot()) and bool(store)
        with store.transaction() as txn:
            txn["more"] = 1
            assert len(txn) == len(store) + 1
        store.clear()
        assert len(store) == 0 and not store
    with stridemap.open(path) as again:
        assert len(again) == 0


def test_store_in_an_error_of_a_missing_name_is_looked_at_when_the_message_is_read(path: Path) -> None:
    store = stridemap.open(path, "x", durable=False)
    store["weight"] = 1
    errors: list[KeyError] = []
    for names in (store, store.snapshot()):
        with pytest.raises(KeyError) as caught:
            names["wieght"]
        errors.append(caught.value)
    with pytest.raises(KeyError) as caught, store.transaction() as txn:
        txn["wieght"]
    errors.append(caught.value)
    for error in errors:
        assert str(error) == 'load "wieght": no tensor with this name; did you mean "weight"?' == error.args[0]
        assert error.kind == "NameNotFound"  # type: ignore[attr-defined]
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.kind) == (type(error), str(error), "NameNotFound")
    with pytest.raises(KeyError, match='did you mean "weight"'), store:
        store["wieght"]
    assert store.closed
    store = stridemap.open(path)
    with pytest.raises(KeyError) as caught:
        store["wieght"]
    store.close()
    assert str(caught.value) == 'load "wieght": no tensor with this name'
    assert pickle.loads(pickle.dumps(caught.value)).kind == "NameNotFound"


def test_missing_name_of_another_writer_says_to_refresh(store: stridemap.Store) -> None:
    store["x"] = 1
    reading = stridemap.open(store.path)
    store["y"] = np.zeros(2)
    with pytest.raises(KeyError, match="refresh the handle"):
        reading["y"]
