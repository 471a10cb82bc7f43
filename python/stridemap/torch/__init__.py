"""Models, state dicts and checkpoints of PyTorch.

The functions for files and models have the names of those in `safetensors.torch`. Tensors that share memory share it
again when they are loaded: the bytes are saved once, and each tensor is saved as a header over them.

Loaded tensors are mapped, and not copied. Writing to them, as training does, changes a copy of a page in this process,
and never the store. Each load maps the files again, so what is written to the tensors of one load is not seen in those
of another. Tensors that overlap are on one storage of PyTorch, and each of the others is on a storage of its own bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any, Literal, overload

import torch

from .. import _checkpoints, _errors, _saving, _torch_models, _torch_storages, _torch_tensors
from .._files import File
from .._following import Follower
from .._history import At
from .._interop import of_bytes, to_bytes
from .._places import Place, check_first, ended, reading, replacing
from .._progress import Progress, counter
from .._safe_open import safe_open
from .._saving import Saving

__all__ = [
    "Follower",
    "Saving",
    "follow",
    "load",
    "load_checkpoint",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_checkpoint",
    "save_file",
    "save_model",
]

Device = torch.device | str | int


def save_file(
    tensors: Mapping[str, torch.Tensor],
    place: Place,
    metadata: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    replace: bool = False,
    progress: Progress | bool | None = None,
) -> None:
    """Save tensors in one commit, each under its name after `prefix`. `load_file` then returns exactly these tensors.

    `place` is an open store, or the path of one, which is created if there is none. If the prefix does not end with "."
    or "/", a "." follows it. Tensors of the same names are replaced. If there are others whose names begin with the
    prefix, an error names them; with `replace`, they are removed. What a tag names does not change.

    `metadata` become the attributes of the store, or of the prefix. If they are given, others are removed like tensors.

    `progress` is called after each tensor, with the bytes that are saved and those of all tensors. If it raises an
    exception, nothing is saved. With `True`, `tqdm` shows a bar if it is installed.

    >>> save_file({"weight": torch.ones(2)}, "model.smap")
    >>> load_file("model.smap")
    {'weight': tensor([1., 1.])}
    """
    check_first("save_file(tensors, place)", "the dict", tensors, is_right=hasattr(tensors, "items"))
    _save(tensors, place, metadata, prefix, replace, "save_file", progress)


def _save(
    tensors: Mapping[str, torch.Tensor],
    place: Place,
    metadata: Mapping[str, str] | None,
    prefix: str,
    replace: bool,
    action: str,
    progress: Progress | bool | None,
) -> None:
    prefix = ended(prefix)
    groups = _torch_tensors.groups_of(tensors)
    sizes = [max(tensor.nbytes for _, tensor in group) for group in groups]
    with (
        counter(action, progress, sum(sizes)) as count,
        replacing(place, prefix, tensors, metadata, replace, action) as (txn, new),
    ):
        for group, nbytes in zip(groups, sizes, strict=True):
            _torch_tensors.save(txn, [(prefix + name, tensor) for name, tensor in group], new)
            count(nbytes)


def load_file(place: Place, device: Device = "cpu", *, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix`, by their names without it. Those of a store are mapped, not read.

    `place` is an open store, or a path: of a store, or of a file that `stridemap.open` reads. Tensors of a file are
    copied. If the prefix does not end with "." or "/", a "." follows it. Tensors that are moved to another `device` share
    memory there, if they do in the store.

    >>> load_file(store)["x"][1]
    tensor([3, 4, 5])
    """
    return _load(place, device, ended(prefix), prefetch=torch.device(device).type != "cpu")


def _load(place: Place, device: Device, prefix: str, prefetch: bool) -> dict[str, torch.Tensor]:
    """Return the tensors of a store. `prefetch` says whether all elements will be read soon."""
    with reading(place) as opened:
        # All names are of one generation, also if another thread refreshes the store.
        source = opened if isinstance(opened, File) else opened.snapshot()
        names = [name for name in source if name.startswith(prefix)]
        if prefetch and not isinstance(source, File):
            source.prefetch(names)
        ids = source._handle.storage_ids() if isinstance(source, File) else {}
        found = [source[name] for name in names]
        tensors = _torch_storages.to_torch(found, {}, [ids.get(name) for name in names])
    moved = _torch_storages.moved(tensors, torch.device(device))
    return {name.removeprefix(prefix): tensor for name, tensor in zip(names, moved, strict=True)}


def save(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file. Those that share memory are written apart.

    >>> load(save({"x": torch.arange(3)}))
    {'x': tensor([0, 1, 2])}
    """
    return to_bytes(tensors, metadata)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors in the bytes of a safetensors file, or of another file that `stridemap.open` reads.

    >>> load(save({"x": torch.arange(3)}))["x"]
    tensor([0, 1, 2])
    """
    return {name: tensor.torch() for name, tensor in of_bytes(data).items()}


def save_model(
    model: torch.nn.Module,
    place: Place,
    metadata: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    replace: bool = False,
    progress: Progress | bool | None = None,
) -> None:
    """Save the state dict of a model, as `save_file` does. Tied weights stay tied.

    >>> save_model(torch.nn.Linear(3, 2), store, prefix="model")
    >>> store["model.weight"].shape
    (2, 3)
    """
    check_first("save_model(model, place)", "the model", model, is_right=hasattr(model, "state_dict"))
    _save(model.state_dict(), place, metadata, prefix, replace, "save_model", progress)


def load_model(
    model: torch.nn.Module,
    place: Place,
    strict: bool = True,
    device: Device = "cpu",
    *,
    prefix: str = "",
    assign: bool = False,
) -> tuple[list[str], list[str]]:
    """Copy the tensors of a store into the parameters and buffers of a model, which keep their dtype and device.

    Return the names that are missing in the store, and those that the model does not have. With `strict`, such names
    raise a `RuntimeError`. Parameters that are tied stay tied, and one of their names in the store is enough.

    With `assign`, nothing is copied: the mapped tensors become the parameters and buffers, with the dtypes of the store.
    The parameters are then new objects: do this before the model is moved to its device, before the optimizer is made,
    and before the model is wrapped, as by `DistributedDataParallel`.

    Parameters and buffers on the device meta have no memory to be copied into. The mapped tensors become these parameters,
    without a copy if they have the dtype of the model. A warning names buffers that stay on meta, because no state dict has
    them: make the model with `accelerate.init_empty_weights`, which computes them, or compute them afterwards.

    Tensors are moved to `device` before they are copied or assigned.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.smap"
    >>> save_model(torch.nn.Linear(3, 2), path)
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(3, 2)                 # no memory is allocated
    >>> load_model(model, path)                           # the parameters are the mapped tensors
    ([], [])
    >>> model(torch.ones(3)).shape
    torch.Size([2])
    """
    check_first("load_model(model, place)", "the model", model, is_right=hasattr(model, "named_parameters"))
    tied = _tied(model)
    # On the device meta, and with `assign`, the mapped tensors are used as they are.
    is_copied = not assign and any(tensor.device.type != "meta" for tensor in _torch_models.named(model).values())
    is_moved = torch.device(device).type != "cpu"
    state = _load(place, "cpu", ended(prefix), prefetch=is_copied or is_moved)
    loaded = [[name for name in names if name in state] for names in tied]
    for names in loaded:
        for name in names[1:]:
            if not _torch_models.is_same(state[names[0]], state[name]):
                message = f"{names[0]!r} and {name!r} are tied in the model, but have different elements in the store"
                raise _errors.make("InvalidArgument", message)
    state = dict(zip(state, _torch_storages.moved(list(state.values()), torch.device(device)), strict=True))
    on_meta = {} if assign else _of_meta(model, state)
    if on_meta:
        rest = {name: tensor for name, tensor in state.items() if name not in on_meta}
        model.load_state_dict(on_meta, strict=False, assign=True)
        result = model.load_state_dict(rest, strict=False)
        missing = [name for name in result.missing_keys if name not in on_meta]
    else:
        result = model.load_state_dict(state, strict=False, assign=assign)
        missing = result.missing_keys
    present = {name for names, found in zip(tied, loaded, strict=True) if found for name in names}
    for names, found in zip(tied, loaded, strict=True):
        first = _attribute(model, (found or names)[0])
        for name in names if assign or not on_meta.keys().isdisjoint(names) else ():
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, first)
    absent = [name for name in missing if name not in present]
    unexpected = list(result.unexpected_keys)
    if strict and (absent or unexpected):
        message = f"missing in the store: {absent}; not in the model: {unexpected}"
        own = list(model.state_dict())
        if state.keys().isdisjoint(own) and (fitting := _fitting_prefixes(place, own)):
            where = f"the prefix {prefix!r} and " if prefix else ""
            message = f"no tensor in the store has {where}a name of the model, such as {own[0]!r}"
            raise RuntimeError(f"load_model: {type(model).__name__}: {message}; give prefix={' or '.join(map(repr, fitting[:3]))}")
        raise RuntimeError(f"load_model: {type(model).__name__}: {message}; pass strict=False to load the others")
    empty = [name for name, buffer in model.named_buffers() if buffer.device.type == "meta" and name not in {*absent, *state}]
    if empty:
        advice = "compute them, or make the model with accelerate.init_empty_weights"
        message = f"load_model: no state dict has these buffers, so they stay on the device meta: {empty}; {advice}"
        warnings.warn(message, stacklevel=2)
    return absent, unexpected


def _fitting_prefixes(place: Place, own: list[str]) -> list[str]:
    """Return the prefixes with which the names of a model are in a store."""
    with reading(place) as store:
        names = list(store)
    found = [{full.removesuffix(name) for full in names if full.endswith(("." + name, "/" + name))} for name in own]
    return sorted(set.intersection(*found)) if found else []


def _of_meta(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors for what is on the device meta, in the dtypes of the model. Tied tensors stay tied."""
    converted: dict[Hashable, torch.Tensor] = {}
    found = {}
    for name, tensor in _torch_models.named(model).items():
        if tensor.device.type == "meta" and name in state:
            value = state[name]
            if not torch.nn.parameter.is_lazy(tensor):
                key = (value.data_ptr(), value.shape, value.stride(), value.dtype, tensor.dtype)
                value = converted.setdefault(key, value.to(tensor.dtype)) if value.numel() else value.to(tensor.dtype)
            found[name] = value
    return found


@overload
def save_checkpoint(
    place: Place,
    name: str,
    state: Any,
    *,
    replace: bool = False,
    wait: Literal[True] = True,
    keep_last: int | None = None,
    keep_every: int | None = None,
) -> None: ...
@overload
def save_checkpoint(
    place: Place,
    name: str,
    state: Any,
    *,
    replace: bool = False,
    wait: Literal[False],
    keep_last: int | None = None,
    keep_every: int | None = None,
) -> Saving: ...
def save_checkpoint(
    place: Place,
    name: str,
    state: Any,
    *,
    replace: bool = False,
    wait: bool = True,
    keep_last: int | None = None,
    keep_every: int | None = None,
) -> Saving | None:
    """Save a state, such as that of a model or an optimizer: dicts, lists, tuples, tensors, arrays and plain values.

    Each value comes back equal and of its exact type, such as `OrderedDict`, `numpy.float32` or `pathlib.Path`. A `TypeError`
    names the place of what a checkpoint cannot hold, such as a namedtuple, and says what to save instead.

    This is one commit, which gets the tag `name`. An existing tag is moved only if `replace` is true. The tensors have the
    same names in each checkpoint, `checkpoint/` and their key paths, so the newest one is also in the store without a
    tag. A tensor that is equal to that of the last checkpoint is not written again. Other tensors stay as they are.

    With `wait=False`, the tensors are copied, and this returns while they are saved in the background. One save at a time
    runs for a store: the next one waits for it. What went wrong is raised by `Saving.wait`, or by the next save to this
    store, which then saves nothing. When the interpreter exits, it waits for the save.

    `keep_last` and `keep_every` are rules of `Store.prune`. The commit after this one removes the checkpoints that none of
    them keeps, of those whose names differ from `name` only in numbers: with "step20", this is "step1", and not "best".

    >>> import tempfile, stridemap
    >>> with stridemap.open(tempfile.mkdtemp() + "/run.smap", "x") as store:
    ...     for step in range(3):
    ...         save_checkpoint(store, f"step{step}", {"w": torch.full((2,), float(step)), "step": step})
    ...     print(load_checkpoint(store), load_checkpoint(store, "step0")["w"])
    ...     print([tag.name for tag in store.prune(keep_last=2)], store["checkpoint/w"].shape)
    {'w': tensor([2., 2.]), 'step': 2} tensor([0., 0.])
    ['step0'] (2,)
    """
    return _saving.save(place, name, state, replace, _checkpoints.Rules(keep_last, keep_every), wait)


def load_checkpoint(place: Place, at: At | None = None) -> Any:
    """Return the state of a checkpoint. Its tensors are mapped.

    `at` is the name that it was saved with, or the number of a generation. Without it, this is the newest checkpoint, or
    the one that an open store shows.

    >>> save_checkpoint(store, "step1", {"step": 1})
    >>> load_checkpoint(store), load_checkpoint(store, "step1")
    ({'step': 1}, {'step': 1})
    """
    with reading(place) as store:
        if isinstance(store, File):
            raise _errors.make("NotAStore", f"load_checkpoint: {store.path} is a {store.format} file, not a store; use load_file")
        if at is None:
            snapshot = store.snapshot()
            return _checkpoints.load(snapshot, f"generation {snapshot.generation} of {store.path}")
        return _checkpoints.load(store.at(at), f"{at!r} of {store.path}")


def follow(place: Place, model: torch.nn.Module, device: Device = "cpu", *, prefix: str = "") -> Follower:
    """Load a model, as `load_model` does with `assign`, and return what takes new generations of the store for it.

    `Follower.update` takes the newest generation, which another process has committed or pulled. It replaces only the
    parameters and buffers that were saved since, with mapped tensors and without a copy; the others keep their memory.
    Parameters stay the same objects, with the dtype and on the device that they have. The names with the prefix must be
    those of the model: for checkpoints of `{"model": model.state_dict()}`, the prefix is "checkpoint/model".

    The follower has its own handle of the store. Until `update`, the generation of the model stays readable.

    >>> import tempfile
    >>> place = tempfile.mkdtemp() + "/run.smap"
    >>> trained = torch.nn.Linear(3, 2)
    >>> save_checkpoint(place, "step0", {"model": trained.state_dict()})
    >>> with torch.device("meta"):
    ...     served = torch.nn.Linear(3, 2)
    >>> follower = follow(place, served, prefix="checkpoint/model")
    >>> _ = torch.nn.init.zeros_(trained.bias)
    >>> save_checkpoint(place, "step1", {"model": trained.state_dict()})
    >>> follower.update(), served.bias.tolist()           # between batches
    (['bias'], [0.0, 0.0])
    >>> follower.update()                                 # there is nothing new
    []
    """
    follower = Follower(place, model, prefix)
    # A parameter that is made in inference mode could not get other data.
    with torch.inference_mode(False):
        load_model(model, follower._store, device=device, prefix=prefix, assign=True)
    return follower


def _tied(model: torch.nn.Module) -> list[list[str]]:
    return [names for names in _torch_models.grouped(model) if len(names) > 1]


def _attribute(model: torch.nn.Module, name: str) -> Any:
    owner, _, own_name = name.rpartition(".")
    return getattr(model.get_submodule(owner), own_name)
