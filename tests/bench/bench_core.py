"""What the core costs, as ratios to the physical limits and to a peer measured in the same run.

    make bench            PYTHONPATH=build/python python tests/bench/bench_core.py [--json]

Limits: a round trip over a bare Unix socket between two Python processes (RT), and memcpy between
pages touched before. Peer: multiprocessing.shared_memory. Each figure is the median over its
repetitions, with daemon and client on one core ("same") or on two ("cross"): left alone the kernel
flips between these two regimes, and ratios of mixed samples mean nothing.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np

import tensorcx as cx

KIB, MIB = 1024, 1024 * 1024


def median_us(action: Callable[[], object], repeat: int, warm: int = 3) -> float:
    """Median time of one call, microseconds."""
    for _ in range(warm):
        action()
    times = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def pin(cpu: int, pid: int = 0) -> None:
    os.sched_setaffinity(pid, {cpu})


@contextmanager
def daemon(cpu: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A private daemon on `cpu`, and the default client connected to it."""
    program = Path(cx.__file__).parent / "lib" / "tensorcxd"
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/d.sock"
        process = subprocess.Popen([program, "--socket", path, "--log-level", "error", *options])
        try:
            while not os.path.exists(path):
                assert process.poll() is None
                time.sleep(0.01)
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                pin(cpu, int(thread))
            os.environ["TENSORCX_SOCKET"] = path
            yield process
        finally:
            process.terminate()
            process.wait()


def round_trip_us(cpu: int, nbytes: int = 64) -> float:
    """A message and its echo over a SEQPACKET socket, the other end a Python process on `cpu`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        pin(cpu)
        while message := theirs.recv(65536):
            theirs.send(message)
        os._exit(0)
    theirs.close()
    message = bytes(nbytes)

    def trip() -> None:
        ours.send(message)
        ours.recv(65536)

    result = median_us(trip, 3000, 100)
    ours.close()
    os.waitpid(pid, 0)
    return result


def memcpy_us(nbytes: int) -> float:
    source, target = np.ones(nbytes, "u1"), np.zeros(nbytes, "u1")
    return median_us(lambda: np.copyto(target, source), 15)


def names_and_sizes(client: "cx.Client", rt: float) -> dict[str, float]:
    """put, get and delete by size; RT = 1, or memcpy = 1 where a copy dominates."""
    figures = {}
    for nbytes, label, repeat in (
        (64, "64 B", 2000),
        (4 * KIB, "4 KiB", 2000),
        (MIB, "1 MiB", 200),
    ):
        array = np.ones(nbytes, "u1")
        figures[f"put {label}, RT"] = median_us(lambda a=array: client.put("a", a), repeat) / rt
        figures[f"get {label} + read, RT"] = (
            median_us(lambda: np.asarray(client.get("a"))[0], repeat) / rt
        )
    small = memcpy_us(MIB)
    figures["put 1 MiB - memcpy, RT"] = figures.pop("put 1 MiB, RT") - small / rt
    figures["exists, RT"] = median_us(lambda: client.exists("a"), 2000) / rt

    array = np.ones(64 * MIB, "u1")
    limit = memcpy_us(64 * MIB)
    start = time.perf_counter_ns()
    client.put("big", array)
    figures["first put 64 MiB, memcpy"] = (time.perf_counter_ns() - start) / 1e3 / limit

    def put_and_delete() -> None:
        client.put("big", array)
        client.delete("big")

    figures["put + delete 64 MiB, memcpy"] = median_us(put_and_delete, 15) / limit
    client.put("big", array)
    figures["get 64 MiB + read, RT"] = median_us(lambda: np.asarray(client.get("big"))[0], 500) / rt
    client.delete("big")
    client.delete("a")
    return figures


def shared_memory_figures(rt: float) -> dict[str, float]:
    """The same with multiprocessing.shared_memory: create, copy, close, unlink."""

    def put(array: np.ndarray) -> None:
        block = shared_memory.SharedMemory(create=True, size=array.nbytes)
        np.copyto(np.ndarray(array.shape, array.dtype, block.buf), array)
        block.close()
        block.unlink()

    small, large = np.ones(4 * KIB, "u1"), np.ones(64 * MIB, "u1")
    return {
        "shared_memory: put + delete 4 KiB, RT": median_us(lambda: put(small), 500) / rt,
        "shared_memory: put + delete 64 MiB, memcpy": median_us(lambda: put(large), 7)
        / memcpy_us(64 * MIB),
    }


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise LookupError(pid)


def in_use(client: "cx.Client") -> int:
    stats = client.stats()
    return stats["committed_bytes"] - stats["warm_bytes"]


def many_small(
    client: "cx.Client", process: subprocess.Popen[bytes], rt: float
) -> dict[str, float]:
    """100,000 tensors of 4 KiB alive at once."""
    count, array = 100_000, np.ones(4 * KIB, "u1")
    before = resident_kib(process.pid)
    start = time.perf_counter_ns()
    alive = [client.put(f"n/{i}", array) for i in range(count)]
    elapsed = (time.perf_counter_ns() - start) / 1e3 / count
    figures = {
        "100,000 x 4 KiB: each put, RT": elapsed / rt,
        "100,000 x 4 KiB: daemon's books, B each": (resident_kib(process.pid) - before)
        * 1024
        / count,
        "100,000 x 4 KiB: memory in use, B each": in_use(client) / count,
        "100,000 x 4 KiB: descriptors of the client": len(os.listdir("/proc/self/fd")),
    }
    for i in range(count):
        client.delete(f"n/{i}")
    alive.clear()
    return figures


def killed_holder(client: "cx.Client") -> dict[str, float]:
    """From SIGKILL of the only holder of 256 MiB, mapped and touched, until it counts as free."""
    program = (
        "import tensorcx as cx, sys, time\n"
        "t = cx.zeros((256 << 20,), 'uint8'); print(flush=True); time.sleep(600)"
    )
    times = []
    for _ in range(5):
        holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        start = time.perf_counter_ns()
        holder.send_signal(signal.SIGKILL)
        while client.stats()["bytes"]:
            pass
        times.append((time.perf_counter_ns() - start) / 1e6)
        holder.wait()
    return {"SIGKILL of a holder of 256 MiB until free, ms": statistics.median(times)}


def idle(process: subprocess.Popen[bytes]) -> dict[str, float]:
    ticks = Path(f"/proc/{process.pid}/stat").read_text().split()[13:15]
    time.sleep(3)
    later = Path(f"/proc/{process.pid}/stat").read_text().split()[13:15]
    used = sum(map(int, later)) - sum(map(int, ticks))
    return {
        "idle daemon: CPU in 3 s, ms": used * 1000 / os.sysconf("SC_CLK_TCK"),
        "idle daemon: resident, KiB": float(resident_kib(process.pid)),
    }


def run(regime: str) -> dict[str, float]:
    here, there = (0, 0) if regime == "same" else (0, 1)
    pin(here)
    rt = round_trip_us(there)
    figures = {"RT, us": rt, "memcpy 64 MiB, ms": memcpy_us(64 * MIB) / 1e3}
    with daemon(there, "--capacity", "4G") as process:
        client = cx.connect(os.environ["TENSORCX_SOCKET"])
        figures |= idle(process)
        figures |= names_and_sizes(client, rt)
        figures |= many_small(client, process, rt)
        figures |= killed_holder(client)
    return figures | shared_memory_figures(rt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    regimes = ["same", "cross"] if (os.cpu_count() or 1) > 1 else ["same"]
    results = {regime: run(regime) for regime in regimes}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':52}" + "".join(f"{regime:>10}" for regime in regimes))
    for figure in results[regimes[0]]:
        print(f"{figure:52}" + "".join(f"{results[r][figure]:10.2f}" for r in regimes))


if __name__ == "__main__":
    main()
