"""Datasets of xarray: saved, opened lazily, and the same afterwards."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import stridemap

xarray = pytest.importorskip("xarray")

from stridemap.xarray import to_store  # noqa: E402


def weather() -> xarray.Dataset:
    """Return a dataset with dimensions, coordinates, dtypes and attributes of many kinds."""
    days = np.array(["2026-01-01", "2026-01-02T03:04:05.123456789", "2026-01-05"], "datetime64[ns]")
    time = ("time",)
    return xarray.Dataset(
        {
            "temperature": (("time", "lat-lon"), np.arange(12, dtype="f4").reshape(3, 4), {"unit": "K", "n": 3, "list": [1, 2.5]}),
            "scalar": ((), 5),
            "wet": (time, [True, False, True]),
            "count": ("lat-lon", np.arange(4, dtype="u1")),
            "wave": (time, np.array([1j, 2, 3])),
            "half": (time, np.ones(3, "f2")),
            "big": (time, np.arange(3, dtype=">i8")),
            "gaps": (time, [1.0, np.nan, 3.0]),
            "seen": (time, np.array(["2026-01-01", "NaT", "2026-03-01"], "datetime64[ns]")),
            "lag": (time, np.array([1, 2, 3], "timedelta64[s]")),
            "station": (time, ["a", "bcd", "\u00e9"]),
            "code": (time, np.array([b"a", b"bc", b"d"])),
            "note": (time, np.array(["x", "yy", "zzz"], object)),
            "title": ((), "hello"),
            "none": (("empty",), np.zeros(0)),
        },
        {
            "time": days,
            "lat-lon": [10.0, 20, 30, 40],
            "height": ("lat-lon", [1, 2, 3, 4], {"unit": "m"}),
            "start": ((), np.datetime64("2020-01-01", "ns")),
        },
        {"title": "\u00e4 dataset", "list": [1, 2, "x"], "nested": {"a": None, "b": True}},
    )


def test_dataset_is_the_same_after_a_round_trip(path: Path) -> None:
    dataset = weather()
    to_store(dataset, path)
    with xarray.open_dataset(path, engine="stridemap") as opened:
        xarray.testing.assert_identical(opened, dataset)
        assert set(opened.coords) == set(dataset.coords) and opened.attrs == dataset.attrs
        texts = {"station", "note", "title"}
        assert {name: opened[name].dtype for name in dataset.variables if name not in texts} == {
            name: dataset[name].dtype.newbyteorder("=") for name in dataset.variables if name not in texts
        }
    # A second round trip keeps it, too, with the encodings of the first.
    again = path.with_name("again.smap")
    to_store(xarray.open_dataset(path), again)
    xarray.testing.assert_identical(xarray.open_dataset(again), dataset)


def test_variables_are_tensors_with_named_dimensions_and_attributes(path: Path) -> None:
    to_store(weather(), path)
    store = stridemap.open(path)
    assert store["wave"].names == ["time"] and store["temperature"].names == ["time", None] and store["scalar"].names == []
    assert [str(store[name].dtype) for name in ("temperature", "wet", "wave", "half", "time")] == [
        "float32", "bool", "complex128", "float16", "int64",
    ]  # fmt: skip
    assert store.attrs_of("height") == {"unit": '"m"', "_ARRAY_DIMENSIONS": '["lat-lon"]'}
    assert store.attrs["list"] == '[1, 2, "x"]' and store.attrs["title"] == '"\u00e4 dataset"'
    assert store.generation == 2, "all in one commit"


def test_indexing_is_lazy_and_reads_the_mapped_file(path: Path) -> None:
    values = np.arange(6000.0).reshape(10, 20, 30)
    to_store(xarray.Dataset({"x": (("a", "b", "c"), values), "y": ("a", range(10))}), path)
    opened = xarray.open_dataset(path, engine="stridemap", cache=False)
    x = opened["x"]
    assert not x.variable._in_memory
    tensor = stridemap.open(path)["x"].numpy()
    part = x[2:9:3, ::-2, -1]
    assert not part.variable._in_memory and np.array_equal(part, values[2:9:3, ::-2, -1])
    assert np.shares_memory(part.values, tensor) and np.shares_memory(x.values, tensor)
    assert not x.values.flags.writeable
    for key in ({"a": 3}, {"a": [1, 5, 9], "c": [0, 29]}, {"b": slice(None, None, -1)}, {"a": [], "b": 2}, {"a": [-1]}):
        assert np.array_equal(x.isel(key), xarray.DataArray(values, dims=("a", "b", "c")).isel(key)), key
    points = xarray.DataArray([0, 5, 9], dims="p")
    assert np.array_equal(x.isel(a=points, c=points), values[[0, 5, 9], :, [0, 5, 9]])
    mask = opened["y"] > 7
    assert np.array_equal(x[mask], values[8:])
    # Closed, and sent to another process.
    again = pickle.loads(pickle.dumps(opened))
    opened.close()
    assert np.array_equal(again["x"][1], values[1]) and np.array_equal(part, values[2:9:3, ::-2, -1])


def test_chunks_are_arrays_of_dask(path: Path) -> None:
    pytest.importorskip("dask")
    dataset = weather()
    to_store(dataset, path)
    opened = xarray.open_dataset(path, engine="stridemap", chunks={})
    assert opened["temperature"].chunks == ((3,), (4,)) and opened["temperature"].data.name
    chunked = xarray.open_dataset(path, engine="stridemap", chunks={"time": 2})
    assert chunked["temperature"].chunks[0] == (2, 1)
    assert chunked["temperature"].sum().compute() == dataset["temperature"].sum()
    xarray.testing.assert_identical(chunked.compute(), dataset)


def test_dask_variables_are_saved_block_by_block_in_one_commit(path: Path) -> None:
    pytest.importorskip("dask")
    dataset = weather().drop_vars(["station", "note", "title"])
    to_store(dataset.chunk({"time": 1, "lat-lon": 3}), path)
    xarray.testing.assert_identical(xarray.open_dataset(path), dataset)
    assert stridemap.open(path).generation == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the files of the blocks are removed"

    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    blocks = dataset["temperature"].chunk(time=1).data.map_blocks(fail, dtype="f4", meta=np.zeros((0, 0), "f4"))
    failing = xarray.Dataset({"x": (("a", "b"), blocks)})
    with pytest.raises(RuntimeError, match="no"):
        to_store(failing, path, "other")
    assert stridemap.open(path).generation == 2 and [file.name for file in path.parent.iterdir()] == [path.name]


def test_groups_are_apart_and_are_replaced_on_request(path: Path) -> None:
    first, second = xarray.Dataset({"x": ("a", [1, 2])}, attrs={"n": 1}), xarray.Dataset({"y": ("a", [3])}, attrs={"m": 2})
    to_store(first, path, "run/1")
    to_store(second, path, "run/2")
    to_store(second, path)
    assert xarray.open_dataset(path, group="run/1").identical(first)
    assert xarray.open_dataset(path, group="/run/2/").identical(second) and xarray.open_dataset(path).identical(second)
    with pytest.raises(stridemap.NameExistsError, match=r"the group 'run/1' has 'run/1/x' already; give replace=True"):
        to_store(second, path, "run/1")
    assert xarray.open_dataset(path, group="run/1").identical(first)
    to_store(second, path, "run/1", replace=True)
    assert xarray.open_dataset(path, group="run/1").identical(second)
    assert list(stridemap.open(path)) == ["run/1/y", "run/2/y", "y"]


def test_a_failed_save_changes_nothing(path: Path) -> None:
    to_store(xarray.Dataset({"x": ("a", [1, 2])}), path)
    before = stridemap.open(path).generation
    for bad, error in (
        (xarray.Dataset({"a/b": ("c", [1])}), "without '/'"),
        (xarray.Dataset({"y": ("c", [1])}, attrs={"object": object()}), "the attribute 'object'"),
        (xarray.Dataset({"y": ("c", [1])}, attrs={3: 1}), "name of an attribute"),
        (xarray.Dataset({5: ("c", [1])}), "is a text"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            to_store(bad, path, "g")
    assert stridemap.open(path).generation == before and list(stridemap.open(path)) == ["x"]


def test_any_store_opens_as_a_dataset(path: Path, store: stridemap.Store) -> None:
    store["weight"] = np.ones((2, 3))
    store["text"] = np.zeros(2, "u1")
    store.attrs_of("weight").update(unit="plain text", levels=[1, 2])
    store.attrs_of("text")["_ARRAY_DIMENSIONS"] = '["too", "many"]'
    store.attrs_of("text")["_ARRAY_DTYPE"] = "[" * 100_000
    store["layer/bias"] = np.ones(3)
    opened = xarray.open_dataset(store)
    assert dict(opened.sizes) == {"text_dim_0": 2, "weight_dim_0": 2, "weight_dim_1": 3}
    assert opened["weight"].attrs == {"unit": "plain text", "levels": [1, 2]}
    store.tag("v1")
    store["weight"] = np.zeros(1)
    assert xarray.open_dataset(path, engine="stridemap", at="v1")["weight"].sum() == 6
    assert not xarray.open_dataset(path, mapped=False)["weight"].values.any()
    assert not store.closed
    with pytest.raises(FileNotFoundError):
        xarray.open_dataset(path.with_name("none.smap"), engine="stridemap")
    np.save(path.with_name("x.npy"), np.ones(3))
    with pytest.raises(ValueError, match="x.npy is a npy file, not a store; import_file makes a store of it"):
        xarray.open_dataset(path.with_name("x.npy"), engine="stridemap")


def test_a_pushed_dataset_is_read_from_its_url(store: stridemap.Store) -> None:
    dataset = weather()
    to_store(dataset, store)
    url = "memory://xarray/weather.smap"
    store.push(url)
    xarray.testing.assert_identical(xarray.open_dataset(url, engine="stridemap"), dataset)
