"""Checkpoints of `torch.distributed.checkpoint`: real ranks save and load a store."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.planner_helpers import _create_write_items
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import stridemap
from stridemap.torch import _shards, save_file, save_model
from stridemap.torch.distributed import StoreReader, StoreWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:torch.quantize_per_tensor")

#: How often ranks are killed.
KILLS = int(os.environ.get("STRIDEMAP_TEST_KILLS", "2"))

EXAMPLES = Path(__file__).parents[1] / "examples"


def save(state: dict[str, Any], path: Path, tag: str | None = None, **options: Any) -> None:
    dcp.save(state, storage_writer=StoreWriter(path, tag, **options), no_dist=True)


def load(state: dict[str, Any], path: Any, at: Any = None) -> dict[str, Any]:
    dcp.load(state, storage_reader=StoreReader(path, at), no_dist=True)
    return state


def failure(error: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    """Return what the first rank raised."""
    found: BaseException = next(iter(error.value.failures.values()))[0]
    return found


def unfinished(path: Path) -> list[Path]:
    """Return the unfinished files of a store."""
    return list(path.glob("storages/.stage-*"))


def whole(value: Any) -> Any:
    """Return the elements of a tensor, of all ranks."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def trained(seed: int, is_sharded: bool = True) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer that have made some steps. Each rank has the same."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.ReLU(), torch.nn.LayerNorm(13), torch.nn.Linear(13, 3))
    if is_sharded:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2 * seed)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 7)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def elements(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return all values of a training as lists, by their key paths."""
    found = {}

    def visit(value: Any, key_path: str) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                visit(part, f"{key_path}.{key}")
        elif isinstance(value, torch.Tensor):
            found[key_path] = whole(value).tolist()
        else:
            found[key_path] = value

    model_state, optimizer_state = get_state_dict(model, optimizer)
    visit(model_state, "model")
    visit(optimizer_state["state"], "state")
    visit(optimizer_state["param_groups"][0], "group")
    return found


def save_training(path: Path) -> dict[str, Any]:
    model, optimizer = trained(1)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 2}
    dcp.save(state, storage_writer=StoreWriter(path, "step2"))
    return elements(model, optimizer)


def load_training(path: Path, is_sharded: bool) -> dict[str, Any]:
    model, optimizer = trained(2, is_sharded)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, storage_reader=StoreReader(path, "step2"))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert state["step"] == 2
    return elements(model, optimizer)


def test_training_saved_by_4_ranks_goes_on_with_2_and_with_1(path: Path) -> None:
    saved = ranks.run(path.parent, 4, save_training, path)
    for count, is_sharded in ((2, True), (1, False)):
        for result in ranks.run(path.parent, count, load_training, path, is_sharded):
            assert result == saved[0]
    assert len(saved[0]) > 20 and saved[0]["group.lr"] == 1e-2
    # All tensors are below 4 MiB, so they share a file. The values and the description share another.
    assert len(list((path / "storages").glob("*.bin"))) == 2
    assert unfinished(path) == []


def arange(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).to(dtype).view(shape)


#: The tensors of all kinds. The last two have files of their own.
TENSORS = {
    "rows": arange(9, 3),
    "few.rows": arange(2, 3, dtype=torch.int64),
    "columns": arange(3, 10, dtype=torch.bfloat16),
    "both": arange(6, 9, 2, dtype=torch.float64),
    "replicated": arange(5) > 2,
    "plain": arange(2, 2).T,
    "scalar": torch.tensor(7.5),
    "empty": torch.zeros(0, 4, dtype=torch.complex64),
    "large.rows": arange(1030, 1030),
    "large.columns": arange(1030, 1030, dtype=torch.int32),
}


def sharded(is_swapped: bool) -> dict[str, Any]:
    """Return the tensors, each as its name says, or the other way round."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    grid = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    rows, columns = (Shard(0), Shard(1)) if not is_swapped else (Shard(1), Shard(0))
    kinds: dict[str, Any] = {"rows": (mesh, [rows]), "columns": (mesh, [columns]), "replicated": (mesh, [Replicate()])}
    kinds["both"] = (grid, [rows, columns])
    kinds["empty"] = (grid, [Replicate(), Shard(0)])
    state = {}
    for name, tensor in TENSORS.items():
        kind = kinds.get(name.split(".")[-1])
        state[name] = tensor.clone() if kind is None else distribute_tensor(tensor, *kind)
    return state


def save_tensors(path: Path) -> None:
    state = {"tensors": sharded(False), "note": {"text": "epoch 3"}}
    dcp.save(state, storage_writer=StoreWriter(path), checkpoint_id="all")


def load_tensors(path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in sharded(True).items()}
    state = {"tensors": zeros, "note": {"text": ""}}
    dcp.load(state, storage_reader=StoreReader(path), checkpoint_id="all")
    assert state["note"] == {"text": "epoch 3"}
    for name, tensor in TENSORS.items():
        assert torch.equal(whole(zeros[name]), tensor), name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which 4 ranks have saved all tensors."""
    path = tmp_path_factory.mktemp("saved") / "x.smap"
    ranks.run(path.parent, 4, save_tensors, path)
    return path


def test_any_sharding_is_loaded_as_any_other(saved: Path) -> None:
    ranks.run(saved.parent, 2, load_tensors, saved)
    zeros = {f"tensors.{name}": torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    for name, tensor in load(zeros, saved).items():
        assert torch.equal(tensor, TENSORS[name.removeprefix("tensors.")]), name


def test_store_has_whole_tensors_in_few_files(saved: Path) -> None:
    with stridemap.open(saved) as store:
        assert store.verify() == []
        assert list(store.group("tensors.")) == sorted(TENSORS)
    # Two large tensors, one file for the others, and one for the values and the description.
    assert len(list((saved / "storages").glob("*.bin"))) == 4
    assert unfinished(saved) == []


def test_program_without_torch_reads_the_tensors(saved: Path) -> None:
    program = f"""
import sys, stridemap
with stridemap.open({str(saved)!r}, at="all") as store:
    for name, tensor in store.group("tensors.").items():
        print(name, tensor.dtype, list(tensor.shape), tensor.numpy().tobytes().hex()[:400])
assert "torch" not in sys.modules
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for name, tensor in TENSORS.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        digits = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes().hex()
        assert f"{name} {dtype} {list(tensor.shape)} {digits[:400]}\n" in told


def test_state_dict_is_made_of_what_was_saved(path: Path) -> None:
    save({"model": {"a.b": torch.ones(2), "parts": [torch.zeros(1), {"c": 3}]}, "step": 4}, path)
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    found = _load_state_dict_from_keys(storage_reader=StoreReader(path))
    assert found == {"model": {"a.b": found["model"]["a.b"], "parts": [torch.zeros(1), {"c": 3}]}, "step": 4}


def load_rows(path: Path) -> int:
    state = {"tensors.large.rows": distribute_tensor(torch.zeros(1030, 1030), init_device_mesh("cpu", (2,)), [Shard(0)])}
    reader = StoreReader(path, "all")

    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read_bytes()
    dcp.load(state, storage_reader=reader)
    return read_bytes() - before


def test_rank_reads_only_its_shard(saved: Path) -> None:
    shard = TENSORS["large.rows"].nbytes // 2
    assert all(shard <= count < shard + (shard >> 3) for count in ranks.run(saved.parent, 2, load_rows, saved))


def save_async(path: Path) -> None:
    writer = StoreWriter(path)
    state = {"x": distribute_tensor(torch.zeros(1 << 10, 1 << 10), init_device_mesh("cpu", (2,)), [Shard(0)])}
    for step in range(3):
        state["x"].to_local().fill_(step)
        saved = dcp.async_save(state, storage_writer=writer, checkpoint_id=f"step{step}")
        if step == 1:
            # The tensors were copied, so training may go on.
            state["x"].to_local().fill_(-1)
        saved.result()


def test_async_save(path: Path) -> None:
    ranks.run(path.parent, 2, save_async, path)
    with stridemap.open(path) as store:
        assert [tag.name for tag in store.tags()] == ["step0", "step1", "step2"]
        for step in range(3):
            assert np.all(store.at(f"step{step}")["x"].numpy() == step)
    assert unfinished(path) == []


def save_forever(path: Path) -> None:
    mesh, writer, step = init_device_mesh("cpu", (4,)), StoreWriter(path), 0
    while True:
        full = torch.full((1 << 10, 1 << 10), float(step))
        rows, columns = (distribute_tensor(full, mesh, [Shard(axis)]) for axis in (0, 1))
        state = {"rows": rows, "columns": columns, "step": step}
        dcp.save(state, storage_writer=writer)
        step += 1


def stop_while_writing(process: int, path: Path) -> None:
    """Stop a process at a moment at which the store has unfinished files."""
    for _ in range(1000):
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.001)
        if unfinished(path):
            return
        os.kill(process, signal.SIGCONT)
        time.sleep(0.003)
    raise AssertionError("no rank was writing")


def test_store_is_whole_whichever_rank_is_killed_whenever(path: Path) -> None:
    choose = random.Random(5)
    save({"rows": torch.zeros(2), "columns": torch.zeros(2), "step": -1}, path, "before")
    for number in range(KILLS):
        running = ranks.Ranks(path.parent, 4, save_forever, path)
        generation = stridemap.open(path).generation
        deadline = time.monotonic() + 60
        while stridemap.open(path).generation == generation and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(choose.random() * 0.3)
        # The coordinator every other time, when it has begun a save.
        if number % 2:
            stop_while_writing(running.processes[0].pid, path)
            running.processes[0].kill()
        else:
            running.processes[choose.randrange(1, 4)].kill()
        time.sleep(choose.random() * 0.1)
        running.kill()
        assert unfinished(path) or number % 2 == 0
        with stridemap.open(path) as store:
            assert store.generation > generation and store.verify() == []
            rows, columns = store["rows"].numpy(), store["columns"].numpy()
            assert rows.shape == columns.shape == (1 << 10, 1 << 10)
            assert np.all(rows == rows[0, 0]) and np.all(columns == rows[0, 0])
            assert load({"step": -1}, path)["step"] == rows[0, 0]
            assert store.at("before")["rows"].shape == (2,)
        save({"rows": torch.ones(2), "columns": torch.ones(2), "step": -1}, path)
        assert unfinished(path) == []
    with stridemap.open(path, "r+") as store:
        store.untag("before")
        store.compact()
        assert store.verify() == []
    assert sum(file.stat().st_size for file in path.rglob("*")) < 1 << 20


def fail_once(path: Path) -> str:
    class Failing(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            raise OSError("the disk of rank 1 is full")

    writer = StoreWriter(path)
    state = {"x": distribute_tensor(torch.ones(8), init_device_mesh("cpu", (2,)), [Shard(0)])}
    try:
        dcp.save(state, storage_writer=writer, planner=Failing() if dist.get_rank() == 1 else None)
    except CheckpointException as error:
        message = repr(error.failures[1][0])
    dcp.save(state, storage_writer=writer, checkpoint_id="again")
    return message


def test_save_succeeds_after_one_that_failed_at_a_rank(path: Path) -> None:
    for message in ranks.run(path.parent, 2, fail_once, path):
        assert "the disk of rank 1 is full" in message
    with stridemap.open(path) as store:
        assert [tag.name for tag in store.tags()] == ["again"] and store["x"].tolist() == [1] * 8
        assert store.generation == 2
    assert unfinished(path) == []


def test_tensor_that_no_rank_has_written_is_an_error(path: Path) -> None:
    class Forgetful(StoreWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            done: torch.futures.Future[Any] = torch.futures.Future()
            done.set_result([result for result in super().write_data(plan, planner).wait() if result.index.fqn != "y"])
            return done

    with pytest.raises(CheckpointException) as error:
        dcp.save({"x": torch.ones(2), "y": torch.ones(2)}, storage_writer=Forgetful(path), no_dist=True)
    assert 'no rank has written the shard of "y" at [0]; nothing is saved; save again' in str(failure(error))
    assert list(stridemap.open(path)) == [] and unfinished(path) == []


def test_save_that_another_one_has_overtaken_is_not_committed(path: Path) -> None:
    writer, planner = StoreWriter(path), dcp.DefaultSavePlanner()
    results = []
    for value in (1.0, 2.0):
        planner.set_up_planner({"x": torch.full((2,), value)}, is_coordinator=True)
        writer.set_up_storage_writer(is_coordinator=True)
        plans, metadata = planner.create_global_plan([planner.create_local_plan()])
        [plan] = writer.prepare_global_plan(plans)
        results.append([writer.write_data(plan, planner).value()])
    with pytest.raises(stridemap.ConflictError, match="this save is not committed: another save has begun since"):
        writer.finish(metadata, results[0])
    assert list(stridemap.open(path)) == []
    writer.finish(metadata, results[1])
    assert stridemap.open(path)["x"].tolist() == [2, 2] and unfinished(path) == []


def test_shards_that_do_not_fit_together_are_refused(path: Path) -> None:
    def plan(tensor: torch.Tensor) -> SavePlan:
        return SavePlan(_create_write_items("x", tensor))

    for others, message in (
        (torch.ones(2, dtype=torch.float64), r"ranks have different tensors, torch.float32 of \[2\] and torch.float64 of \[2\]"),
        (torch.ones(3), r"ranks have different tensors, torch.float32 of \[2\] and torch.float32 of \[3\]"),
        (torch.ones(2), r"2 shards have the element \(0,\); each element of the shape \(2,\) must be in one shard"),
    ):
        with pytest.raises(stridemap.Error, match=f'save "x": .*{message}'):
            StoreWriter(path).prepare_global_plan([plan(torch.ones(2)), plan(others)])
    assert not path.exists()


def test_rank_that_does_not_see_the_store_or_has_other_tensors_fails(path: Path) -> None:
    class Halving(dcp.DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return object.half()

    with pytest.raises(CheckpointException) as error:
        dcp.save({"x": torch.ones(2)}, storage_writer=StoreWriter(path), planner=Halving(), no_dist=True)
    message = 'save the shard of "x" at [0]: the plan has torch.float32 of [2], and the state dict torch.float16 of [2]'
    assert isinstance(failure(error), TypeError) and message in str(failure(error))

    class Elsewhere(StoreWriter):
        def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
            [plan] = super().prepare_global_plan(plans)
            name, places = plan.storage_data
            elsewhere = {key: dataclasses.replace(place, path="/elsewhere/x") for key, place in places.items()}
            return [dataclasses.replace(plan, storage_data=(name, elsewhere))]

    with pytest.raises(CheckpointException) as error:
        dcp.save({"x": torch.ones(2)}, storage_writer=Elsewhere(path), no_dist=True)
    assert isinstance(failure(error), FileNotFoundError)
    assert "put the store on a file system that all ranks share, under one path" in str(failure(error))
    assert list(stridemap.open(path)) == [] and unfinished(path) == []


def test_tag_is_moved_only_with_replace(path: Path) -> None:
    save({"x": torch.ones(2)}, path, "v1")
    with pytest.raises(CheckpointException) as error:
        save({"x": torch.zeros(2)}, path, "v1")
    assert isinstance(failure(error), stridemap.NameExistsError) and "give replace=True" in str(failure(error))
    assert stridemap.open(path)["x"].tolist() == [1, 1] and unfinished(path) == []
    save({"x": torch.zeros(2)}, path, "v1", replace=True)
    assert stridemap.open(path, at="v1")["x"].tolist() == [0, 0]


def test_tensors_of_others_are_kept(path: Path) -> None:
    save_file({"x": torch.ones(3), "other": torch.ones(1), "step": torch.ones(1)}, path)
    with pytest.raises(CheckpointException) as error:
        save({"x": torch.ones(2)}, path)
    assert isinstance(failure(error), stridemap.NameExistsError)
    assert f'save to {path}: the name "x" exists, and no distributed save has written it' in str(failure(error))
    save({"x": torch.ones(2), "gone": torch.ones(2), "step": 1}, path, replace=True)
    # A value has no tensor of its name.
    assert sorted(name for name in stridemap.open(path) if "/" not in name) == ["gone", "other", "step", "x"]
    save({"x": 5, "new": torch.ones(2)}, path)
    store = stridemap.open(path)
    assert list(store) == ["distributed/description.json", "distributed/values/x", "new", "other", "step"]
    assert load({"x": 0}, path) == {"x": 5} and store["step"].tolist() == [1]


def test_wrong_dtypes_and_shapes_are_errors(path: Path) -> None:
    save({"x": torch.ones(2, 3)}, path)
    with pytest.raises(CheckpointException) as error:
        load({"x": torch.zeros(2, 3, dtype=torch.float16)}, path)
    assert isinstance(failure(error), TypeError)
    message = 'load "x": the store has float32, and the state dict float16; load into a tensor of float32, and convert that'
    assert str(failure(error)) == message
    with pytest.raises(CheckpointException) as error:
        load({"x": torch.zeros(3, 3)}, path)
    assert isinstance(failure(error), ValueError) and "torch.Size([2, 3])" in str(failure(error))
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: y"):
        load({"y": torch.zeros(2, 3)}, path)
    with pytest.raises(stridemap.StoreNotFoundError):
        StoreReader(path.with_name("missing.smap"))
    with pytest.raises(stridemap.NameNotFoundError):
        dcp.load({}, storage_reader=StoreReader(path), checkpoint_id="v9", no_dist=True)


def test_what_cannot_be_saved_is_refused(path: Path) -> None:
    with pytest.raises(CheckpointException) as error:
        save({"x": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)}, path)
    assert isinstance(failure(error), TypeError) and 'save "x": elements of dtype qint8 cannot be saved' in str(failure(error))
    with pytest.raises(CheckpointException) as error:
        save({"distributed/x": torch.ones(2)}, path)
    assert "rename the key" in str(failure(error))
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    dcp.save({"x": torch.ones(2)}, storage_writer=StoreWriter(path), planner=planner, no_dist=True)
    with pytest.raises(CheckpointException, match="enable_plan_caching"):
        dcp.save({"x": torch.ones(2)}, storage_writer=StoreWriter(path), planner=planner, no_dist=True)
    with pytest.raises(ValueError, match="leave out use_collectives=False"):
        dcp.save({"x": torch.ones(2)}, storage_writer=StoreWriter(path), use_collectives=False, no_dist=True)
    with pytest.raises(CheckpointException, match="a URL can only be read"):
        dcp.save({"x": torch.ones(2)}, storage_writer=StoreWriter("memory://save/x.smap"), no_dist=True)


@pytest.mark.parametrize("kind", ["store", "open store", "file", "URL"])
def test_whole_tensors_are_loaded_wherever_they_are(path: Path, kind: str) -> None:
    model, loaded = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    save_model(model, path, prefix="model")
    place: Any = path
    if kind == "open store":
        place = stridemap.open(path)
    elif kind == "file":
        stridemap.export(path, place := path.with_name("x.safetensors"))
    elif kind == "URL":
        with stridemap.open(path) as store:
            store.push(place := "memory://distributed/x.smap")
    load({"model": (state := loaded.state_dict())}, place)
    assert torch.equal(state["weight"], model.weight) and torch.equal(state["bias"], model.bias)


def load_generation(path: Path) -> str:
    class Slow(StoreReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            found = super().read_metadata()
            dist.barrier()
            if dist.get_rank() == 0:
                with stridemap.open(path, "r+") as store:
                    store["x"] = [2.0, 2.0]
                self._pin(None)
            return found

    try:
        dcp.load({"x": torch.zeros(2)}, storage_reader=Slow(path))
    except CheckpointException as error:
        return str(error)
    return "loaded"


def test_damage_is_found_when_a_block_is_read_and_not_when_it_is_announced(path: Path) -> None:
    with stridemap.open(path, "x") as store:
        store["x"] = np.zeros(1_000_000, np.float32)
    damage.flip_bit(path, "x", 1_500_000)
    with stridemap.open(path, verify=True) as store:
        target = torch.ones(1000)
        for start, is_damaged in (0, False), (375_000, True):
            block = store["x"][start : start + 1000]
            _shards.announce(block)
            if is_damaged:
                with pytest.raises(stridemap.DamagedError, match="at byte 1048576"):
                    _shards.read(block, target, {})
            else:
                _shards.read(block, target, {})
                assert not target.any()


def test_ranks_that_see_different_generations_do_not_load(path: Path) -> None:
    save({"x": torch.ones(2)}, path)
    for message in ranks.run(path.parent, 2, load_generation, path):
        assert "a commit came between, so ranks see the generations 2 and 3; load again, or give at" in message


def test_example_goes_on_with_other_ranks() -> None:
    run = subprocess.run([sys.executable, EXAMPLES / "fsdp.py", "32", "12"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("checkpoints: step5\n2 ranks go on after step 5\nstep 12, 2 ranks: loss ")
    assert "\ncheckpoints: step5, step10\na layer: [32, 32], largest weight 0." in run.stdout


def test_id_is_that_of_one_save_and_of_one_load(path: Path) -> None:
    writer = StoreWriter(path, replace=True)
    for step, checkpoint in enumerate(["best", None]):
        dcp.save({"x": torch.full((2,), float(step))}, storage_writer=writer, checkpoint_id=checkpoint, no_dist=True)
    reader, found = StoreReader(path), {"x": torch.zeros(2)}
    for checkpoint, expected in (("best", 0), (None, 1)):
        dcp.load(found, storage_reader=reader, checkpoint_id=checkpoint, no_dist=True)
        assert found["x"].tolist() == [expected, expected]
    assert [tag.name for tag in stridemap.open(path).tags()] == ["best"]


@pytest.mark.parametrize("content", [5, {"tensors": {}}, {"tensors": [], "values": {}}, {"tensors": {"x": 1}, "values": {}}])
def test_damaged_description_is_named(content: Any, path: Path) -> None:
    save({"x": torch.ones(2)}, path)
    text = json.dumps({"stridemap distributed checkpoint": content}).encode()
    with stridemap.open(path, "r+") as store:
        store["distributed/description.json"] = np.frombuffer(text, np.uint8)
    for act in (lambda: load({"x": torch.zeros(2)}, path), lambda: save({"x": torch.zeros(2)}, path)):
        with pytest.raises(CheckpointException) as error:
            act()
        assert "distributed/description.json is not as stridemap writes it; remove it" in str(failure(error))


def test_names_are_refused_before_anything_is_written(path: Path) -> None:
    with stridemap.open(path, "x") as store:
        store["distributed/file0"] = 7
    writer = StoreWriter(path)
    for name in ("", "a\0b", "x" * 5000):
        plan = SavePlan(_create_write_items(name, torch.ones(2)))
        with pytest.raises(ValueError, match="save"):
            writer.prepare_global_plan([plan])
    assert unfinished(path) == []
    save({"x": torch.ones(2)}, path)
    found = stridemap.open(path)
    assert found["x"].tolist() == [1, 1] and found["distributed/file0"].item() == 7
