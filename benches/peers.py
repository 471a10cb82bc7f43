"""Libraries in Python, timed beside stridemap. `stridemap-bench --python PATH` runs this script: one JSON request per
line on its input, one JSON reply per line on its output. A function prepares its input once per set of arguments, and
returns what is timed."""

import importlib.util
import json
import sys
import time

FUNCTIONS = {}
PREPARED = {}


def peer(*modules):
    """Offers a function, if all modules that it needs are installed."""

    def add(function):
        if all(importlib.util.find_spec(module) for module in modules):
            FUNCTIONS[function.__name__] = function
        return function

    return add


@peer("safetensors", "numpy")
def open_safetensors(path, name):
    from safetensors import safe_open

    def timed():
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)[0]

    return timed


def answer(request):
    if "list" in request:
        return sorted(FUNCTIONS)
    key = json.dumps(request, sort_keys=True)
    if key not in PREPARED:
        PREPARED.clear()  # the case before this one has ended, or has other arguments
        PREPARED[key] = FUNCTIONS[request["function"]](**request["arguments"])
    began = time.perf_counter()
    kept = PREPARED[key]()
    seconds = time.perf_counter() - began
    del kept
    return seconds


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
