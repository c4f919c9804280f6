"""What .npy and .safetensors files may contain: fuzz_files.py SECONDS FOLDER.

Changes files that are right, and puts each under a name as the command line does: it is published
as the file's own library reads it, or refused by an error that the command line knows. Afterwards
nothing is left in the daemon. An input that fails is kept in FOLDER; given that file instead of
SECONDS, it is tried again.
"""

import io
import json
import random
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import daemon as d
import numpy as np
import safetensors
import safetensors.numpy

import tensorcx as cx
from tensorcx import cli

NUMBERS = [0, 1, 2, 7, 8, 127, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**60, 2**63 - 1, 2**64 - 1]
WORDS = [
    *(b"'descr'", b"'fortran_order'", b"True", b"None", b"(", b"-", b"(1,)", b"(2, 3)", b"'|O'"),
    *(b"'<f4'", b"'>f8'", b"'V9999999999'", b"[('a', '<f4')]", b"9" * 40, b"1e9", b"\n", b"\\"),
    *(b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b'"F32"', b'"BF16"', b'"F4"'),
    *(b"[0,24]", b"[24,0]", b"[]", b"{", b"}", b"null", b'"a":', b"PK\x03\x04", b"\xff"),
]  # fmt: skip


def npy() -> Iterator[bytes]:
    for dtype in "?", "i1", "<i4", ">i4", "<f2", "<f8", "<c16", "V3", "U2":
        for shape in (), (0,), (2, 3), (4, 1, 2):
            for order in "CF":
                file = io.BytesIO()
                np.save(file, np.zeros(shape, dtype, order))
                yield file.getvalue()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
    for version in 1, 2, 3:
        length = struct.pack("<H" if version == 1 else "<I", len(header))
        yield b"\x93NUMPY" + bytes([version, 0]) + length + header + bytes(24)
    packed = io.BytesIO()
    np.savez(packed, a=np.zeros(3))
    yield packed.getvalue()


def tensors() -> Iterator[bytes]:
    for dtype in "?", "i1", "i4", "f2", "f8", "c8":
        yield safetensors.numpy.save({"a": np.zeros((2, 3), dtype), "b": np.ones((), dtype)})
    yield safetensors.numpy.save({}, {"format": "np"})
    yield safetensors.numpy.save({f"layer.{i}": np.zeros(i, "f4") for i in range(5)})
    for code, nbytes in ("BF16", 12), ("F8_E4M3", 6), ("F4", 3):
        header = {"a": {"dtype": code, "shape": [2, 3], "data_offsets": [0, nbytes]}}
        text = json.dumps(header).encode()
        yield struct.pack("<Q", len(text)) + text + bytes(nbytes)


def changed(data: bytes, dice: random.Random) -> bytes:
    """One to four changes, most of them where the header is."""
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 4])):
        at = min(int(dice.expovariate(1 / dice.choice([40, 400]))), len(found))
        to = min(at + dice.choice([0, 1, 2, 8, 30]), len(found))
        found[at:to] = dice.choice(
            [
                dice.randbytes(to - at),
                bytes(dice.choice(b"0123456789[](){},:'\"") for _ in range(to - at)),
                dice.choice(WORDS) * dice.choice([1, 1, 1, 2, 3000]),
                struct.pack("<Q", dice.choice(NUMBERS))[: dice.choice([1, 2, 4, 8])],
                str(dice.choice(NUMBERS)).encode(),
                found[to : to + 20],
                b"",
            ]
        )
    return bytes(found[: dice.randint(0, len(found))] if dice.random() < 0.1 else found)


def expected(file: Path) -> dict[str, np.ndarray]:
    """What its own library makes of it, by keys of the bundle."""
    if file.suffix == ".npy":
        return {"": np.load(file)}
    return safetensors.numpy.load_file(file)


def attempt(file: Path) -> bool:
    """Whether it was put. Raises what is a fault of ours."""
    try:
        cli.main(["put", "name", str(file)])
    except SystemExit as refusal:
        assert str(refusal).startswith("tensorcx: "), refusal
        return False
    found = cx.get("name")
    tensors = {"": found} if isinstance(found, cx.Tensor) else found
    for key, array in expected(file).items():
        native = array.astype(array.dtype.newbyteorder("="))
        assert np.asarray(tensors[key]).tobytes() == native.tobytes()
    cx.delete("name")
    return True


def repeat(data: bytes, suffix: str, folder: Path) -> bool:
    file = folder / f"input{suffix}"
    file.write_bytes(data)
    return attempt(file)


def fuzz(seconds: float, kept: Path, folder: Path) -> None:
    dice = random.Random()
    files = {".npy": list(npy()), ".safetensors": list(tensors())}
    for suffix, seeds in files.items():
        runs = puts = 0
        end = time.monotonic() + seconds / len(files)
        for data in seeds:
            repeat(data, suffix, folder)
        while time.monotonic() < end:
            data = changed(dice.choice(seeds), dice)
            try:
                puts += repeat(data, suffix, folder)
            except BaseException:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"fuzz_files-failed{suffix}").write_bytes(data)
                raise
            runs += 1
        print(f"== fuzz_files {suffix}: {runs} runs, {puts} were put")


def main(what: str, kept: str) -> None:
    warnings.simplefilter("ignore")  # NumPy's, about files of Python 2
    with tempfile.TemporaryDirectory() as folder, d.Daemon(folder, "--capacity", "64M") as daemon:
        client = cx.connect(daemon.path, autostart=False)
        cli._client = lambda *_, **__: client  # to connect anew each time takes too long
        if Path(what).is_file():
            repeat(Path(what).read_bytes(), Path(what).suffix, Path(folder))
        else:
            fuzz(float(what), Path(kept), Path(folder))
        daemon.settle(storages=0, names=0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
