"""Checkpoints that are saved in the background are as if they had been saved at once, and the oldest are removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_forks import in_child

import stridemap
from stridemap import _checkpoints
from stridemap.torch import load_checkpoint, save_checkpoint


def names(store: stridemap.Store) -> list[str]:
    return [tag.name for tag in store.tags()]


class Gate:
    """Holds saves in the background until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.opened = threading.Event(), threading.Event()
        commit = _checkpoints.commit

        def wait_and_commit(*arguments: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                self.began.set()
                assert self.opened.wait(60)
            commit(*arguments)

        monkeypatch.setattr(_checkpoints, "commit", wait_and_commit)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def test_what_changes_after_the_call_is_not_saved(store: stridemap.Store, gate: Gate) -> None:
    whole, array = torch.arange(20_000.0), torch.zeros(100).numpy()
    state = {
        "whole": whole, "t": whole.view(100, 200).t(), "slice": whole[3:50:7], "array": array, "list": [1], "apart": whole.clone()[1::2],
        "bytes": whole.view(torch.uint8)[3:9], "bfloat16": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0, 3), "conj": torch.ones(2, dtype=torch.complex64).conj(),
    }  # fmt: skip
    before = {name: value.clone() if isinstance(value, torch.Tensor) else value.copy() for name, value in state.items()}
    saving = save_checkpoint(store, "x", state, wait=False)
    assert gate.began.wait(60) and not saving.done() and names(store) == []
    whole += 1
    array += 1
    state["list"].append(2)
    gate.opened.set()
    saving.wait()
    assert saving.done() and names(store) == ["x"] and store["checkpoint/whole"].shape == (20_000,)
    loaded = load_checkpoint(store)
    assert loaded["list"] == [1] and not loaded["array"].any()
    for name, tensor in before.items():
        assert not isinstance(tensor, torch.Tensor) or torch.equal(loaded[name], tensor), name
    assert loaded["whole"].data_ptr() == loaded["t"].data_ptr() == loaded["bytes"].data_ptr() - 3
    assert loaded["slice"].untyped_storage()._cdata == loaded["whole"].untyped_storage()._cdata


def test_checkpoints_are_as_if_saved_at_once(path: Path) -> None:
    """Also the bytes that two checkpoints share, and the generation that the handle shows."""
    frozen = torch.zeros(10_000)
    with stridemap.open(path, "x", durable=False) as store:
        for step in range(6):
            saving = save_checkpoint(store if step % 2 else path, f"step{step}", {"frozen": frozen, "step": step}, wait=False)
            if step == 3:
                saving.wait()
                assert store.generation == 5
        save_checkpoint(store, "last", {"frozen": frozen, "step": 6})
        ids = [store.at(name)["checkpoint/frozen"].storage_id for name in names(store)]
    assert len(set(ids)) == 1
    with stridemap.open(path) as store:
        assert names(store) == [*(f"step{step}" for step in range(6)), "last"]
        assert [tag.generation for tag in store.tags()] == list(range(2, 9))
        assert [load_checkpoint(store, name)["step"] for name in names(store)] == list(range(7))
        assert store.verify() == []


def test_store_can_be_closed_while_a_checkpoint_is_saved(path: Path, gate: Gate) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        saving = save_checkpoint(store, "x", {"w": torch.ones(5)}, wait=False)
    gate.opened.set()
    saving.wait()
    assert load_checkpoint(path, "x")["w"].sum() == 5


def test_next_save_waits_for_the_last(path: Path, gate: Gate) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        save_checkpoint(store, "1", {}, wait=False)
        assert gate.began.wait(60)
        second = threading.Thread(target=save_checkpoint, args=(path, "2", {}))
        second.start()
        time.sleep(0.1)
        assert second.is_alive() and names(store) == []
        with stridemap.open(path.with_suffix(".other"), "x", durable=False) as other:
            save_checkpoint(other, "x", {})
        gate.opened.set()
        second.join(60)
        assert names(store) == ["1", "2"]


def test_what_went_wrong_is_raised_by_wait_or_by_the_next_save(store: stridemap.Store) -> None:
    save_checkpoint(store, "x", {})
    saving = save_checkpoint(store, "x", {"w": torch.ones(2)}, wait=False)
    for _ in range(2):
        with pytest.raises(stridemap.NameExistsError, match='tag "x"'):
            saving.wait()
    assert saving.done()
    save_checkpoint(store, "y", {})
    save_checkpoint(store, "x", {}, wait=False)
    with pytest.raises(stridemap.NameExistsError, match="'z' to .*nothing is saved, because the save of 'x' in .*: tag \"x\""):
        save_checkpoint(store, "z", {})
    save_checkpoint(store, "z", {})
    assert names(store) == ["x", "y", "z"]
    # At once: what is wrong with the arguments.
    with pytest.raises(TypeError, match="a: a checkpoint cannot hold object"):
        save_checkpoint(store, "c", {"a": object()}, wait=False)
    with stridemap.open(store.path) as reading, pytest.raises(stridemap.Error, match="use 'r\\+'"):
        save_checkpoint(reading, "c", {}, wait=False)
    save_checkpoint(store, "c", {})


def run(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    imports = "import atexit, os, sys, threading, torch, stridemap\nfrom stridemap.torch import *\nplace = sys.argv[1]\n"
    return subprocess.run([sys.executable, "-c", imports + program, path], capture_output=True, text=True, timeout=300)


def test_interpreter_finishes_a_save_when_it_exits(path: Path) -> None:
    ended = run(path, "save_checkpoint(place, 'x', {'w': torch.ones(3_000_000)}, wait=False)")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert load_checkpoint(path, "x")["w"].sum() == 3_000_000
    ended = run(path, "save_checkpoint(place, 'x', {}, wait=False)")
    assert "the checkpoint 'x' was not saved" in ended.stderr and 'tag "x": the tag exists' in ended.stderr
    ended = run(path, "atexit.register(lambda: save_checkpoint(place, 'y', {}, wait=False).wait())")
    assert (ended.returncode, ended.stderr) == (0, "")
    load_checkpoint(path, "y")


FORKS = """
children = []
for step in range(20):
    saving = save_checkpoint(place, f"step{step}", {"w": torch.full((300_000,), float(step))}, wait=False)
    if (child := os.fork()) == 0:
        try:
            saving.wait()
        except RuntimeError as error:
            assert "forked" in str(error)
            save_checkpoint(f"{place}.{step}", "x", {"step": step}, wait=False).wait()
            sys.exit(3)
        sys.exit(4)
    children.append(child)
saving.wait()
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [3] * 20
assert [load_checkpoint(f"{place}.{step}")["step"] for step in range(20)] == list(range(20))
for step in range(20):
    assert load_checkpoint(place, f"step{step}")["w"].unique().tolist() == [step]
"""


def test_child_that_is_forked_meanwhile_goes_on(path: Path) -> None:
    ended = run(path, FORKS)
    assert ended.returncode == 0, ended.stderr


def test_fork_in_the_middle_of_a_save(store: stridemap.Store, gate: Gate) -> None:
    saving = save_checkpoint(store, "x", {}, wait=False)
    assert gate.began.wait(60)
    with pytest.raises(RuntimeError, match=f"is saved by process {os.getpid()}"):
        in_child(saving.done)
    other = f"{store.path}.other"
    in_child(lambda: save_checkpoint(other, "x", {}))
    gate.opened.set()
    saving.wait()
    assert names(store) == ["x"] and load_checkpoint(other) == {}


def test_signal_handler_does_not_wait_for_the_save_that_it_interrupts(store: stridemap.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[BaseException] = []

    def handle(*_: object) -> None:
        try:
            save_checkpoint(store, "handler", {})
        except RuntimeError as error:
            found.append(error)

    commit = _checkpoints.commit
    monkeypatch.setattr(_checkpoints, "commit", lambda *arguments: (signal.raise_signal(signal.SIGUSR1), commit(*arguments)))
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        save_checkpoint(store, "x", {})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "signal handler" in str(found[0]) and names(store) == ["x"]


def test_rules_remove_the_oldest_checkpoints_of_the_same_series(store: stridemap.Store) -> None:
    store.tag("mine")
    store.tag("step")
    save_checkpoint(store, "other-0", {})
    for step in range(6):
        save_checkpoint(store, f"step{step}", {"step": step}, keep_last=2, wait=step % 2 == 0)  # type: ignore[call-overload]
        if step == 1:
            save_checkpoint(store, "best", {"step": step})
            store.tag("step-1-kept", at="step1")
    save_checkpoint(store, "best", {}, replace=True, keep_last=1)
    assert sorted(names(store)) == ["best", "mine", "other-0", "step", "step-1-kept", "step4", "step5"]
    assert load_checkpoint(store, "step4")["step"] == 4
    save_checkpoint(store, "step6", {}, keep_every=1)
    save_checkpoint(store, "step7", {}, keep_last=1, keep_every=1 << 62)
    assert [name for name in names(store) if name in ("step4", "step5", "step6", "step7")] == ["step7"]
    for rules in {"keep_last": 0}, {"keep_every": -1}:
        with pytest.raises(ValueError, match="save_checkpoint: keep_.* give a number from 1"):
            save_checkpoint(store, "step8", {}, **rules)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="save_checkpoint: keep_last is an integer"):
        save_checkpoint(store, "step8", {}, keep_last="2")  # type: ignore[call-overload]
    assert "step8" not in names(store)


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [("background.py", ["20", "3"], "a model of 20 MB, 3 saves"), ("serving.py", ["4", "100"], "3 servers of a model of 0.4 MB, 4 generations")],
)
def test_benchmarks_of_saving_and_serving_run(program: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    """They compare what was saved and what is served with what was trained."""
    run = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "benches" / program, *arguments],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert said in run.stdout
    print(run.stdout)


def test_rules_remove_no_tags_of_others(store: stridemap.Store) -> None:
    store["x"] = 1
    store.tag("step0")
    save_checkpoint(store, "step1", {"w": torch.zeros(2)})
    # It names a generation that has the tensors of the checkpoint, and is not one.
    store.tag("step2")
    for step in range(3, 6):
        save_checkpoint(store, f"step{step}", {"w": torch.full((2,), float(step))}, keep_last=1)
    assert names(store) == ["step0", "step2", "step5"]


def test_failure_is_not_lost_to_a_save_that_waits(store: stridemap.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, began, opened = _checkpoints.commit, threading.Event(), threading.Event()

    def fail(*arguments: Any) -> None:
        began.set()
        assert opened.wait(60)
        raise OSError("the disk is full")

    for round_ in range(30):
        began.clear()
        opened.clear()
        monkeypatch.setattr(_checkpoints, "commit", fail)
        save_checkpoint(store, f"x{round_}", {"step": 1}, wait=False)
        assert began.wait(60)
        monkeypatch.setattr(_checkpoints, "commit", commit)
        found: list[Exception] = []

        def wait_and_save(found: list[Exception] = found) -> None:
            try:
                save_checkpoint(store, "next", {"step": 2})
            except RuntimeError as error:
                found.append(error)

        waiting = threading.Thread(target=wait_and_save)
        waiting.start()
        opened.set()
        waiting.join()
        assert [str(error).partition(" has failed: ")[2] for error in found] == ["the disk is full"], round_
    assert names(store) == []


def test_copies_of_a_store_do_not_wait_for_each_other(path: Path, gate: Gate) -> None:
    stridemap.open(path, "x").close()
    copy = path.with_name("copy.smap")
    shutil.copytree(path, copy)
    saving = save_checkpoint(path, "x", {"step": 1}, wait=False)
    assert gate.began.wait(60)
    save_checkpoint(copy, "y", {"step": 2})
    assert load_checkpoint(copy, "y") == {"step": 2} and not saving.done()
    gate.opened.set()
    saving.wait()
