"""Saves of checkpoints, of which one at a time runs for a store: in the thread that calls, or in the background."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from . import _checkpoints, _torch_tensors
from ._checkpoints import Rules
from ._places import Place, writing
from ._store import Store


class Saving:
    """A checkpoint that is being saved: see `save_checkpoint` with `wait=False`.

    >>> saving = stridemap.torch.save_checkpoint(store, "step1", {"step": 1}, wait=False)
    >>> saving.wait()
    >>> saving.done(), stridemap.torch.load_checkpoint(store)
    (True, {'step': 1})
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._is_error_known = False

    def wait(self) -> None:
        """Wait until the checkpoint is committed. Raise what went wrong.

        >>> stridemap.torch.save_checkpoint(store, "step1", {"step": 1}, wait=False).wait()
        """
        self._check_process()
        self._ended.wait()
        self._raise()

    def done(self) -> bool:
        """Return whether the save has ended, also if it has failed.

        >>> saving = stridemap.torch.save_checkpoint(store, "step1", {"step": 1}, wait=False)
        >>> saving.wait()
        >>> saving.done()
        True
        """
        self._check_process()
        return self._ended.is_set()

    def __repr__(self) -> str:
        return f"<stridemap.torch.Saving {self._name!r}>"

    def _check_process(self) -> None:
        if self._process != os.getpid():
            message = f"the checkpoint {self._name!r} is saved by process {self._process}, and this is {os.getpid()}, forked from it"
            raise RuntimeError(f"{message}; wait there")

    def _raise(self) -> None:
        if self._error is not None:
            self._is_error_known = True
            raise self._error

    def _run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            # Otherwise, the copies of the tensors would be kept as long as the error.
            traceback.clear_frames(error.__traceback__)
            self._error = error
        finally:
            del act
            self._ended.set()


#: Held by the save that runs, by the uuid of the store.
_turns: dict[str, threading.Lock] = {}

#: The threads that wait for a save of their own, by the uuid of the store.
_callers: dict[str, int] = {}

#: The last save in the background, by the uuid of the store, until another save begins.
_last: dict[str, Saving] = {}


def save(place: Place, name: str, state: Any, replace: bool, rules: Rules, wait: bool) -> Saving | None:
    """Save a checkpoint: see `stridemap.torch.save_checkpoint`."""
    _checkpoints.check(name, rules)
    with writing(place) as store:
        store._check_writable()
        turn, this = _turns.setdefault(store.uuid, threading.Lock()), threading.get_ident()
        if _callers.get(store.uuid) == this:
            message = "this thread is in a save to this store, which a signal handler has interrupted; set a flag there, and save later"
            raise RuntimeError(f"save_checkpoint {name!r} to {store.path}: {message}")
        turn.acquire()
        _callers[store.uuid] = this
        is_handed_over = False
        try:
            if (last := _last.pop(store.uuid, None)) is not None and not last._is_error_known:
                last._raise()
            groups = _checkpoints.groups_of(state)
            if wait:
                store.refresh()
                _checkpoints.commit(store, name, groups, replace, rules)
                return None
            # The caller may close its handle meanwhile.
            own = Store(store._handle.duplicate(False), store._open_mode, False)
            copies = _torch_tensors.copied(groups)
            saving = _last[store.uuid] = Saving(name)

            def act() -> None:
                try:
                    own.refresh()
                    _checkpoints.commit(own, name, copies, replace, rules)
                finally:
                    own.close()
                    turn.release()

            is_handed_over = True
            del _callers[store.uuid]
            try:
                # The interpreter waits for this thread when it exits.
                threading.Thread(target=saving._run, args=(act,), name=f"stridemap: save {name!r}").start()
            except RuntimeError:
                # The interpreter is exiting, or there are too many threads.
                saving._run(act)
            return saving
        finally:
            if not is_handed_over:
                del _callers[store.uuid]
                turn.release()


def _forget() -> None:
    """Forget, in a forked child, the saves of its parent."""
    _turns.clear()
    _callers.clear()
    _last.clear()


def _report() -> None:
    """Report, when the interpreter exits, what went wrong and was not raised."""
    for saving in _last.values():
        if (error := saving._error) is not None and not saving._is_error_known:
            print(f"stridemap: the checkpoint {saving._name!r} was not saved", file=sys.stderr)
            traceback.print_exception(error)


os.register_at_fork(after_in_child=_forget)
atexit.register(_report)
