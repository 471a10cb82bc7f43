"""What users of NumPy, h5py, safetensors and PyTorch try in the first hour."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import stridemap
import stridemap.numpy
import stridemap.torch


def test_astype_copies_unless_told_otherwise(store: stridemap.Store) -> None:
    store.save("m", np.zeros((2, 2), np.float32), kind="mutable")
    m = store["m"]
    same = m.astype("f4")
    m[0, 0] = 1
    assert same.tolist() == [[0, 0], [0, 0]]
    assert m.astype("f4", copy=False).tolist() == [[1, 0], [0, 0]]
    assert m.astype("f8", copy=False).dtype == np.float64


def test_groups_are_pickled_and_copied_like_their_owner(store: stridemap.Store) -> None:
    store["enc.w"] = [1, 2]
    with stridemap.open(store.path) as reader:
        for owner in (reader, reader.snapshot(), reader.group("")):
            group = owner.group("enc.") if hasattr(owner, "group") else owner["enc."]
            for other in (pickle.loads(pickle.dumps(group)), copy.deepcopy(group), copy.copy(group)):
                assert other.prefix == "enc." and other["w"].tolist() == [1, 2] and list(other) == ["w"]
    with store.transaction() as txn, pytest.raises(TypeError):
        pickle.dumps(txn.group("enc."))


def test_a_tag_has_its_own_message(store: stridemap.Store) -> None:
    store["a"] = 1
    store.tag("v1", "first")
    store.tag("v2")
    assert [(tag.name, tag.message) for tag in store.tags()] == [("v1", "first"), ("v2", None)]
    assert store.at("v2").message is None


@pytest.mark.parametrize("kind", ["store", "file"])
def test_slices_take_lists_and_masks(tmp_path: Path, kind: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    path = tmp_path / ("x.smap" if kind == "store" else "x.safetensors")
    if kind == "store":
        stridemap.numpy.save_file({"a": array}, path)
    else:
        path.write_bytes(stridemap.numpy.save({"a": array}))
    with stridemap.torch.safe_open(path, "pt") as opened:
        found = opened.get_slice("a")[:, [0, 2]]
        assert found.dtype == torch.bfloat16 and found.tolist() == [[0, 2], [3, 5]]
        assert opened.get_slice("a")[:, 1].tolist() == [1, 4]
    with stridemap.numpy.safe_open(path, "np") as opened:
        assert opened.get_slice("a")[[True, False]].tolist() == [[0, 1, 2]]


def test_functions_of_numpy_move_dimensions(store: stridemap.Store) -> None:
    array = np.arange(6).reshape(1, 2, 3)
    store["x"] = array
    x = store["x"]
    for function, arguments in [
        (np.squeeze, {"axis": 0}), (np.squeeze, {}), (np.moveaxis, {"source": 0, "destination": 2}),
        (np.rollaxis, {"axis": 2}), (np.swapaxes, {"axis1": 0, "axis2": 1}), (np.transpose, {"axes": (2, 0, 1)}),
    ]:  # fmt: skip
        assert np.array_equal(function(x, **arguments), function(array, **arguments)), function
    assert x.transpose(0, 2).shape == (3, 2, 1) and x.transpose((1, 0, 2)).shape == (2, 1, 3)
    with pytest.raises(TypeError, match="order of all"):
        x.transpose((0, 1), 2)


def test_appended_numbers_get_the_dtype_of_the_tensor(store: stridemap.Store) -> None:
    for dtype, rows in [("float32", [0.5, 1]), ("int32", [1, 2]), ("float64", [3]), ("bfloat16", [1.5]), ("bool", [True])]:
        store.create_growable(dtype, (), dtype)
        assert store.append(dtype, rows) == range(len(rows))
        with store.transaction() as txn:
            txn.append(dtype, rows)
        assert store[dtype].tolist() == rows * 2
    for dtype, rows in [("int32", [0.5]), ("int32", [1 << 40]), ("bool", [2]), ("float32", np.zeros(2))]:
        with pytest.raises(stridemap.DTypeError):
            store.append(dtype, rows)
    with pytest.raises(KeyError):
        store.append("missing", [1])
    store.group("g.").create_growable("x", (2,), "float16")
    assert store.group("g.").append("x", [[1, 2]]) == range(1)


def test_missing_files_are_file_not_found_errors(store: stridemap.Store, tmp_path: Path) -> None:
    for call in (
        lambda: stridemap.import_file(tmp_path / "nope.npz", store),
        lambda: stridemap.open(tmp_path / "nope" / "a.smap", "w"),
        lambda: stridemap.export(store, tmp_path / "nope" / "x.safetensors"),
        lambda: stridemap.open(""),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_files_are_not_taken_for_stores_to_save_to(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(stridemap.numpy.save({"a": np.zeros(2)}))
    with pytest.raises(FileExistsError, match="a store is a directory"):
        stridemap.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(FileExistsError):
        stridemap.numpy.save_file({"a": np.zeros(2)}, path)


def test_a_store_at_a_url_is_not_pushed(store: stridemap.Store, tmp_path: Path) -> None:
    store["x"] = 1
    store.push(f"file://{tmp_path}/remote")
    with stridemap.open(f"file://{tmp_path}/remote") as remote, pytest.raises(stridemap.ReadOnlyError, match="pull it first"):
        remote.push(f"file://{tmp_path}/other")


def test_mappings_are_saved_by_update(store: stridemap.Store) -> None:
    with pytest.raises(stridemap.DTypeError, match="update"):
        store["m"] = {"a": 1}


def test_xarray_finds_slips(store: stridemap.Store) -> None:
    xarray = pytest.importorskip("xarray")
    import stridemap.xarray

    store["g/x"] = [1, 2]
    with pytest.raises(KeyError, match="typo"):
        xarray.open_dataset(store.path, engine="stridemap", group="typo")
    with pytest.raises(TypeError, match="to_dataset"):
        stridemap.xarray.to_store(xarray.DataArray([1, 2]), store.path)


def test_arguments_in_the_wrong_order_say_the_order(store: stridemap.Store, tmp_path: Path) -> None:
    path, model, tensors = tmp_path / "new.smap", torch.nn.Linear(3, 2), {"a": torch.zeros(2)}
    for call, message in [
        (lambda: stridemap.torch.save_model(path, model), r"^save_model\(model, place\): the model comes first, .* PosixPath$"),
        (lambda: stridemap.torch.load_model(store, model), r"^load_model\(model, place\): the model comes first, .* Store$"),
        (lambda: stridemap.torch.save_file(str(path), tensors), r"^save_file\(tensors, place\): the dict comes first, .* str$"),
        (lambda: stridemap.numpy.save_file(path, {"a": np.zeros(2)}), r"^save_file\(tensors, place\): the dict"),
        (lambda: stridemap.import_file(store, tmp_path / "x.npz"), r"^import_file\(file, target\): the path of the file"),
        (lambda: stridemap.adopt(store, tmp_path / "x.npz"), r"^adopt\(file, target\): the path of the file"),
        (lambda: stridemap.export(tmp_path / "x.npz", store), r"^export\(source, file\): the store or the dict"),
        (lambda: stridemap.torch.save_file(store, tensors), "the place is an open store or a path, not of type dict"),
        (lambda: stridemap.torch.save_checkpoint(tensors, "step1", store), "the place is an open store or a path"),
        (lambda: stridemap.torch.save_file(tensors, store.group("a.")), r"not of type ChangingGroup; give the store, and prefix='a.'"),
        (lambda: stridemap.torch.load_file(store.snapshot()), "not of type SnapshotView"),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=message):
            call()
    assert list(store) == [] and not path.exists()
