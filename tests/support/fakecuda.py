"""The fake CUDA driver (tests/fakecuda) in Python tests: a machine with devices, and faults.

    with fakecuda.machine():    # or the fixture fake_machine, one per test module
        ...                     # this process, and all that it starts, has two devices

A process keeps the devices that it had at its first use of CUDA; so a test that wants others starts
a program with environment(...). Leaving machine() fails if any process still has device memory.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import cuda_driver
import daemon as d
import pytest

FOLDER = d.PACKAGES.parent / "fakecuda"
LIBRARY = FOLDER / "libcuda.so.1"
UUIDS = [f"face{'0' * 26}{i:02}" for i in range(8)]  # of the devices, unless a test names others
FRESH, POISON = 0xA5, 0xDD
BLOCK = 2 << 20  # the granularity


def environment(variant: str = "", **extra: str) -> dict[str, str]:
    """For a program with another driver: `variant` is stub, missing or broken (tests/fakecuda)."""
    return d.bare_environment(LD_LIBRARY_PATH=str(FOLDER / variant), **extra)


@contextlib.contextmanager
def machine(devices: str = "2", *, patience=20, **extra: str):
    """Two devices of 1 GiB, here and in what is started; yields where their memory lies."""
    ctypes.CDLL(str(LIBRARY))  # from now on this is libcuda.so.1 here
    folder = Path(tempfile.mkdtemp(prefix="fakecuda-", dir="/dev/shm"))
    before = os.environ.get("FAKECUDA_DIR")
    os.environ["FAKECUDA_DIR"] = str(folder)  # also later: threads of the library outlive a test
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setenv("LD_LIBRARY_PATH", str(FOLDER))
        patch.setenv("FAKECUDA_DEVICES", devices)
        for name, value in extra.items():
            patch.setenv(name, value)
        try:
            yield folder
            try:
                d.settle(lambda: not left(folder), "the end of device memory", patience)
            except AssertionError as error:
                raise AssertionError(f"memory left on a device: {holders(folder)}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if before and Path(before).exists():
                os.environ["FAKECUDA_DIR"] = before


@pytest.fixture(scope="module")
def fake_machine():
    with machine() as folder:
        yield folder


@pytest.fixture
def faults():
    """fail(), which ends with the test."""
    yield fail
    fail("")


@pytest.fixture
def delays():
    """delay(), which ends with the test."""
    yield delay
    delay(0)


# ---------------------------------------------------------------------------------------- looking


def left(folder=None) -> dict[str, int]:
    """Memory that any process has, by name (fakecuda:<uuid>:<id>): its bytes."""
    found = {}
    for path in Path(folder or os.environ["FAKECUDA_DIR"]).glob("fakecuda:*"):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found[path.name] = path.stat().st_size
    return found


def used(device: int = 0, folder=None) -> int:
    """Bytes of a device that any process has."""
    prefix = f"fakecuda:{UUIDS[device]}:"
    return sum(nbytes for name, nbytes in left(folder).items() if name.startswith(prefix))


def holders(folder=None) -> dict[str, list[str]]:
    """Who has that memory, as "descriptor of PID" and "mapping of PID"."""
    found = collections.defaultdict(list)
    for name in left(folder):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(name in link for link in d.descriptors(process.name).values()):
                    found[name].append(f"descriptor of {process.name}")
            with contextlib.suppress(OSError):
                if name in (process / "maps").read_text():
                    found[name].append(f"mapping of {process.name}")
    return dict(found)


def calls(path) -> collections.Counter:
    """Of each function, from the file that $FAKECUDA_TRACE named."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return collections.Counter(line.split()[1] for line in lines)


# ------------------------------------------------------------------------------- faults and delays


def fail(rules: str) -> None:
    """Calls of this process fail from now on: "cuMemMap:1:2,cuMemSetAccess:1+:801"; "" none."""
    cuda_driver.call("fakecuda_fail", rules.encode())


def delay(milliseconds: int) -> None:
    """Each piece of work of this process on a stream waits that long first."""
    cuda_driver.call("fakecuda_delay", milliseconds)


def launch(array, value: int, delay_ms: int, stream: int | None = None) -> None:
    """A slow kernel on the array's stream, which fills its bytes when the delay is over."""
    stream = array.stream if stream is None else stream
    with cuda_driver.current(array.device):
        cuda_driver.call(
            "fakecuda_launch",
            ctypes.c_void_p(stream),
            ctypes.c_uint64(array.address),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_ubyte(value),
            delay_ms,
        )


def launch_read(array, delay_ms: int, stream: int | None = None) -> ctypes.Array:
    """A slow kernel that reads the array when the delay is over; then the result has it."""
    seen = ctypes.create_string_buffer(array.nbytes)
    stream = array.stream if stream is None else stream
    with cuda_driver.current(array.device):
        cuda_driver.call(
            "fakecuda_read",
            ctypes.c_void_p(stream),
            ctypes.c_uint64(array.address),
            ctypes.c_size_t(array.nbytes),
            delay_ms,
            seen,
        )
    return seen
