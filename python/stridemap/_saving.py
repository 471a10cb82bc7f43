"""Saves of checkpoints, of which one at a time runs for a store: in the thread that calls, or in the background."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from . import _checkpoints, _errors, _torch_tensors
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
        self._name, self._process, self._caller = name, os.getpid(), threading.get_ident()
        self._is_handed_over = False
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

    def _raise_instead(self, action: str) -> None:
        """Raise what went wrong instead of another save."""
        if (error := self._error) is None:
            return
        self._is_error_known = True
        message = f"{action}: nothing is saved, because the save of {self._name!r} in the background has failed: {error}"
        if isinstance(error, _errors.Error):
            raise _errors.make(error.kind, message, getattr(error, "errno", None)) from error
        raise RuntimeError(message) from error

    def _begin(self, key: Key) -> None:
        """Wait until no other save to the store runs."""
        while (other := _running.setdefault(key, self)) is not self:
            if not other._is_handed_over and other._caller == self._caller:
                message = "this thread is in a save to this store, which a signal handler has interrupted"
                raise RuntimeError(f"save_checkpoint {self._name!r} to {key[1]}: {message}; set a flag there, and save later")
            other._ended.wait()

    def _end(self, key: Key) -> None:
        if _running.get(key) is self:
            del _running[key]
        self._ended.set()

    def _run(self, key: Key, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            # Otherwise, the copies of the tensors would be kept as long as the error.
            traceback.clear_frames(error.__traceback__)
            self._error = error
        finally:
            del act
            # The next save finds the error.
            self._end(key)


#: A store: its uuid, which its copies have, too, and its path.
Key = tuple[str, str]

#: The save that runs, by its store.
_running: dict[Key, Saving] = {}

#: The last save in the background, by its store, until another save begins.
_last: dict[Key, Saving] = {}


def save(place: Place, name: str, state: Any, replace: bool, rules: Rules, wait: bool) -> Saving | None:
    """Save a checkpoint: see `stridemap.torch.save_checkpoint`."""
    _checkpoints.check(name, rules)
    with writing(place) as store:
        store._check_writable()
        key, this = (store.uuid, os.path.realpath(store.path)), Saving(name)
        thread = None
        try:
            this._begin(key)
            if (last := _last.pop(key, None)) is not None and not last._is_error_known:
                last._raise_instead(f"save_checkpoint {name!r} to {store.path}")
            groups = _checkpoints.groups_of(state)
            if wait:
                store.refresh()
                _checkpoints.commit(store, name, groups, replace, rules)
                return None
            copies = _torch_tensors.copied(groups)
            # The caller may close its handle meanwhile.
            own = Store(store._handle.duplicate(False), store._open_mode, False)

            def act() -> None:
                with own:
                    own.refresh()
                    _checkpoints.commit(own, name, copies, replace, rules)

            _last[key] = this
            # The interpreter waits for this thread when it exits.
            thread = threading.Thread(target=this._run, args=(key, act), name=f"stridemap: save {name!r}")
            this._is_handed_over = True
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is exiting, or there are too many threads.
                this._run(key, act)
            return this
        finally:
            if thread is None or thread.ident is None:
                this._end(key)


def _forget() -> None:
    """Forget, in a forked child, the saves of its parent."""
    _running.clear()
    _last.clear()


def _report() -> None:
    """Report, when the interpreter exits, what went wrong and was not raised."""
    for saving in _last.values():
        if (error := saving._error) is not None and not saving._is_error_known:
            print(f"stridemap: the checkpoint {saving._name!r} was not saved", file=sys.stderr)
            traceback.print_exception(error)


os.register_at_fork(after_in_child=_forget)
atexit.register(_report)
