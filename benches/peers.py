"""Libraries in Python, timed beside stridemap. `stridemap-bench --python PATH` runs this script: one JSON request per
line on its input, one JSON reply per line on its output. A function prepares its input once per set of arguments, and
returns the function that is timed. Any of numpy, torch, h5py, zarr, tensordict, safetensors and stridemap may be missing."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import time

FUNCTIONS = {}
PREPARED = {}
PROCESSORS = os.sched_getaffinity(0)


def peer(*modules):
    """Offers a function, if all modules that it needs are installed."""

    def add(function):
        if all(importlib.util.find_spec(module) for module in modules):
            FUNCTIONS[function.__name__] = function
        return function

    return add


def touch(array):
    """Reads one float32 per page."""
    return array.reshape(-1)[::1024].sum()


def arrays_of(path):
    from safetensors.numpy import load_file

    return load_file(path)


def converted(path, extension, write):
    """Returns the path of the same arrays in another format, which `write` writes if they are not there yet."""
    made = path + extension
    if not os.path.exists(made):
        write(made, arrays_of(path))
    return made


def big(mib):
    import numpy

    return {"x": numpy.arange(mib << 18, dtype=numpy.float32)}


def writer(write, mib, dir):
    """Returns a function that writes a large array, and one that deletes the file."""
    path, arrays = os.path.join(dir, write.__name__), big(mib)

    def remove():
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    return lambda: write(path, arrays), remove


# Formats: `to_*` writes arrays by name, `read_*` opens a file and reads some of them, `write_*` writes a large array.


def to_h5py(path, arrays):
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@peer("h5py", "safetensors", "numpy")
def read_h5py(arrays, names):
    import h5py

    path = converted(arrays, ".h5", to_h5py)

    def timed():
        with h5py.File(path) as file:
            return sum(touch(file[name][...]) for name in names)

    return timed, None


@peer("h5py", "numpy")
def write_h5py(mib, dir):
    return writer(to_h5py, mib, dir)


def to_zarr(path, arrays):
    import zarr

    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=array, chunks=array.shape, compressors=None)


@peer("zarr", "safetensors", "numpy")
def read_zarr(arrays, names):
    import zarr

    path = converted(arrays, ".zarr", to_zarr)

    def timed():
        group = zarr.open_group(path, mode="r")
        return sum(touch(group[name][...]) for name in names)

    return timed, None


@peer("zarr", "numpy")
def write_zarr(mib, dir):
    return writer(to_zarr, mib, dir)


def to_tensordict(path, arrays):
    import torch
    from tensordict import TensorDict

    TensorDict({name: torch.from_numpy(array) for name, array in arrays.items()}).memmap(path)


@peer("tensordict", "safetensors", "numpy")
def read_tensordict(arrays, names):
    from tensordict import TensorDict

    path = converted(arrays, ".tensordict", to_tensordict)

    def timed():
        loaded = TensorDict.load_memmap(path)
        return sum(touch(loaded[name]) for name in names)

    return timed, None


@peer("tensordict", "numpy")
def write_tensordict(mib, dir):
    return writer(to_tensordict, mib, dir)


def to_torch(path, arrays):
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


@peer("torch", "safetensors", "numpy")
def read_torch(arrays, names):
    import torch

    path = converted(arrays, ".pt", to_torch)

    def timed():
        loaded = torch.load(path, mmap=True, weights_only=True)
        return sum(touch(loaded[name]) for name in names)

    return timed, None


@peer("safetensors", "torch")
def read_safetensors(arrays, names):
    from safetensors import safe_open

    def timed():
        with safe_open(arrays, "pt") as file:
            return sum(touch(file.get_tensor(name)) for name in names)

    return timed, None


def reader(store, names, load):
    import stridemap

    def timed():
        with stridemap.open(store) as opened:
            opened.prefetch()
            loaded = load(opened)
            return sum(touch(loaded[name]) for name in names)

    return timed, None


@peer("stridemap", "numpy")
def read_stridemap_numpy(store, names):
    return reader(store, names, lambda opened: {name: opened[name].numpy() for name in names})


@peer("stridemap", "torch")
def read_stridemap_torch(store, names):
    from stridemap.torch import load_file

    return reader(store, names, load_file)


@peer("torch", "numpy")
def write_torch(mib, dir):
    return writer(to_torch, mib, dir)


# Copies of strided views.

VIEWS = {
    "transposed": lambda x, permute: permute(x, (1, 0)),
    "permuted": lambda x, permute: permute(x.reshape(x.shape[0], 32, -1), (1, 2, 0)),
    "stepped": lambda x, permute: x[:, ::2],
    "sliced": lambda x, permute: x[:, 1:-1],
    "channels last": lambda x, permute: permute(x, (0, 2, 3, 1)),
}
ITEMS = {1: "uint8", 2: "int16", 4: "float32", 8: "float64", 16: "complex128"}


@peer("numpy")
def copy_numpy(pattern, size, itemsize, threads):
    import numpy

    x = numpy.ones(size, dtype=ITEMS[itemsize])
    if pattern == "reversed":
        view = x[::-1, ::-1]
    elif pattern == "broadcast":
        view = numpy.broadcast_to(x[:1], x.shape)
    else:
        view = VIEWS[pattern](x, numpy.transpose)
    return lambda: numpy.array(view, order="C", copy=True), None


@peer("torch")
def copy_torch(pattern, size, itemsize, threads):
    import torch

    x = torch.ones(size, dtype=getattr(torch, ITEMS[itemsize]))
    # torch has no negative strides: its flip copies.
    if pattern == "reversed":
        return lambda: x.flip(0, 1), None
    view = x[:1].expand(x.shape) if pattern == "broadcast" else VIEWS[pattern](x, torch.permute)
    return lambda: view.clone(memory_format=torch.contiguous_format), None


# Rows by index. `path` is a file of float32.


def spread(count, rows):
    return [at * 7368787 % rows for at in range(count)]


@peer("torch")
def gather_torch(path, size, indices):
    import torch

    x = torch.from_file(path, shared=True, size=size[0] * size[1], dtype=torch.float32).view(size)
    index = torch.tensor(spread(indices, size[0]))
    return lambda: x.index_select(0, index), None


@peer("numpy")
def gather_numpy(path, size, indices):
    import numpy

    x = numpy.memmap(path, dtype=numpy.float32, mode="r", shape=tuple(size))
    index = numpy.array(spread(indices, size[0]))
    return lambda: x.take(index, axis=0), None


# Objects of a bucket. `files` are put, or got to `dir`, with `jobs` requests at a time.


def obstore_at(url):
    from obstore.store import S3Store

    bucket, prefix = url.removeprefix("s3://").split("/", 1)
    options = {"allow_http": True} if os.environ.get("AWS_ALLOW_HTTP") else {}
    return S3Store(bucket, prefix=prefix, client_options=options)


def put_all(store, files, jobs):
    import concurrent.futures

    import obstore

    def put(path):
        with open(path, "rb") as file:
            obstore.put(store, os.path.basename(path), file.read(), use_multipart=False)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(put, files))


@peer("obstore")
def put_obstore(url, files, jobs):
    import obstore

    store = obstore_at(url)
    names = [os.path.basename(path) for path in files]
    # To replace objects is less work for a server than to add some.
    return lambda: put_all(store, files, jobs), lambda: obstore.delete(store, names)


@peer("obstore")
def get_obstore(url, files, jobs, dir):
    import concurrent.futures

    import obstore

    store = obstore_at(url)
    put_all(store, files, jobs)

    def get(path):
        name = os.path.basename(path)
        with open(os.path.join(dir, name), "wb") as file:
            file.write(obstore.get(store, name).bytes())

    def timed():
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(get, files))

    def remove():
        for path in files:
            os.remove(os.path.join(dir, os.path.basename(path)))

    return timed, remove


def use_processors(count):
    """Restricts all threads of this process to some processors, as stridemap-bench is."""
    chosen = sorted(PROCESSORS)[:count]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), chosen)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(len(chosen))


def answer(request):
    if "list" in request:
        packages = ["numpy", "torch", "h5py", "zarr", "tensordict", "safetensors", "obstore"]
        installed = [name for name in packages if importlib.util.find_spec(name)]
        versions = {name: importlib.metadata.version(name) for name in installed}
        return {"functions": sorted(FUNCTIONS), "versions": {"Python": sys.version.split()[0], **versions}}
    arguments = request["arguments"]
    case, key = request["case"], request["function"]
    if PREPARED.get("case") != case:
        PREPARED.clear()
        PREPARED["case"] = case
    if key not in PREPARED:
        PREPARED[key] = FUNCTIONS[key](**arguments)
    use_processors(arguments.get("threads", len(PROCESSORS)))
    timed, clean = PREPARED[key]
    began = time.perf_counter()
    kept = timed()
    seconds = time.perf_counter() - began
    del kept
    if clean:
        clean()
    return seconds


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
