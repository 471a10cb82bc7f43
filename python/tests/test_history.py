"""Tags keep generations, which are read, restored and pruned, in this process and in others."""

from __future__ import annotations

import errno
import os
import pickle
import re
import time
from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_handles import disk_usage, in_child

import stridemap
from stridemap import _handles, _history


def names(tags: list[stridemap.TagInfo]) -> list[str]:
    return [tag.name for tag in tags]


def test_tagged_generation_is_read_by_tag_and_by_number(store: stridemap.Store) -> None:
    before = datetime.now(timezone.utc)
    with store.transaction(message="the first") as txn:
        txn["x"], txn["y"] = [1], [5]
        txn.tag("v1")
    first = store.generation
    store["x"] = [2]
    store.tag("v2", "the second")
    del store["x"]
    for at in ("v1", first):
        snapshot = store.at(at)
        assert snapshot["x"].numpy().tolist() == [1] and list(snapshot) == ["x", "y"]
        assert snapshot.message == "the first" and snapshot.generation == first
        assert before - timedelta(seconds=1) <= snapshot.time <= datetime.now(timezone.utc) + timedelta(seconds=1)
    assert store.at("v2")["x"].item() == 2 and store.at("v2").message is None
    assert repr(store.at("v1")) == f"<stridemap.SnapshotView of {store.path!r}, generation {first}, 'the first'>"
    assert repr(store.at("v2")) == f"<stridemap.SnapshotView of {store.path!r}, generation {first + 1}>"
    v1, v2 = store.tags()
    assert (v1.name, v1.generation, v1.message, v1.time) == ("v1", first, "the first", store.at("v1").time)
    assert (v2.name, v2.generation, v2.message) == ("v2", first + 1, "the second")
    with pytest.raises(FrozenInstanceError):
        v1.name = "x"  # type: ignore[misc]
    with pytest.raises(KeyError, match='no tag with this name; did you mean "v1"'):
        store.at("v1.")
    with pytest.raises(stridemap.ConflictError, match="generation 1 of .* no tag, store or snapshot keeps it"):
        store.at(1)
    for wrong in (True, 1.0, None, b"v1"):
        with pytest.raises(TypeError, match="a generation is the name of a tag or a number, not"):
            store.at(wrong)  # type: ignore[arg-type]
    for number in (0, -1, 1 << 64):
        with pytest.raises(ValueError, match="generations have numbers from 1"):
            store.at(number)


def test_log_lists_what_is_kept_and_what_it_costs(store: stridemap.Store) -> None:
    with store.transaction(message="a thousand") as txn:
        txn["x"] = np.zeros(1000, np.uint8).repeat(10)
        txn.tag("b")
    store.tag("a", "the same")
    store["x"] = np.zeros(20_000, np.uint8)
    store["y"] = 1
    newest, tagged = store.log()
    assert (newest.generation, newest.tags, newest.own_bytes) == (store.generation, (), 20_001 + 7)
    assert (tagged.generation, tagged.tags, tagged.own_bytes) == (2, ("a", "b"), 10_000)
    assert tagged.message == "the same" and newest.message is None and tagged.time == store.at("a").time


def test_tag_that_exists_is_moved_only_by_request(store: stridemap.Store) -> None:
    store["x"] = 1
    store.tag("best")
    store["x"] = 2
    with pytest.raises(stridemap.NameExistsError, match="remove that tag first, or give replace=True$"):
        store.tag("best")
    with store.transaction() as txn, pytest.raises(ValueError, match="the tag exists"):
        txn.tag("best")
    assert store.at("best")["x"].item() == 1
    store.tag("best", replace=True)
    assert store.at("best")["x"].item() == 2
    with store.transaction() as txn:
        txn["x"] = 3
        txn.tag("best", replace=True)
    store["x"] = 4
    store.tag("also best", at="best")
    store.untag("best")
    assert names(store.tags()) == ["also best"] and store.at("also best")["x"].item() == 3
    with pytest.raises(KeyError, match="no tag with this name"):
        store.untag("best")
    with pytest.raises(TypeError, match="the name of a tag is a str, not int"):
        store.tag(5)  # type: ignore[arg-type]
    for name in ("", "a\0b", "x" * 4097):
        with pytest.raises(stridemap.ArgumentError):
            store.tag(name)


def test_transaction_tags_the_generation_before_it(store: stridemap.Store, path: Path) -> None:
    store["x"] = 1
    with store.transaction() as txn:
        del txn["x"]
        txn.tag_previous("before")
        with stridemap.open(path, "r+", durable=False) as other:
            other["x"] = 2
        txn.ignore_reads()
    assert "x" not in store and store.at("before")["x"].item() == 2
    assert store.tags()[0].generation == store.generation - 1
    with pytest.raises(stridemap.NameExistsError, match="or give replace=True$"), store.transaction() as txn:
        txn.tag_previous("before")
    store["x"] = 3
    with store.transaction() as txn:
        txn["x"] = 4
        txn.tag_previous("before", replace=True)
    assert store.at("before")["x"].item() == 3
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.tag_previous("never")
        txn["x"] = 1 // 0
    with pytest.raises(TypeError, match="the name of a tag is a str"), store.transaction() as txn:
        txn.tag_previous(1)  # type: ignore[arg-type]
    assert names(store.tags()) == ["before"]


def test_mode_w_removes_the_tensors_and_keeps_the_tags(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"], store.attrs["by"] = np.ones(100_000), "me"
        store.tag("v1")
    with stridemap.open(path, "w", durable=False) as store:
        assert list(store) == [] and dict(store.attrs) == {} and names(store.tags()) == ["v1"]
        assert store.at("v1")["x"].numpy().sum() == 100_000 and disk_usage(store) > 800_000
        with pytest.raises(stridemap.NameExistsError, match="remove that tag first, or give replace=True$"):
            store.tag("v1")
        store.untag("v1")
        store["x"] = 1
        assert disk_usage(store) < 100_000


def test_transaction_that_fails_leaves_no_tag(store: stridemap.Store) -> None:
    store.tag("old")
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.untag("old")
        txn["x"] = 1 // 0
        txn.tag("new")
    assert names(store.tags()) == ["old"] and "x" not in store


def test_restore_of_all_and_of_a_prefix(store: stridemap.Store) -> None:
    store.update({"encoder.w": [1], "decoder.w": [1]})
    store.attrs["by"] = "me"
    store.tag("v1")
    store.clear()
    store.attrs.clear()
    store.update({"encoder.w": [2], "decoder.w": [2], "encoder.new": [3]})
    with store.transaction(message="half") as txn:
        txn.restore(store.at("v1"), "encoder.")
        assert txn["encoder.w"].item() == 1
        txn["other"] = 1
    assert list(store) == ["decoder.w", "encoder.w", "other"]
    assert (store["encoder.w"].item(), store["decoder.w"].item(), dict(store.attrs)) == (1, 2, {})
    assert store["encoder.w"].storage_id == store.at("v1")["encoder.w"].storage_id
    store.restore("v1", "decoder.")
    assert store["decoder.w"].item() == 1 and "other" in store
    store.restore("v1")
    assert list(store) == ["decoder.w", "encoder.w"] and dict(store.attrs) == {"by": "me"}
    with pytest.raises(KeyError, match=r'^restore "wrong\." from generation \d+: no name begins with this$'):
        store.restore("v1", "wrong.")


def test_restore_and_tag_take_a_tag_a_number_or_a_snapshot(store: stridemap.Store) -> None:
    store["x"] = 1
    store.tag("v1")
    for number, at in enumerate(("v1", store.generation - 1, store.at("v1"))):
        store["x"] = 2
        store.restore(at)
        assert store["x"].item() == 1
        store["x"] = 2
        with store.transaction(exclusive=True) as txn:
            txn.restore(at, "x")
            assert txn["x"].item() == 1
        store["x"] = 2
        store.tag(f"tag{number}", at=at)
        assert store.at(f"tag{number}")["x"].item() == 1
    with pytest.raises(TypeError, match="a generation is the name of a tag or a number, not NoneType"):
        store.restore(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a generation is"), store.transaction() as txn:
        txn.restore(1.0)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no tag with this name"), store.transaction() as txn:
        txn.restore("v2")


def test_restore_and_tag_refuse_a_snapshot_of_a_different_store(store: stridemap.Store, path: Path) -> None:
    with stridemap.open(path.with_suffix(".other"), "x", durable=False) as other:
        with pytest.raises(ValueError, match="the snapshot is of"), store.transaction() as txn:
            txn.restore(other.snapshot())
        with pytest.raises(ValueError, match="the snapshot is of"):
            store.restore(other.snapshot())
        with pytest.raises(ValueError, match="the snapshot is of"):
            store.tag("x", at=other.snapshot())


def test_snapshot_has_attributes_that_cannot_be_changed(store: stridemap.Store) -> None:
    with store.transaction() as txn:
        txn["x"], txn.attrs["by"], txn.attrs_of("x")["unit"] = 1, "me", "m"
        txn.tag("v1")
    store.clear()
    store.attrs["by"] = "you"
    v1 = store.at("v1")
    assert (dict(v1.attrs), dict(v1.attrs_of("x")), dict(v1.attrs_of("y"))) == ({"by": "me"}, {"unit": "m"}, {})
    assert dict(store.snapshot().attrs) == {"by": "you"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        v1.attrs["by"] = "x"  # type: ignore[index]
    with pytest.raises(TypeError, match="the name of a tensor is a str"):
        v1.attrs_of(1)  # type: ignore[arg-type]


def test_changes_between_two_snapshots(store: stridemap.Store, path: Path) -> None:
    store.update({"a": 1, "b": 1, "c": 1})
    store.tag("v1")
    del store["a"]
    store.update({"b": 2, "d": 1})
    v1, now = store.at("v1"), store.snapshot()
    assert now.changes_since(v1) == stridemap.Change(now.generation, ["d"], ["b"], ["a"])
    assert v1.changes_since(now) == stridemap.Change(v1.generation, ["a"], ["b"], ["d"])
    with stridemap.open(path.with_suffix(".other"), "x", durable=False) as other:
        with pytest.raises(ValueError, match="compare two snapshots of one store"):
            now.changes_since(other.snapshot())
    with pytest.raises(TypeError, match="changes_since: give a snapshot, such as"):
        now.changes_since("v1")  # type: ignore[arg-type]


def test_prune_removes_the_tags_that_no_rule_keeps_and_frees_their_bytes(store: stridemap.Store) -> None:
    for step in range(20):
        with store.transaction() as txn:
            txn["x"] = np.full(100_000, step, np.uint8)
            txn.tag(f"step{step}")
    store.tag("keep", at="step0")
    removed = store.prune(keep_last=2, names="step*")
    assert names(removed) == [f"step{step}" for step in range(18)] and removed[1].generation == 3
    assert names(store.tags()) == ["keep", "step18", "step19"]
    assert store.at("keep")["x"].numpy()[0] == 0 and store.at("step18")["x"].numpy()[0] == 18
    assert 300_000 < disk_usage(store) < 350_000
    assert names(store.prune(keep_every=21, names="step??")) == []  # generations 20 and 21
    assert names(store.prune(keep_every=22, names="step??")) == ["step18"]
    assert names(store.prune(keep_within=timedelta(days=1))) == []
    time.sleep(0.01)
    store["x"] = 1
    store.tag("now")
    assert names(store.prune(keep_within=0.005)) == ["keep", "step19"]
    assert names(store.tags()) == ["now"]


def test_prune_without_a_rule_is_refused(store: stridemap.Store) -> None:
    store.tag("x")
    with pytest.raises(ValueError, match="^prune: no rule keeps a tag; give keep_last, keep_within or keep_every, or remove"):
        store.prune()
    wrong: list[dict[str, Any]] = [{"keep_last": 0}, {"keep_every": 0}, {"keep_within": -1.0}, {"keep_within": float("nan")}]
    for rules in wrong:
        with pytest.raises(ValueError, match="^prune: keep_.* give a number from"):
            store.prune(**rules)
    for rules, message in (
        ({"keep_last": "x"}, "keep_last is an integer, not str"),
        ({"keep_last": 1.5}, "keep_last is an integer, not float"),
        ({"keep_every": "x"}, "keep_every is an integer, not str"),
        ({"keep_within": "7d"}, r"keep_within is a timedelta or a number of seconds, not str; .* timedelta\(days=7\)"),
        ({"keep_last": 1, "names": [1]}, r"names is a pattern or several, such as 'step\*', and is \[1\]"),
    ):
        with pytest.raises(TypeError, match=f"^prune: {message}"):
            store.prune(**rules)
    assert names(store.tags()) == ["x"]


def test_prune_takes_several_patterns_and_numbers_of_numpy(store: stridemap.Store) -> None:
    for name in ("a1", "a2", "b", "c1", "c2"):
        store["x"] = 1
        store.tag(name)
    assert names(store.prune(keep_last=1, names=["a*", "b"])) == ["a1", "a2"]
    assert store.prune(keep_last=1, names=["missing", "d*"]) == [] == store.prune(keep_last=1, names=())
    assert names(store.prune(keep_last=np.int64(1), names="c*")) == ["c1"]
    assert store.prune(keep_within=np.float32(3600)) == []
    assert names(store.tags()) == ["b", "c2"]


@pytest.mark.parametrize("mapped", [True, False])
def test_store_opened_at_a_tag_stays_there_and_only_reads(path: Path, mapped: bool) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["x"] = [1]
        writer.tag("v1")
        writer["x"] = [2]
        for at in ("v1", 2):
            with stridemap.open(path, at=at, mapped=mapped) as store:
                writer["y"] = 1
                assert not store.refresh()
                with pytest.raises(stridemap.Error, match="opened at generation 2, and stays there"):
                    store.wait_for_change()
                assert list(store) == ["x"] and store["x"].item() == 1 and store.generation == 2
                assert names(store.tags()) == ["v1"] and store.at(2)["x"].item() == 1
                for change in (lambda store: store.tag("v2"), lambda store: store.prune(1), lambda store: store.clear()):
                    with pytest.raises(PermissionError, match="opened with mode 'r'"):
                        change(store)
        for mode in ("r+", "a", "w", "x"):
            with pytest.raises(ValueError, match=f"mode must be 'r', and is '{re.escape(mode)}'"):
                stridemap.open(path, mode, at="v1")  # type: ignore[arg-type]
        with pytest.raises(KeyError, match="no tag with this name"):
            stridemap.open(path, at="v2")
        with pytest.raises(TypeError, match="a generation is"):
            stridemap.open(path, at=1.5)  # type: ignore[arg-type]


def test_path_with_a_tag_is_refused_with_the_way_to_open_it(store: stridemap.Store) -> None:
    store.tag("v1")
    store.tag("a@b/c")
    store.tag("8")
    for at, meant in (("v1", "'v1'"), ("a@b/c", "'a@b/c'"), ("v2", "'v2'"), ("7", "7"), ("8", "'8'")):
        for mode in ("r", "r+"):
            message = f"no store at this path; to open {store.path} at a tag, give at={meant}"
            with pytest.raises(stridemap.StoreNotFoundError, match=f"{re.escape(message)}$") as raised:
                stridemap.open(f"{store.path}@{at}", mode)  # type: ignore[arg-type]
            assert raised.value.errno == errno.ENOENT
    for path in (f"{store.path}.other@v1", f"{store.path}/x@v1", f"@{store.path}"):
        with pytest.raises(stridemap.StoreNotFoundError, match="no store at this path$"):
            stridemap.open(path)


@pytest.mark.parametrize("mapped", [True, False])
def test_other_process_reads_the_tagged_generation(path: Path, mapped: bool) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["a"], writer["b"] = np.arange(6).reshape(2, 3), [3]
        generation = writer.generation
        writer.tag("v1")
        writer.clear()
        writer["a"] = [9]
        with stridemap.open(path, at="v1", mapped=mapped) as reader:
            sent: list[Any] = [reader, reader.snapshot(), writer.at("v1"), writer.at(generation)]
            for value in sent:
                assert in_child(value) == "[('a', [[0, 1, 2], [3, 4, 5]]), ('b', [3])]"
            assert in_child(reader["a"].T) == "[[0, 3], [1, 4], [2, 5]]" and in_child(reader["b"]) == "[3]"
            # The tag may name something else by then.
            kept = [pickle.dumps(value) for value in (reader, reader.snapshot(), reader["a"])]
            writer.tag("v1", replace=True)
            assert pickle.loads(kept[0]).generation == generation
            assert in_child(reader["b"]) == "[3]" and in_child(reader) == in_child(sent[1])
        del sent, reader, value
        _handles._stores.clear()
        writer["c"] = 1
        for value in kept:
            with pytest.raises(stridemap.ConflictError, match="open generation 3 of|of generation 3 of .* no longer exists"):
                pickle.loads(value)


def test_other_process_sees_a_tag_that_keeps_what_was_sent(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["a"] = [1]
        writer.tag("v1")
        sent = [pickle.dumps(value) for value in (writer.at("v1"), writer.at("v1")["a"])]
        del writer["a"]
        writer["b"] = 1
        # No process sees the generation any more.
        for value in sent:
            read = pickle.loads(value)
            assert (read["a"] if hasattr(read, "keys") else read).numpy().tolist() == [1]


def test_store_opened_at_a_tag_is_refused_if_another_took_its_place(path: Path) -> None:
    for value in (1, 2):
        with stridemap.open(path, "x", durable=False) as store:
            store["a"] = value
            store.tag("v1")
        if value == 1:
            sent = pickle.dumps(stridemap.open(path, at="v1"))
            os.rename(path, path.with_suffix(".old"))
    with pytest.raises(RuntimeError, match="different store has taken its place"):
        pickle.loads(sent)


def test_time_before_1970_is_shown() -> None:
    assert _history.time(-1).isoformat() == "1969-12-31T23:59:59.999999+00:00"
    assert _history.time(-(1 << 63) // 1000).year == 1677
