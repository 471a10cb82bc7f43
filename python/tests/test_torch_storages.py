"""Loaded tensors are on storages of their own bytes, and do what those of `torch.load(mmap=True)` do."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.multiprocessing
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, load_file, load_model, save_checkpoint, save_file, save_model

Tensors = dict[str, torch.Tensor]


class Tied(nn.Module):
    """A model whose parameters are tied, and on the storage of a larger tensor, among others."""

    def __init__(self, state: Tensors | None = None) -> None:
        super().__init__()
        state = made() if state is None else state
        for name, tensor in state.items():
            self.register_buffer(name, tensor) if tensor.dtype == torch.uint8 else setattr(
                self, name, nn.Parameter(tensor, requires_grad=False)
            )
        if "tied" in state:
            self.tied = self.w


def made() -> Tensors:
    """Return tensors, of which some are tied, overlap, or are neither."""
    torch.manual_seed(1)
    large, w = torch.rand(100, 100), torch.rand(20, 30)
    many = {f"p{index}": torch.full((100,), float(index)) for index in range(200)}
    rng = torch.get_rng_state()
    return {"bias": torch.rand(3), "rng": rng, **many, "w": w, "tied": w, "transposed": w.t(), "row": w[3], "part": large[10:12]}


def of_model(folder: Path) -> Tensors:
    save_model(Tied(), folder / "model.smap")
    model = Tied()
    load_model(model, folder / "model.smap", assign=True)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def of_files(folder: Path) -> Tensors:
    save_file(made(), folder / "x.smap")
    return load_file(folder / "x.smap")


def of_store(folder: Path) -> Tensors:
    save_file(made(), folder / "store.smap")
    with stridemap.open(folder / "store.smap") as store:
        return {name: store[name].torch() for name in store}


def of_checkpoint(folder: Path) -> Tensors:
    save_checkpoint(folder / "checkpoint.smap", "c", made())
    loaded: Tensors = load_checkpoint(folder / "checkpoint.smap")
    return loaded


def of_torch(folder: Path) -> Tensors:
    # Saved by `torch.save`, a slice of a large tensor has the bytes of all of it.
    torch.save({**made(), "part": made()["part"].clone()}, folder / "x.pt")
    loaded: Tensors = torch.load(folder / "x.pt", mmap=True)
    return loaded


SOURCES: dict[str, Callable[[Path], Tensors]] = {
    "load_file": of_files, "load_model": of_model, "store[n].torch": of_store, "load_checkpoint": of_checkpoint,
    "torch.load": of_torch,
}  # fmt: skip
KINDS = ["p3", "part", "bias", "w", "tied", "transposed", "row"]


@pytest.fixture(params=SOURCES)
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Tensors:
    return SOURCES[request.param](tmp_path)


def forked(act: Callable[[], None]) -> int:
    """Call a function in a forked child. Return its exit code."""
    if (child := os.fork()) == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory_has_the_changes_of_a_child(loaded: Tensors, kind: str) -> None:
    tensor, before = loaded[kind], loaded[kind].clone()
    assert not tensor.is_shared() and tensor.untyped_storage().filename is None
    tensor.share_memory_()
    assert tensor.is_shared() and torch.equal(tensor, before)
    assert forked(lambda: tensor.numpy().fill(7)) == 0
    assert bool((tensor == 7).all())


def test_shared_model_has_the_changes_of_a_child(tmp_path: Path) -> None:
    save_model(Tied(), tmp_path / "x.smap")
    for assign in (False, True):
        model = Tied()
        load_model(model, tmp_path / "x.smap", assign=assign)
        model.share_memory()
        assert forked(lambda: model.w.numpy().fill(7)) == 0
        assert bool((model.tied == 7).all()) and bool((model.w == 7).all())
        assert model.p3.tolist() == [3.0] * 100


def test_storage_has_the_bytes_of_its_tensors_and_no_others(loaded: Tensors) -> None:
    row = loaded.pop("row")
    for name, tensor in loaded.items():
        assert (tensor.untyped_storage().nbytes(), tensor.storage_offset()) == (tensor.nbytes, 0), name
    # Tensors that are converted one by one share the memory that overlaps, but a storage only if their bytes are equal.
    whole = loaded["w"].nbytes
    assert (row.untyped_storage().nbytes(), row.storage_offset()) in ((whole, 90), (row.nbytes, 0))
    start = loaded["w"].untyped_storage().data_ptr()
    assert loaded["tied"].untyped_storage().data_ptr() == start == loaded["transposed"].untyped_storage().data_ptr()
    assert loaded["tied"].data_ptr() == start and row.data_ptr() == start + 90 * 4
    loaded["row"] = row
    loaded["w"].fill_(5)
    assert all(bool((loaded[name] == 5).all()) for name in ("tied", "transposed", "row"))
    assert loaded["p7"].tolist() == [7] * 100


def test_state_of_the_generator_can_be_set(loaded: Tensors) -> None:
    torch.set_rng_state(made()["rng"])
    expected = torch.rand(3)
    torch.set_rng_state(loaded["rng"])
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", ["p3", "part", "bias"])
def test_copies_and_files_have_one_tensor(loaded: Tensors, kind: str, tmp_path: Path) -> None:
    tensor = loaded[kind]
    torch.save(tensor, tmp_path / "one.pt")
    assert (tmp_path / "one.pt").stat().st_size < tensor.nbytes + 2000
    assert len(pickle.dumps(tensor)) < tensor.nbytes + 2000
    assert copy.deepcopy(tensor).untyped_storage().nbytes() == tensor.nbytes
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)


def test_file_of_two_of_many_tensors_has_two(loaded: Tensors, tmp_path: Path) -> None:
    path = tmp_path / "two.smap"
    save_file({name: loaded[name] for name in ("p10", "p190")}, path)
    assert sum(file.stat().st_size for file in (path / "storages").iterdir()) < 3000
    assert load_file(path)["p190"].tolist() == [190] * 100
    save_file({name: loaded[name] for name in ("w", "tied", "row")}, path, replace=True)
    again = load_file(path)
    assert again["row"].data_ptr() == again["w"].data_ptr() + 90 * 4 and again["tied"].data_ptr() == again["w"].data_ptr()


def test_safetensors_saves_and_loads_the_model(loaded: Tensors, tmp_path: Path) -> None:
    model = Tied({name: tensor for name, tensor in loaded.items() if name not in ("transposed", "row")})
    safetensors.torch.save_model(model, str(tmp_path / "x.safetensors"))
    with torch.no_grad():
        model.w.zero_()
    safetensors.torch.load_model(model, tmp_path / "x.safetensors")
    assert torch.equal(model.tied, made()["w"]) and torch.equal(model.part, made()["part"])
    safetensors.torch.save_file({"p3": loaded["p3"], "bias": loaded["bias"]}, tmp_path / "two.safetensors")
    assert (tmp_path / "two.safetensors").stat().st_size < 1000


def totals(tensors: Tensors, results: Any) -> None:
    torch.set_num_threads(1)
    results.put({name: float(tensor.sum()) for name, tensor in tensors.items()})


def of_queue(queue: Any, results: Any) -> None:
    totals(queue.get(), results)


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


def sendable(tmp_path: Path) -> Tensors:
    """Return tensors of all kinds and sources, also those that stridemap does not load itself."""
    found = {}
    for source, load in SOURCES.items():
        (tmp_path / source).mkdir(exist_ok=True)
        tensors = load(tmp_path / source)
        found |= {f"{source} {kind}": tensors[kind] for kind in KINDS}
        found |= {f"{source} Parameter": nn.Parameter(tensors["p7"]), f"{source} sliced": tensors["p8"][3:]}
    with stridemap.open(tmp_path / "load_file/x.smap") as store:
        found["from_dlpack"] = torch.from_dlpack(store["p9"])
    with stridemap.open(tmp_path / "load_file/x.smap", mapped=False) as store:
        found |= {f"not mapped {name}": tensor for name, tensor in load_file(store).items() if name in KINDS}
    return found


def test_tensors_are_sent_through_queues(tmp_path: Path, strategy: str) -> None:
    tensors = sendable(tmp_path)
    expected = {name: float(tensor.detach().sum()) for name, tensor in tensors.items()}
    context = torch.multiprocessing.get_context("fork")
    queue, results = context.Queue(), context.Queue()
    child = context.Process(target=of_queue, args=(queue, results))
    child.start()
    queue.put(tensors)
    assert results.get(timeout=60) == pytest.approx(expected)
    child.join()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensors_are_arguments_of_processes(tmp_path: Path, method: str) -> None:
    tensors = sendable(tmp_path)
    expected = {name: float(tensor.detach().sum()) for name, tensor in tensors.items()}
    context = torch.multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=totals, args=(tensors, results))
    child.start()
    assert results.get(timeout=120) == pytest.approx(expected)
    child.join()
    assert child.exitcode == 0


class Loading(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.source = folder, source

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        folder = self.folder / str(index)
        folder.mkdir()
        return SOURCES[self.source](folder)[f"p{index}"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_data_loader_returns_loaded_tensors(tmp_path: Path, source: str, batch_size: int | None) -> None:
    loader = torch.utils.data.DataLoader(
        Loading(tmp_path, source), batch_size=batch_size, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    assert sum(float(batch.sum()) for batch in loader) == 100 * (0 + 1 + 2 + 3)


def test_checkpoint_after_loading_has_headers_of_what_is_unchanged(tmp_path: Path) -> None:
    def net() -> nn.Sequential:
        body = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)).requires_grad_(False)
        return nn.Sequential(body, nn.Linear(300, 10))

    save_model(net(), tmp_path / "base.smap")
    for assign in (False, True):
        model = net()
        load_model(model, tmp_path / "base.smap", assign=assign)
        optimizer = torch.optim.Adam(model[1].parameters())
        sizes = []
        with stridemap.open(tmp_path / f"{assign}.smap", "x", durable=False) as store:
            for step in range(3):
                model(torch.ones(2, 300)).sum().backward()
                optimizer.step()
                save_checkpoint(store, f"{step}", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                storages = (Path(store.path) / "storages").iterdir()
                sizes.append(sum(file.stat().st_size for file in storages))
            model.load_state_dict(load_checkpoint(store)["model"], assign=assign)
            before = sizes[-1]
            save_checkpoint(store, "resumed", {"model": model.state_dict()})
            assert sum(file.stat().st_size for file in (Path(store.path) / "storages").iterdir()) - before < 3000
        trained = 3 * (300 * 10 + 10) * 4
        assert all(later - earlier < trained + 5000 for earlier, later in zip(sizes, sizes[1:], strict=False)), sizes


def test_tensors_that_are_converted_one_by_one_see_each_others_changes(path: Path) -> None:
    save_file(made(), path)
    with stridemap.open(path) as store:
        w, tied, row = store["w"].torch(), store["tied"].torch(), store["w"][3].torch()
        assert w.untyped_storage()._cdata == tied.untyped_storage()._cdata  # equal bytes: one storage
        w.fill_(5)
        assert tied.tolist() == w.tolist() and row.tolist() == [5] * 30 and store["row"].torch().tolist() == [5] * 30
        assert row.untyped_storage().nbytes() == row.nbytes
        # In shared memory, it is no longer what the store lends.
        w.share_memory_()
        w.fill_(6)
        assert tied.tolist() == w.tolist() and store["w"].torch().tolist() == [[5] * 30] * 20
        del w, tied, row
        assert torch.equal(store["w"].torch(), made()["w"])


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("kind", ["sealed", "mutable"])
def test_tensors_that_overlap_share_a_storage_however_they_are_read(mapped: bool, kind: Any, path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store.save("bytes", torch.arange(64, dtype=torch.uint8), kind=kind)
        for name, view in {
            "words": store["bytes"][8:40].view_dtype("float64"), "halves": store["bytes"][36:44].view_dtype("int16"),
            "far": store["bytes"][45:], "flipped": store["bytes"][::-1],
        }.items():  # fmt: skip
            store.save_view(name, view)
        del store["bytes"]
        with stridemap.open(path, mapped=mapped) as other:
            loaded = load_file(other)
    assert loaded["words"].untyped_storage()._cdata == loaded["halves"].untyped_storage()._cdata
    assert loaded["words"].view(torch.uint8).tolist() == list(range(8, 40))
    assert loaded["halves"].view(torch.uint8).tolist() == list(range(36, 44))
    assert loaded["flipped"].tolist() == list(range(63, -1, -1)) and loaded["far"].tolist() == list(range(45, 64))
    assert loaded["far"].untyped_storage()._cdata != loaded["words"].untyped_storage()._cdata
    loaded["halves"].zero_()
    assert loaded["words"].view(torch.uint8)[28:].tolist() == [0] * 4
