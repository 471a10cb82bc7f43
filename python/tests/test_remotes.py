"""Stores are pushed to object storage, pulled, followed, and read in place, also by Dask, Ray and other processes."""

from __future__ import annotations

import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridemap
from stridemap import _handles

MIB = int(os.environ.get("STRIDEMAP_TEST_LARGE_MIB", "64"))

#: A secret that nothing may repeat.
CANARY = "canary5ecretcanary5ecretcanary"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Start an S3 server on this machine, and return the URL of a bucket."""
    try:
        import moto.server  # noqa: F401
    except ImportError:
        if os.environ.get("STRIDEMAP_REQUIRE_MOTO") == "1":
            raise
        pytest.skip("moto is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
                    urllib.request.urlopen(request, timeout=10).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                pytest.fail("the server did not start")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", endpoint)
                patch.setenv("AWS_ALLOW_HTTP", "true")
                patch.setenv("AWS_ACCESS_KEY_ID", "someone")
                patch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
                patch.setenv("AWS_REGION", "us-east-1")
                yield "s3://bucket"
        finally:
            server.terminate()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/remote.smap"
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}/remote.smap"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote.smap"


def test_pushed_store_is_pulled_as_the_same_store(store: stridemap.Store, url: str, tmp_path: Path) -> None:
    store["x"] = np.arange(100_000)
    store.tag("v1", "first")
    planned = store.push(url, dry_run=True)
    with pytest.raises(stridemap.StoreNotFoundError, match="push a store to it first"):
        stridemap.open(url)
    pushed = store.push(url)
    assert (pushed.generation, pushed.previous) == (planned.generation, planned.previous) == (store.generation, None)
    assert 800_000 < planned.changed_bytes == pushed.changed_bytes < pushed.sent_bytes < 900_000
    assert pushed.object_count > 0

    replica = tmp_path / "replica.smap"
    planned_pull = stridemap.pull(url, replica, dry_run=True)
    assert planned_pull.received_bytes > 800_000 and not replica.exists()
    pulled = stridemap.pull(url, replica)
    assert (pulled.generation, pulled.previous, pulled.storage_count) == (store.generation, None, 1)
    with stridemap.open(replica) as same:
        assert same.uuid == store.uuid and np.array_equal(same["x"].numpy(), np.arange(100_000))
        assert same.tags() == store.tags() and same.verify() == []

    store["y"] = [1.5]
    again = store.push(url)
    assert again.previous == pushed.generation and again.sent_bytes < 50_000
    assert store.push(url).sent_bytes == 0
    pulled = stridemap.pull(url, replica)
    assert pulled.previous == pushed.generation and pulled.received_bytes < 50_000
    with stridemap.open(replica) as same:
        assert same.generation == store.generation and same["y"].numpy().tolist() == [1.5]


def test_remote_is_read_in_place(store: stridemap.Store, url: str) -> None:
    rows = np.arange(600_000, dtype=np.float32).reshape(3000, 200)
    store["rows"], store["empty"], store["word"] = rows, np.zeros((0, 3)), np.uint8(7)
    store.save_view("columns", store["rows"].T)
    store.save("counts", [1, 2, 3], kind="mutable")
    store.attrs["author"], store.attrs_of("rows")["unit"] = "me", "m"
    store.tag("v1", "first")
    old = store.generation
    store["word"] = np.uint8(8)
    store.push(url)

    with stridemap.open(url) as remote:
        assert remote.path == url and remote.uuid == store.uuid and remote.generation == store.generation
        assert url in repr(remote) and url in repr(remote.snapshot())
        assert list(remote) == list(store) and len(remote) == 5 and "rows" in remote and "no" not in remote
        assert np.array_equal(remote["rows"].numpy(), rows) and np.array_equal(np.asarray(remote["rows"]), rows)
        assert np.array_equal(remote["rows"][10:2000:7, ::-3].numpy(), rows[10:2000:7, ::-3])
        assert np.array_equal(remote["columns"][3].numpy(), rows.T[3])
        assert [row.numpy().sum() for row in remote["rows"][:2]] == [row.sum() for row in rows[:2]]
        assert remote["word"].item() == 8 and remote["empty"].numpy().shape == (0, 3)
        assert remote["counts"].numpy().tolist() == [1, 2, 3]
        assert remote["rows"].statistics()["mean"] == pytest.approx(rows.mean(dtype=np.float64))
        assert url in repr(remote["rows"]) and "not shown" in remote["rows"]._repr_html_()
        assert remote.attrs == {"author": "me"} and remote.attrs_of("rows") == {"unit": "m"}
        assert remote.tags() == store.tags() and remote.log() == store.log() and remote.verify() == []
        assert remote.at("v1")["word"].item() == 7 and remote.at(old - 1).message is None
        assert remote.snapshot().changes_since(remote.at("v1")).changed == ["word"]
        with pytest.raises(KeyError, match="v2"):
            remote.at("v2")
        with pytest.raises(KeyError, match="rowz"):
            remote["rowz"]
        with pytest.raises(RuntimeError):
            remote.at(10_000)
    for at in "v1", old - 1:
        with stridemap.open(url, at=at) as remote:
            assert remote["word"].item() == 7 and not remote.refresh()


def test_tensors_of_a_remote_are_copied_to_pytorch(store: stridemap.Store, file_url: str) -> None:
    torch = pytest.importorskip("torch")
    store["x"] = np.arange(12.0).reshape(3, 4)
    store.push(file_url)
    x = stridemap.open(file_url)["x"]
    assert torch.equal(x.T.torch(), torch.arange(12.0, dtype=torch.float64).reshape(3, 4).T)
    assert torch.equal(torch.from_dlpack(x[1]), torch.arange(4.0, 8.0, dtype=torch.float64))


def test_slice_of_a_damaged_object_is_an_error(store: stridemap.Store, file_url: str) -> None:
    store["long"] = np.arange(400_000.0)
    store.push(file_url)
    objects = Path(file_url.removeprefix("file://"), "objects")
    path = max(objects.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    for verify in False, True:
        with stridemap.open(file_url, verify=verify) as opened:
            assert opened["long"][:3].tolist() == [0.0, 1.0, 2.0]
            with pytest.raises(stridemap.DamagedError, match=f"objects/{path.name}"):
                opened["long"][199_990:200_010].numpy()


def test_tag_after_the_url_is_answered_with_how_to_give_it(
    store: stridemap.Store, file_url: str, tmp_path: Path
) -> None:
    store.tag("v1")
    store.push(file_url)
    with pytest.raises(stridemap.StoreNotFoundError, match=r"give at='v1'$"):
        stridemap.open(f"{file_url}@v1")
    assert list(stridemap.open(file_url, at="v1")) == list(store)
    for names in [None, ["x"]]:
        with pytest.raises(stridemap.StoreNotFoundError, match=rf"so pull {file_url}, or open that with at='v1'$"):
            stridemap.pull(f"{file_url}@v1", tmp_path / "no.smap", names)
    assert not (tmp_path / "no.smap").exists()


def test_remote_cannot_be_changed(store: stridemap.Store, file_url: str) -> None:
    store["x"] = [1]
    store.save("m", [1], kind="mutable")
    store.save("l", [1], kind="live")
    store.push(file_url)
    remote = stridemap.open(file_url)
    changes: list[Callable[[], Any]] = [
        lambda: remote.save("y", 1),
        lambda: remote.pop("x"),
        lambda: remote.tag("v1"),
        lambda: remote.prune(keep_last=1),
        lambda: remote.append("x", [2]),
        lambda: remote.compact(),
        lambda: remote.attrs.update(author="me"),
        lambda: remote.transaction(),
        lambda: remote["m"].lock().__enter__(),
        lambda: remote["l"].live(),
        *(lambda mode=mode: stridemap.open(file_url, mode) for mode in ("r+", "a", "w", "x")),
    ]
    for change in changes:
        with pytest.raises(stridemap.ReadOnlyError):
            change()
    with remote["m"].lock(exclusive=False) as array:
        assert array.tolist() == [1] and not array.flags.writeable
    assert remote["l"].numpy().tolist() == [1]
    for wrong in "s3://", "ftp://host/x", "s3://me:secret@bucket/x", "s3://bucket/x?sig=secret", f"file://{store.path}":
        with pytest.raises(ValueError) as raised:
            stridemap.open(wrong)
        assert "secret" not in str(raised.value)


def test_refresh_moves_to_the_newest_generation(store: stridemap.Store, file_url: str) -> None:
    store["x"] = 1
    store.push(file_url)
    remote = stridemap.open(file_url)
    before = remote.snapshot()
    store["x"] = 2
    store.push(file_url)
    assert remote["x"].item() == 1
    assert remote.refresh() and not remote.refresh()
    assert remote["x"].item() == 2 and before["x"].item() == 1 and remote.generation == store.generation


def test_some_tensors_are_pulled_as_a_store_of_their_own(store: stridemap.Store, file_url: str, tmp_path: Path) -> None:
    store["large"], store["small"], store["other"] = np.zeros(1_000_000), [1, 2], [3]
    store.tag("v1")
    store.push(file_url)
    part = tmp_path / "part.smap"
    pulled = stridemap.pull(file_url, part, ["small", "other"])
    assert pulled.previous is None and pulled.received_bytes < 1000
    with stridemap.open(part) as own:
        assert list(own) == ["other", "small"] and own["small"].numpy().tolist() == [1, 2]
        assert own.uuid != store.uuid and own.tags() == [] and own.generation == pulled.generation
    with pytest.raises(FileExistsError):
        stridemap.pull(file_url, part, ["small"])
    with pytest.raises(KeyError, match="smal"):
        stridemap.pull(file_url, tmp_path / "none.smap", ["smal"])
    assert not (tmp_path / "none.smap").exists()
    with stridemap.open(part, "r+") as own, stridemap.open(file_url) as remote:
        own["copy"] = remote["small"]
        assert own["copy"].numpy().tolist() == [1, 2]


def test_of_two_stores_that_changed_the_first_push_wins(store: stridemap.Store, file_url: str, tmp_path: Path) -> None:
    store["x"] = 1
    store.push(file_url)
    stridemap.pull(file_url, tmp_path / "second.smap")
    with stridemap.open(tmp_path / "second.smap", "r+") as second:
        store["x"], second["x"] = 2, 3
        second.push(file_url)
        with pytest.raises(stridemap.ConflictError, match="commits of its own since generation 2"):
            store.push(file_url)
        with pytest.raises(stridemap.ConflictError, match="commits of its own"):
            stridemap.pull(file_url, store.path)
        assert store["x"].item() == 2 and stridemap.open(file_url)["x"].item() == 3
    with stridemap.open(tmp_path / "other.smap", "x") as other, pytest.raises(stridemap.ConflictError):
        other.push(file_url)


def test_snapshot_of_a_remote_is_restored_only_if_the_store_has_its_generation(
    store: stridemap.Store, file_url: str
) -> None:
    store["x"] = 1
    store.tag("v1")
    store.push(file_url)
    store["x"] = 2
    snapshot = stridemap.open(file_url).at("v1")
    store.restore(snapshot)
    assert store["x"].item() == 1
    store.untag("v1")
    store["x"] = 3
    store.compact()
    with pytest.raises(ValueError, match="take the snapshot from the store that is changed"):
        store.restore(snapshot)
    assert store["x"].item() == 3 and store.verify() == []


def test_progress_is_reported_and_ends_what_it_refuses(store: stridemap.Store, url: str, tmp_path: Path) -> None:
    for number in range(3):
        store[str(number)] = np.random.default_rng(number).random(1 << 20)
    seen: list[tuple[int, int]] = []
    main = threading.get_ident()

    def progress(done: int, total: int) -> None:
        assert threading.get_ident() == main
        seen.append((done, total))

    def refuse(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.push(url, progress=refuse)
    # The push may have been over before it was refused.
    for number in range(3):
        store[str(number)] = np.random.default_rng(number + 3).random(1 << 20)
    store.push(url, progress=progress)
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 24 << 20
    seen.clear()
    replica = tmp_path / "replica.smap"
    with pytest.raises(ZeroDivisionError):
        stridemap.pull(url, replica, progress=refuse)
    replica = tmp_path / "other.smap"
    stridemap.pull(url, replica, progress=progress)
    assert seen == sorted(seen) and 24 << 20 <= seen[-1][0] <= seen[-1][1] < 25 << 20
    with stridemap.open(replica) as same:
        assert same.verify() == [] and len(same) == 3


def test_follow_yields_generations_as_they_arrive(store: stridemap.Store, url: str, tmp_path: Path) -> None:
    replica = tmp_path / "replica.smap"
    failures: list[tuple[stridemap.Error, float]] = []
    threads = threading.active_count()
    following = stridemap.follow(url, replica, interval=0.05, on_error=lambda e, pause: failures.append((e, pause)))
    store["x"] = 0
    pushing = threading.Timer(0.5, store.push, [url])
    pushing.start()
    first = next(following)
    pushing.join()
    assert first.previous is None and first.generation == store.generation
    assert failures and isinstance(failures[0][0], stridemap.StoreNotFoundError) and failures[0][1] > 0

    def push_later() -> None:
        for step in range(1, 4):
            store["x"] = step
            store.push(url)

    pushing = threading.Thread(target=push_later)
    pushing.start()
    generations = [first.generation]
    for pulled in following:
        assert pulled.previous == generations[-1]
        generations.append(pulled.generation)
        with stridemap.open(replica) as same:
            if same["x"].item() == 3:
                break
    pushing.join()
    following.close()
    assert list(following) == [] and threading.active_count() == threads

    with stridemap.open(replica, "r+") as diverged:
        diverged["x"] = 10
    store["x"] = 11
    store.push(url)
    with pytest.raises(stridemap.ConflictError):
        next(stridemap.follow(url, replica, interval=0.05))


def test_follow_logs_errors_and_ends_with_what_on_error_raises(
    file_url: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(error: stridemap.Error, pause: float) -> None:
        raise error

    with pytest.raises(stridemap.StoreNotFoundError):
        next(stridemap.follow(file_url, path, interval=0.01, on_error=refuse))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(stridemap.follow(file_url, path, interval=0.01))
    assert "next try in" in caplog.text and "there is no store" in caplog.text


def test_prune_deletes_what_the_last_generations_do_not_need(store: stridemap.Store, url: str) -> None:
    for step in range(4):
        store["x"] = np.random.default_rng(step).random(100_000)
        if step == 0:
            store.tag("first")
        store.push(url)
    store_at_2 = stridemap.open(url, at=store.generation - 1)
    assert store_at_2.generation == store.generation - 1
    waiting = stridemap.prune(url, keep_last=1)
    assert waiting.object_count == 0 and waiting.waiting_bytes > 1_600_000
    planned = stridemap.prune(url, keep_last=1, grace=0, dry_run=True)
    pruned = stridemap.prune(url, keep_last=1, grace=0)
    assert planned.object_count <= pruned.object_count and pruned.freed_bytes > 1_600_000
    with stridemap.open(url) as remote:
        assert remote.verify() == []
        assert np.array_equal(remote.at("first")["x"].numpy(), np.random.default_rng(0).random(100_000))
        with pytest.raises(stridemap.ConflictError):
            remote.at(store.generation - 1)


CHILD = """
import pickle, sys
value = pickle.loads(bytes.fromhex(sys.argv[1]))
print([(name, value[name].numpy().tolist()) for name in value] if hasattr(value, "keys") else value.numpy().tolist())
"""


def in_child(value: Any, cwd: Path) -> str:
    """Return what another process with another directory reads from a handle, or how its error ends."""
    sent = pickle.dumps(value)
    assert CANARY.encode() not in sent and len(sent) < 600
    run = subprocess.run([sys.executable, "-c", CHILD, sent.hex()], capture_output=True, text=True, cwd=cwd)
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def test_handles_open_in_other_processes(store: stridemap.Store, url: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store["x"], store["y"] = [1, 2, 3], [4]
    tagged = store.generation
    store.tag("v1")
    store.push(url)
    remote = stridemap.open(url)
    everything = "[('x', [1, 2, 3]), ('y', [4])]"
    assert in_child(remote, elsewhere) == in_child(remote.snapshot(), elsewhere) == everything
    x, view, snapshot = remote["x"], remote["x"][::-2], remote.at("v1")
    assert in_child(x, elsewhere) == "[1, 2, 3]" and in_child(view, elsewhere) == "[3, 1]"

    # The generation is replaced: what a tag keeps can still be read.
    store["x"] = [5]
    store.push(url)
    assert in_child(view, elsewhere) == "[3, 1]"
    assert in_child(snapshot, elsewhere) == everything
    assert in_child(stridemap.open(url, at=tagged), elsewhere) == everything
    assert pickle.loads(pickle.dumps(snapshot)).generation == tagged
    opened = pickle.loads(pickle.dumps(stridemap.open(url)))
    assert opened.refresh() is False and opened["x"].item() == 5
    opened.close()
    assert pickle.loads(pickle.dumps(stridemap.open(url)))["x"].item() == 5


def test_handle_of_a_generation_that_was_pruned_says_so(store: stridemap.Store, file_url: str, tmp_path: Path) -> None:
    store["x"], store["y"] = [1, 2, 3], [4]
    store.push(file_url)
    remote = stridemap.open(file_url)
    sent = {name: pickle.dumps(remote[name]) for name in remote}
    handles = pickle.dumps(remote.snapshot()), pickle.dumps(stridemap.open(file_url, at=remote.generation))
    unfixed = pickle.dumps(remote)
    store["x"] = [5]
    store.push(file_url)
    stridemap.prune(file_url, keep_last=1, grace=0)
    _handles._stores.clear()
    assert pickle.loads(sent["y"]).numpy().tolist() == [4]
    with pytest.raises(stridemap.ConflictError, match=r"'x' of generation \d+ of file://.* no longer exists"):
        pickle.loads(sent["x"])
    for handle in handles:
        with pytest.raises(stridemap.ConflictError):
            pickle.loads(handle)
    assert pickle.loads(unfixed)["x"].item() == 5

    with stridemap.open(tmp_path / "other.smap", "x") as other:
        os.rename(tmp_path / "remote.smap", tmp_path / "remote.old")
        other.push(file_url)
    _handles._stores.clear()
    with pytest.raises(stridemap.StateError, match="different store has taken its place"):
        pickle.loads(sent["y"])


def test_handles_of_one_generation_share_one_open_store(store: stridemap.Store, file_url: str, tmp_path: Path) -> None:
    store["x"], store["y"] = [1], [2]
    store.push(file_url)
    remote = stridemap.open(file_url)
    sent = [pickle.dumps(remote["x"]), pickle.dumps(remote["y"]), pickle.dumps(remote), pickle.dumps(remote.snapshot())]
    _handles._stores.clear()
    first = pickle.loads(sent[0])
    # Nothing asks for HEAD again, so that all tasks of a job see one generation.
    (tmp_path / "remote.smap/HEAD").unlink()
    assert first.item() == 1 and pickle.loads(sent[1]).item() == 2
    assert pickle.loads(sent[2])["x"].item() == 1 and pickle.loads(sent[3])["y"].item() == 2


def test_no_secret_is_shown(store: stridemap.Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store["x"] = np.arange(10)
    url = f"{bucket}/secrets/x.smap"
    shown = [repr(store.push(url))]
    remote = stridemap.open(url)
    shown += [repr(remote), repr(remote.snapshot()), repr(remote["x"]), repr(remote["x"]._origin), repr(vars(remote))]
    shown += [repr(pickle.dumps(value)) for value in (remote, remote.snapshot(), remote["x"])]
    failing = f"{bucket}-that-does-not-exist/x.smap"
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    for act in (
        lambda: stridemap.open(failing),
        lambda: store.push(failing),
        lambda: stridemap.pull(failing, tmp_path / "y.smap"),
        lambda: stridemap.prune(failing),
        lambda: stridemap.open(f"https://someone:{CANARY}@host/x"),
        lambda: stridemap.open(f"s3://bucket/x?X-Amz-Signature={CANARY}"),
    ):
        with pytest.raises(stridemap.Error) as raised:
            act()
        shown += [str(raised.value), repr(raised.value), repr(pickle.dumps(raised.value.args))]
    assert CANARY not in "".join(shown)
    kept = [file.read_bytes() for file in Path(store.path).glob("REMOTE-*") if file.is_file()]
    assert kept and all(CANARY.encode() not in content for content in kept)


class Web(BaseHTTPRequestHandler):
    """Serves files with ranges, each after a pause. While `is_silent` is set, it answers nothing."""

    root: Path
    is_silent: threading.Event
    end: threading.Event
    pause_seconds = 0.0

    def do_GET(self) -> None:
        if self.is_silent.is_set():
            self.end.wait(60)
            return
        time.sleep(self.pause_seconds)
        try:
            content = (self.root / self.path.lstrip("/")).read_bytes()
        except OSError:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(content))
        part = content[start:end]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hash(content)}"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, threading.Event]]:
    """Serve files, and return the URL, and an event that silences the server."""
    silent, end = threading.Event(), threading.Event()
    handler = type("Handler", (Web,), {"root": tmp_path, "is_silent": silent, "end": end})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/remote.smap", silent
    end.set()
    server.shutdown()
    server.server_close()
    thread.join()


def interrupted(act: Callable[[], Any]) -> tuple[float, int]:
    """Interrupt a call by Ctrl-C. Return how long it took to end then, and how often another thread ran meanwhile."""
    sent: list[float] = []
    turns = 0
    is_over = threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_over.wait(0.001):
            turns += 1

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    counting = threading.Thread(target=count)
    timer = threading.Timer(0.5, interrupt)
    counting.start()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            act()
        ended = time.monotonic()
    finally:
        timer.join()
        is_over.set()
        counting.join()
    return ended - sent[0], turns


@pytest.fixture
def silent_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a bucket whose server accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        yield "s3://bucket/x.smap"


#: How long a call may go on after Ctrl-C, in seconds. The fastest of several tries counts: the machine may be busy.
LATEST = 0.25


def check_interrupted(act: Callable[[], Any]) -> None:
    tries = []
    for _ in range(4):
        tries.append(interrupted(act))
        if tries[-1][0] < LATEST:
            break
    assert min(late for late, _ in tries) < LATEST, tries
    assert max(turns for _, turns in tries) > 50, tries


OPERATIONS: dict[str, Callable[[stridemap.Store, str, Path], Any]] = {
    "push": lambda store, url, path: store.push(url),
    "push_plan": lambda store, url, path: store.push(url, dry_run=True),
    "pull": lambda store, url, path: stridemap.pull(url, path),
    "pull_names": lambda store, url, path: stridemap.pull(url, path, ["x"]),
    "follow": lambda store, url, path: next(stridemap.follow(url, path)),
    "open": lambda store, url, path: stridemap.open(url),
    "open_at": lambda store, url, path: stridemap.open(url, at="v1"),
    "prune": lambda store, url, path: stridemap.prune(url),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_interrupt_ends_a_request_that_is_not_answered(
    operation: str, store: stridemap.Store, silent_bucket: str, tmp_path: Path
) -> None:
    store["x"] = 1
    check_interrupted(lambda: OPERATIONS[operation](store, silent_bucket, tmp_path / "pulled.smap"))
    assert not (tmp_path / "pulled.smap").exists()
    store["x"] = 2


READS: dict[str, Callable[[stridemap.Store, Path], Any]] = {
    "numpy": lambda remote, path: remote["x"].numpy(),
    "part": lambda remote, path: remote["x"][::1000].numpy(),
    "statistics": lambda remote, path: remote["x"].statistics(),
    "verify": lambda remote, path: remote.verify(),
    "refresh": lambda remote, path: remote.refresh(),
    "save": lambda remote, path: stridemap.open(path, "a").save("copy", remote["x"]),
}


@pytest.mark.parametrize("read", READS)
def test_interrupt_ends_a_read_that_is_not_answered(
    read: str, store: stridemap.Store, file_url: str, web: tuple[str, threading.Event], tmp_path: Path
) -> None:
    store["x"] = np.arange(4_000_000)
    store.push(file_url)
    url, silent = web
    remote = stridemap.open(url)
    assert remote["x"][5].item() == 5
    silent.set()
    check_interrupted(lambda: READS[read](remote, tmp_path / "copy.smap"))
    # The handle is as it was.
    silent.clear()
    assert remote["x"][3_000_000].item() == 3_000_000


def test_exception_in_one_thread_leaves_the_reads_of_others(
    store: stridemap.Store, file_url: str, web: tuple[str, threading.Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(4_000_000)
    store["x"] = array
    store.push(file_url)
    url, _ = web
    # Most of the time, the threads of a read wait for an answer, which is when they find out about interrupts.
    monkeypatch.setattr(Web, "pause_seconds", 0.1)
    is_over = threading.Event()
    counts: list[int] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not is_over.is_set():
                # The elements that a handle has received are not requested again.
                with stridemap.open(url) as remote:
                    assert remote["x"].statistics()["count"] == len(array)
                with stridemap.open(url) as remote:
                    assert np.array_equal(remote["x"][::1000].numpy(), array[::1000])
                counts.append(len(array))
        except BaseException as error:
            failed.append(error)

    class Raised(Exception):
        pass

    def fail(done: int, total: int) -> None:
        raise Raised

    def open_again() -> None:
        while True:
            stridemap.open(url)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for n in range(10):
            with pytest.raises(Raised):
                stridemap.pull(url, tmp_path / f"pulled{n}.smap", progress=fail)
        interrupted(open_again)
    finally:
        is_over.set()
        reading.join()
    assert not failed
    assert counts


def test_server_of_files_is_read(
    store: stridemap.Store, file_url: str, web: tuple[str, threading.Event], tmp_path: Path
) -> None:
    store["x"] = np.arange(1_000_000)
    store.push(file_url)
    url, _ = web
    assert np.array_equal(stridemap.open(url)["x"].numpy(), np.arange(1_000_000))
    stridemap.pull(url, tmp_path / "replica.smap")
    assert stridemap.open(tmp_path / "replica.smap").verify() == []
    store["y"] = 1
    with pytest.raises(stridemap.ReadOnlyError, match="http"):
        store.push(url)


@pytest.fixture(scope="module")
def large_remote(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    array = np.random.default_rng(1).random((MIB, 1 << 18), np.float32)
    url = f"{bucket}/large.smap"
    with stridemap.open(tmp_path_factory.mktemp("large") / "x.smap", "x", durable=False) as store:
        store["x"], store["first"] = array, array[:1, :1000]
        store.push(url)
    return url, array


def peak_bytes() -> int:
    """Return the most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_workers_of_dask_read_only_their_blocks(large_remote: tuple[str, np.ndarray]) -> None:
    from dask.distributed import Client, LocalCluster

    from stridemap.dask import from_store, to_store

    url, array = large_remote
    remote = stridemap.open(url)
    settings: dict[str, Any] = {"memory_limit": None, "dashboard_address": None}
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **settings) as cluster, Client(cluster) as client:
        x = from_store(remote, "x", chunks=(max(MIB // 16, 1), -1))
        assert len(pickle.dumps(x)) < 100_000 and CANARY.encode() not in pickle.dumps(x)
        # The modules are loaded, and the store is open.
        from_store(url, "first", chunks=(1, 100)).mean(dtype=np.float64).compute()
        x[:, :10].mean().compute()
        before = client.run(peak_bytes)
        mean = x.mean(dtype=np.float64).compute()
        after = client.run(peak_bytes)
        assert mean == pytest.approx(array.mean(dtype=np.float64), rel=1e-12)
        grown = {worker: after[worker] - before[worker] for worker in after}
        assert len(grown) == 2 and max(grown.values()) < array.nbytes // 2, grown
        for place in url, remote:
            with pytest.raises(stridemap.ReadOnlyError):
                to_store(x, place, "y")


def test_tasks_of_ray_read_a_remote(large_remote: tuple[str, np.ndarray]) -> None:
    import ray

    url, array = large_remote
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, runtime_env=environment)
    try:

        @ray.remote
        def total(tensor: stridemap.Tensor) -> float:
            return float(tensor.numpy().sum(dtype=np.float64))

        @ray.remote
        def names(store: stridemap.Store) -> list[str]:
            return list(store)

        remote = stridemap.open(url)
        parts = [total.remote(part) for part in remote["x"].chunk(4)]
        assert sum(ray.get(parts)) == pytest.approx(array.sum(dtype=np.float64), rel=1e-12)
        assert ray.get([names.remote(remote), names.remote(remote.snapshot())]) == [["first", "x"]] * 2
    finally:
        ray.shutdown()
