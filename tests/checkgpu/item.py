"""What an item is: a number, a name, and a function that returns figures, fails, or cannot run."""

import collections
import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import cuda_driver as cuda
import daemon as d

QUICK = bool(os.environ.get("CHECKGPU_QUICK"))  # small sizes, few rounds: for the fake device
MIB = 1 << 20
NOISE = 0 if QUICK else 128 * MIB  # other memory of a device comes and goes


class NotRun(Exception):
    """Why an item cannot run here."""


@dataclass
class Item:
    number: int
    name: str
    check: Callable[[], dict | None]


items: dict[int, Item] = {}


def item(number: int, name: str):
    def add(check):
        items[number] = Item(number, name, check)
        return check

    return add


def need(condition, why: str) -> None:
    if not condition:
        raise NotRun(why)


def expect(condition, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def result_of(found: Item) -> dict:
    """Runs it; what its line says."""
    said: dict = {"item": found.number, "name": found.name}
    started = time.monotonic()
    try:
        said |= {"result": "passed", "figures": found.check() or {}}
    except NotRun as why:
        said |= {"result": "not run", "why": str(why)}
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(at.filename)}:{at.lineno}"
        said |= {"result": "failed", "why": f"{type(error).__name__}: {error} ({place})"}
    return said | {"seconds": round(time.monotonic() - started, 1)}


# ---------------------------------------------------------------------------- what items share


@contextlib.contextmanager
def running_daemon(*options: str):
    """A daemon that this process and its peers find; an item may kill it."""
    with tempfile.TemporaryDirectory(prefix="checkgpu-") as folder:
        daemon = d.Daemon(folder, *options)
        os.environ |= {"TENSORCX_SOCKET": str(daemon.path), "TENSORCX_AUTOSTART": "0"}
        try:
            yield daemon
        finally:
            daemon.kill()


def free_bytes() -> int:
    with cuda.current():
        return cuda.free_and_total()[0]


def settle_free(baseline: int) -> float:
    """Waits until as much of the device is free again; seconds."""
    started = time.monotonic()
    d.settle(lambda: free_bytes() >= baseline - NOISE, "the end of device memory")
    return round(time.monotonic() - started, 3)


def address_of(tensor) -> int:
    return tensor.__cuda_array_interface__["data"][0]


class Clock:
    """Microseconds of what is done again and again, by name."""

    def __init__(self):
        self.took: dict[str, list[float]] = collections.defaultdict(list)

    def time(self, name: str, act, *arguments):
        started = time.perf_counter_ns()
        value = act(*arguments)
        self.took[name].append((time.perf_counter_ns() - started) / 1000)
        return value

    def figures(self) -> dict:
        ordered = {name: sorted(values) for name, values in self.took.items()}
        return {
            name: {"p50": round(values[len(values) // 2], 1), "max": round(values[-1], 1)}
            for name, values in ordered.items()
        }


def sizes() -> list[int]:
    """2 MiB to 64 GiB, as far as the device has room."""
    wanted = [2 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB, 65536 * MIB]
    room = free_bytes() * 4 // 5
    return [nbytes for nbytes in wanted if nbytes <= (64 * MIB if QUICK else room)]


def torch_with_cuda():
    """PyTorch, if it can use the device."""
    try:
        import torch
    except ImportError:
        raise NotRun("PyTorch is not installed") from None
    need(torch.cuda.is_available(), "PyTorch sees no CUDA device")
    return torch
