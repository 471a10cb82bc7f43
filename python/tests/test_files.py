"""Files in other formats are read, imported, adopted and written."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import stridemap
import stridemap.numpy
from stridemap.torch import load_checkpoint, load_file, load_model, save_file, save_model


def checkpoint() -> dict[str, object]:
    weight = torch.arange(6.0).view(2, 3)
    return {"model": {"weight": weight, "tied": weight, "transposed": weight.t()}, "epoch": 3, "note": "text"}


def test_file_is_a_mapping_that_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"b": np.arange(6).reshape(2, 3), "a": np.ones(2)}, path, {"format": "np"})
    with stridemap.open(path) as file:
        assert isinstance(file, stridemap.File) and (file.format, file.path) == ("safetensors", str(path))
        assert set(file) == {"a", "b"} and "a" in file and "c" not in file and len(file) == 2
        assert dict(file.attrs) == {"format": "np"} and file.skipped == {}
        slice_ = file["b"][1, ::2]
        assert slice_.numpy().tolist() == [3, 5] and file["b"].T.torch().tolist() == [[0, 3], [1, 4], [2, 5]]
        with pytest.raises(KeyError, match="no tensor"):
            file["c"]
        with pytest.raises(TypeError):
            file["a"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            file.attrs["x"] = "y"  # type: ignore[index]
        assert "safetensors" in repr(file) and str(path) in repr(file)
        assert pickle.loads(pickle.dumps(file))["a"].numpy().tolist() == [1, 1]
    assert file.closed and "closed" in repr(file)
    assert slice_.numpy().tolist() == [3, 5], "tensors stay valid"
    with pytest.raises(ValueError, match="the file is closed"):
        file["a"]


def test_every_format_is_read(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "big.npy", array.astype(">f4"))
    np.savez(tmp_path / "x.npz", x=array)
    np.savez_compressed(tmp_path / "packed.npz", x=array)
    torch.save({"x": torch.tensor(array)}, tmp_path / "x.pt")
    torch.save({"x": torch.tensor(array)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    safetensors.numpy.save_file({"x": array}, tmp_path / "x.safetensors")
    index = {"metadata": {}, "weight_map": {"x": "x.safetensors"}}
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps(index))
    for path in sorted(tmp_path.iterdir()):
        with stridemap.open(path) as file:
            [name] = file
            assert name == ("big" if path.stem == "big" else "x") and file[name].numpy().tolist() == array.tolist(), path
        assert [tensor.tolist() for tensor in load_file(path).values()] == [array.tolist()]


def test_no_code_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (tmp_path / "ran").touch, ()

    torch.save({"x": torch.ones(2), "evil": Evil()}, tmp_path / "x.pt")
    with pytest.warns(UserWarning, match='not readable in .*x.pt: "evil": .*; see File.skipped'):
        file = stridemap.open(tmp_path / "x.pt")
    assert list(file) == ["x"] and list(file.skipped) == ["evil"] and not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match="evil"):
        stridemap.import_file(tmp_path / "x.pt", tmp_path / "x.smap")
    assert not (tmp_path / "x.smap").exists(), "nothing was created"
    stridemap.import_file(tmp_path / "x.pt", tmp_path / "x.smap", skip_unreadable=True)
    assert list(stridemap.open(tmp_path / "x.smap")) == ["x"]
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(stridemap.DamagedError, match="Python objects"):
        stridemap.open(tmp_path / "objects.npy")


def test_what_is_not_a_file_of_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tensors")
    (tmp_path / "empty").touch()
    (tmp_path / "page").write_text("<!DOCTYPE html>")
    for name in ("text", "empty", "page"):
        with pytest.raises(stridemap.DamagedError, match=name):
            stridemap.open(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        stridemap.open(tmp_path / "nothing.safetensors")


def test_file_is_not_opened_to_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    for mode in ("r+", "a", "w"):
        with pytest.raises(ValueError, match="it is a file, which can only be read; import_file"):
            stridemap.open(path, mode)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError, match="a file has this path"):
        stridemap.open(path, "x")
    with pytest.raises(ValueError, match="with at: it is a file"):
        stridemap.open(path, at=1)
    for place in (path, stridemap.open(path)):
        with pytest.raises((FileExistsError, PermissionError), match="a store is a directory|can only be read"):
            save_file({"x": torch.ones(1)}, place)
        with pytest.raises(ValueError, match="is a npy file, not a store; use load_file"):
            load_checkpoint(place)
    assert np.load(path).tolist() == [0, 1, 2]


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000))
    tensor = stridemap.open(path)["x"]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(stridemap.StateError, match="changed"):
        tensor.numpy()


def test_tensors_of_a_checkpoint_that_share_memory_still_do(tmp_path: Path) -> None:
    torch.save(checkpoint(), tmp_path / "x.pt")
    loaded = load_file(tmp_path / "x.pt", prefix="model")
    assert loaded["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]] and loaded["transposed"].stride() == (1, 3)
    loaded["weight"][0, 0] = 7
    assert loaded["tied"][0, 0] == loaded["transposed"][0, 0] == 7
    stridemap.import_file(tmp_path / "x.pt", tmp_path / "x.smap")
    with stridemap.open(tmp_path / "x.smap") as store:
        assert store["model.weight"].shares_storage(store["model.transposed"])
        assert dict(store.attrs) == {"epoch": "3", "note": "text"}


def test_model_is_loaded_from_a_file(tmp_path: Path) -> None:
    original, model = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    safetensors.torch.save_model(original, str(tmp_path / "x.safetensors"))
    assert load_model(model, tmp_path / "x.safetensors") == ([], [])
    assert torch.equal(model.weight, original.weight) and torch.equal(model.bias, original.bias)


def test_file_is_imported_under_a_prefix_without_replacing(tmp_path: Path) -> None:
    store = stridemap.open(tmp_path / "x.smap", "x")
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.ones(2))
    safetensors.numpy.save_file({"a": np.zeros(1)}, tmp_path / "a.safetensors", {"format": "np"})
    stridemap.import_file(tmp_path / "x.npz", store, prefix="old")
    stridemap.import_file(tmp_path / "a.safetensors", store, prefix="new/")
    assert list(store) == ["new/a", "old.a", "old.b"] and dict(store.attrs_of("new/")) == {"format": "np"}
    with pytest.raises(stridemap.NameExistsError, match='import .*x.npz: .*"old.a".*give replace=True'):
        stridemap.import_file(tmp_path / "x.npz", store, prefix="old.")
    safetensors.numpy.save_file({"c": np.zeros(1)}, tmp_path / "c.safetensors", {"format": "other"})
    with pytest.raises(stridemap.NameExistsError, match='"new/" has another value of the attribute "format"; choose'):
        stridemap.import_file(tmp_path / "c.safetensors", store, prefix="new/")
    assert "new/c" not in store
    generation = store.generation
    with store.transaction() as txn:  # several files in one commit
        stridemap.import_file(tmp_path / "x.npz", txn, prefix="old", replace=True)
        stridemap.import_file(tmp_path / "c.safetensors", txn, prefix="new/", replace=True)
    assert store.generation == generation + 1 and dict(store.attrs_of("new/")) == {"format": "other"}


def test_untyped_bytes_need_a_dtype(tmp_path: Path) -> None:
    array = np.arange(4).astype(ml_dtypes.float8_e4m3fn)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=r"state their type \(untyped=..., of import_file\)"):
        stridemap.import_file(tmp_path / "x.npy", tmp_path / "x.smap")
    stridemap.import_file(tmp_path / "x.npy", tmp_path / "x.smap", untyped=ml_dtypes.float8_e4m3fn)
    assert stridemap.open(tmp_path / "x.smap")["x"].numpy().tolist() == array.tolist()


def test_adopted_elements_stay_in_the_file(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"x": np.arange(10**6)}, tmp_path / "x.safetensors", {"format": "np"})
    stridemap.adopt(tmp_path / "x.safetensors", tmp_path / "x.smap", prefix="model")
    assert sum(file.stat().st_size for file in (tmp_path / "x.smap").rglob("*") if file.is_file()) < 100_000
    with pytest.raises(PermissionError, match="external='beside'"):
        stridemap.open(tmp_path / "x.smap")["model.x"]
    with stridemap.open(tmp_path / "x.smap", "r+", external="beside") as store:
        assert store["model.x"].numpy()[-1] == 10**6 - 1 and dict(store.attrs_of("model.")) == {"format": "np"}
        with pytest.raises(stridemap.NameExistsError, match="adopt .*give replace=True"):
            stridemap.adopt(tmp_path / "x.safetensors", store, prefix="model")
        stridemap.adopt(tmp_path / "x.safetensors", store, prefix="model", replace=True)
    np.savez_compressed(tmp_path / "packed.npz", x=np.arange(3))
    with pytest.raises(ValueError, match="compressed, so they cannot be used in place; import the file"):
        stridemap.adopt(tmp_path / "packed.npz", tmp_path / "x.smap")


def test_model_in_the_layout_of_a_cache_is_imported_and_adopted(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    weights = {}
    for number, name in enumerate("ab"):
        file = f"model-{number}.safetensors"
        safetensors.torch.save_file({name: torch.full((2,), float(number))}, str(blobs / name))
        (snapshot / file).symlink_to(f"../../blobs/{name}")
        weights[name] = file
    (blobs / "index").write_text(json.dumps({"weight_map": weights}))
    index = snapshot / "model.safetensors.index.json"
    index.symlink_to("../../blobs/index")
    assert {name: tensor.tolist() for name, tensor in load_file(index).items()} == {"a": [0, 0], "b": [1, 1]}
    stridemap.import_file(index, tmp_path / "copied.smap")
    stridemap.adopt(index, tmp_path / "adopted.smap")
    for store in (stridemap.open(tmp_path / "copied.smap"), stridemap.open(tmp_path / "adopted.smap", external="beside")):
        assert [store[name].numpy().tolist() for name in store] == [[0, 0], [1, 1]]


@pytest.fixture
def model(tmp_path: Path) -> stridemap.Store:
    store = stridemap.open(tmp_path / "m.smap", "x", durable=False)
    store["encoder.weight"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.save_view("encoder.transposed", store["encoder.weight"].T)
    store["head"] = np.ones(2)
    store.attrs["format"] = "pt"
    store.attrs_of("encoder.")["kind"] = "linear"
    return store


def test_export_writes_what_other_libraries_read(model: stridemap.Store, tmp_path: Path) -> None:
    stridemap.export(model, tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert set(file.keys()) == set(model) and file.metadata() == {"format": "pt"}
        assert file.get_tensor("encoder.transposed").tolist() == [[0, 3], [1, 4], [2, 5]]
    stridemap.export(model, tmp_path / "x.npz", prefix="encoder", compress=True)
    assert np.load(tmp_path / "x.npz")["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    stridemap.export(model.snapshot(), tmp_path / "w.npy", names="encoder.weight", order="F")
    assert np.load(tmp_path / "w.npy").flags.f_contiguous and np.load(tmp_path / "w.npy")[1, 2] == 5
    stridemap.export(model.path, tmp_path / "part.safetensors", prefix="encoder.")
    with safetensors.safe_open(tmp_path / "part.safetensors", "np") as file:
        assert set(file.keys()) == {"weight", "transposed"} and file.metadata() == {"kind": "linear"}
    stridemap.export({"x": torch.arange(3), "y": [1.5]}, tmp_path / "mapping.safetensors")
    assert safetensors.torch.load_file(tmp_path / "mapping.safetensors")["x"].tolist() == [0, 1, 2]
    stridemap.export(tmp_path / "x.npz", tmp_path / "y.safetensors", names=["weight"])  # from a file to a file
    assert list(safetensors.numpy.load_file(tmp_path / "y.safetensors")) == ["weight"]


def test_gguf_is_read_and_written_like_by_its_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = (np.arange(3 * 36) % 251).astype(np.uint8).reshape(3, 36)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("llama.names", ["a", "b"])
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with stridemap.open(tmp_path / "x.gguf") as file:
        assert file.format == "gguf" and file["plain"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.attrs["llama.block_count"] == 2 and file.attrs["llama.names"] == ["a", "b"]
        assert (file["blocks"].numpy() == blocks).all() and dict(file.attrs_of("blocks")) == {"gguf.type": "Q4_0"}
        stridemap.export(file, tmp_path / "direct.gguf")
    with stridemap.open(tmp_path / "x.smap", "x", external="beside") as store:
        stridemap.adopt(tmp_path / "x.gguf", store)
        stridemap.import_file(tmp_path / "x.gguf", store, prefix="copy")
        assert store.attrs_of("copy.blocks")["gguf.type"] == "Q4_0" and store.attrs["llama.block_count"] == 2
        store.attrs["llama.block_count"] = 3
        stridemap.export(store, tmp_path / "adopted.gguf", names=["blocks", "plain"])
        stridemap.export(store, tmp_path / "copied.gguf", prefix="copy")
        stridemap.export(store["copy."], tmp_path / "group.gguf")
        with pytest.raises(ValueError, match="compress has no meaning to a .gguf file"):
            stridemap.export(store, tmp_path / "y.gguf", compress=True)
    for name, count in (("direct", 2), ("adopted", 3), ("copied", 2), ("group", 2)):
        reader = gguf.GGUFReader(tmp_path / f"{name}.gguf")
        assert reader.fields["llama.block_count"].contents() == count
        assert reader.fields["llama.names"].contents() == ["a", "b"]
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        assert (tensors["blocks"].data == blocks).all() and tensors["blocks"].shape.tolist() == [64, 3]
        assert tensors["plain"].data.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_export_splits_a_model_and_copies_a_store(model: stridemap.Store, tmp_path: Path) -> None:
    stridemap.export(model, tmp_path / "x.safetensors", max_shard_bytes=24)
    assert len(list(tmp_path.glob("x-*-of-*.safetensors"))) == 3
    assert set(stridemap.open(tmp_path / "x.safetensors.index.json")) == set(model)
    stridemap.export(model, tmp_path / "copy.smap")
    stridemap.export(model, tmp_path / "part.smap", names=["head"])
    copy, part = stridemap.open(tmp_path / "copy.smap"), stridemap.open(tmp_path / "part.smap")
    assert list(copy) == list(model) and copy.uuid != model.uuid and list(part) == ["head"]
    assert copy["encoder.weight"].shares_storage(copy["encoder.transposed"])
    with pytest.raises(FileExistsError):
        stridemap.export(model, tmp_path / "copy.smap")


def test_export_replaces_a_file_only_by_request(model: stridemap.Store, tmp_path: Path) -> None:
    for name in ("x.safetensors", "x.npz"):
        (tmp_path / name).write_bytes(b"mine")
        with pytest.raises(FileExistsError, match="the file already exists; give replace=True"):
            stridemap.export(model, tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"mine"
        stridemap.export(model, tmp_path / name, replace=True)
        assert set(stridemap.open(tmp_path / name)) == set(model)


def test_export_does_not_replace_a_file_that_the_store_uses(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b-00001-of-00002.safetensors", "c.npy"):
        stridemap.export({"x": np.arange(3)}, tmp_path / name)
        stridemap.adopt(tmp_path / name, tmp_path / "x.smap", prefix=name[0])
    store = stridemap.open(tmp_path / "x.smap", "r+", external="beside")
    store["y"] = np.ones(3)
    for target in ("a.safetensors", "b.safetensors", "c.npy"):
        with pytest.raises(ValueError, match="has tensors whose elements are in .*; choose another file"):
            # Also if these tensors are not among those that are written.
            stridemap.export(store, tmp_path / target, names="y", replace=True, max_shard_bytes=16 if target[0] == "b" else None)
    store["g.h.z"] = 1
    with store.transaction() as txn:
        groups = [store.group("g."), store["g."]["h."], store.snapshot().group("g."), txn.group("g.")]
        for source in (*groups, txn, {"x": store["a.x"]}, {"x": store["a.x"][1:]}, store.group("a.")):
            with pytest.raises(ValueError, match="x.smap has tensors whose elements are in .*a.safetensors; choose another file"):
                stridemap.export(source, tmp_path / "a.safetensors", replace=True)
        stridemap.export({"x": np.ones(1)}, tmp_path / "new.npy")
        stridemap.adopt(tmp_path / "new.npy", txn)
        with pytest.raises(ValueError, match="elements are in .*new.npy"):
            stridemap.export(txn, tmp_path / "new.npy", names="new", replace=True)
    for file in (tmp_path / "a.safetensors", tmp_path / "c.npy"):
        with pytest.raises(FileExistsError, match="this is a file, and a store is a directory"):
            stridemap.numpy.save_file({"x": np.ones(3)}, file, replace=True)
        with pytest.raises(ValueError, match="it is a file, which can only be read"):
            stridemap.open(file, "w")
    assert [store[name].tolist() for name in ("a.x", "b.x", "c.c")] == [[0, 1, 2]] * 3
    (tmp_path / "other.npy").write_bytes(b"mine")
    stridemap.export(store, tmp_path / "other.npy", names="y", replace=True)
    assert np.load(tmp_path / "other.npy").tolist() == [1, 1, 1]
    # The elements of an open file are read before it is replaced.
    stridemap.export(stridemap.open(tmp_path / "other.npy"), tmp_path / "other.npy", replace=True, order="F")
    stridemap.export(store.group("g."), tmp_path / "other.npy", replace=True)
    assert np.load(tmp_path / "other.npy").tolist() == 1


def test_attributes_come_back_from_a_safetensors_file(model: stridemap.Store, tmp_path: Path) -> None:
    attributes = {"kind": "linear", "units": ["m", 3], "mark": "json:?"}
    model.group("encoder.").attrs.update(attributes)
    model.attrs["count"] = 3
    stridemap.export(model, tmp_path / "prefix.safetensors", prefix="encoder")
    stridemap.export(model.group("encoder."), tmp_path / "group.safetensors")
    for name in ("prefix", "group"):
        stridemap.import_file(tmp_path / f"{name}.safetensors", tmp_path / "copy.smap", prefix=name)
        with stridemap.open(tmp_path / "copy.smap", "r+") as copy:
            assert dict(copy.attrs_of(f"{name}.")) == attributes
        with safetensors.safe_open(tmp_path / f"{name}.safetensors", framework="np") as file:
            assert file.metadata()["kind"] == "linear"
        # What is there already is the same.
        with stridemap.open(tmp_path / "copy.smap", "r+") as copy:
            copy.group(f"{name}.").clear()
        stridemap.import_file(tmp_path / f"{name}.safetensors", tmp_path / "copy.smap", prefix=name)
    with stridemap.safe_open(model, framework="np") as opened:
        assert opened.metadata() == {"format": "pt", "count": "json:3"}, "a mapping of texts, as in safetensors"


def test_arguments_of_export_that_have_no_meaning_are_refused(model: stridemap.Store, tmp_path: Path) -> None:
    for file, arguments, message in (
        ("x.pt", {}, "must be .safetensors, .gguf, .npy, .npz, or .smap .*; use torch.save"),
        ("x", {}, "the extension selects the format"),
        ("x.npy", {}, "a .npy file has one tensor, not 3"),
        ("x.npz", {"prefix": "head", "names": ["head"]}, "names has no meaning with a prefix"),
        ("x.npz", {"max_shard_bytes": 5}, "max_shard_bytes has no meaning to a .npz file"),
        ("x.safetensors", {"order": "F"}, "order has no meaning"),
        ("x.safetensors", {"order": "K"}, "order must be 'C' or 'F'"),
        ("x.npy", {"compress": True}, "compress has no meaning"),
        ("x.smap", {"prefix": "head"}, "prefix has no meaning"),
    ):
        with pytest.raises(ValueError, match=message):
            stridemap.export(model, tmp_path / file, **arguments)  # type: ignore[arg-type]
        assert not (tmp_path / file).exists()
    with pytest.raises(ValueError, match="only a store is copied to a store"):
        stridemap.export({"x": [1]}, tmp_path / "x.smap")
    with pytest.raises(KeyError):
        stridemap.export(model, tmp_path / "x.npz", names=["nothing"])


def test_names_that_are_paths_are_changed_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match='"../x" is named ".*" in .*: as a path, it could lead anywhere'):
        stridemap.export({"../x": [1]}, tmp_path / "x.npz")
    assert ".." not in next(iter(np.load(tmp_path / "x.npz")))


def test_tensors_of_a_damaged_file_are_refused_when_they_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(10000))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[200] ^= 255
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(ValueError, match="x.npz"):
        stridemap.open(tmp_path / "x.npz")["x"].numpy()


def test_model_that_was_saved_is_exported_and_loaded_by_safetensors(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    save_model(model, tmp_path / "x.smap", {"format": "pt"})
    stridemap.export(tmp_path / "x.smap", tmp_path / "x.safetensors")
    safetensors.torch.load_model(other, tmp_path / "x.safetensors")
    assert torch.equal(model.weight, other.weight)
