"""Files of safetensors, into shared memory and out of it, compared with what the package reads."""

import importlib.util
import json
import os
import random
import re
import stat
import subprocess
import sys

import daemon as d
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import tensorcx as cx
from tensorcx import _safetensors

sys.path.insert(0, str(d.ROOT / "examples"))

import minilm

EVERY_DTYPE = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]

TENSORS = {
    **{f"of.{name}": np.arange(6).reshape(2, 3).astype(name) for name in EVERY_DTYPE},
    "of.complex64": np.array([1 + 2j, -3j], "complex64"),
    "scalar": np.array(-5),
    "none": np.zeros((0, 7), "float16"),
    "large": np.arange(300_000, dtype="float32").reshape(3, 100_000),
}


def same(found, expected) -> bool:
    """Whether both have the same tensors: keys, dtypes, shapes and bits."""
    arrays = {key: np.asarray(found[key]) for key in found}
    return arrays.keys() == expected.keys() and all(
        array.dtype == expected[key].dtype
        and array.shape == expected[key].shape
        and array.tobytes() == expected[key].tobytes()
        for key, array in arrays.items()
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def file(path):
    save_file(TENSORS, path, metadata={"format": "np"})
    return path


@pytest.fixture(autouse=True)
def no_names():
    yield
    for name in cx.names():
        cx.delete(name)


# --- into shared memory ---------------------------------------------------------------------------


def test_a_file_becomes_a_bundle_in_the_order_of_the_file(file):
    bundle = cx.put_safetensors("model", file)
    assert bundle.name == "model" and bundle.version == cx.get("model").version
    expected = load_file(file)
    assert list(bundle) == list(expected)
    assert same(bundle, expected)
    assert same(cx.get("model"), TENSORS)


def test_all_tensors_lie_in_one_storage_where_every_framework_takes_them(file):
    cx.put_safetensors("model", file)
    tensors = [tensor for tensor in cx.get("model").values() if tensor.size]
    assert all(tensor.is_shared and tensor.data_ptr() % 256 == 0 for tensor in tensors)
    assert len({tensor.storage_id for tensor in tensors}) == 1
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


def test_data_that_is_aligned_to_nothing_in_the_file_is_aligned_in_memory(path):
    first = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}
    second = {"dtype": "F64", "shape": [2], "data_offsets": [3, 19]}
    numbers = np.array([1.5, -2.5])
    path.write_bytes(file_of({"a": first, "b": second}, b"abc" + numbers.tobytes()))
    bundle = cx.put_safetensors("model", path)
    assert np.from_dlpack(bundle["a"]).tobytes() == b"abc"
    np.testing.assert_array_equal(np.from_dlpack(bundle["b"]), numbers)


def test_the_file_may_change_afterwards(file):
    bundle = cx.put_safetensors("model", file)
    os.truncate(file, 0)
    assert same(bundle, TENSORS)


def test_options_are_those_of_put(file):
    assert not cx.put_safetensors("a", file)["scalar"].readonly
    assert cx.put_safetensors("a", file, readonly=True, ttl=1000, ephemeral=True).readonly
    with cx.Client() as client:
        entry = client.stat("a")
    assert entry["readonly"] and entry["ephemeral"] and entry["ttl"] > 900
    assert not cx.get("a")["large"].numpy().flags.writeable


@pytest.mark.parametrize(
    ("skip", "kept"),
    [
        ("of.*", {"scalar", "none", "large"}),
        (["of.*", "large"], {"scalar", "none"}),
        (("none",), TENSORS.keys() - {"none"}),
        ("nothing like it", TENSORS.keys()),
        ("*", set()),
    ],
    ids=str,
)
def test_skip_leaves_tensors_out(file, skip, kept):
    bundle = cx.put_safetensors("model", file, skip=skip)
    assert same(bundle, {key: TENSORS[key] for key in kept})


def test_a_key_is_skipped_by_itself_even_if_it_looks_like_a_pattern(path):
    save_file({"w[0]": np.zeros(2), "w0": np.ones(2)}, path)
    assert list(cx.put_safetensors("model", path, skip="w[0]")) == []
    save_file({"w[0]": np.zeros(2), "w1": np.ones(2)}, path)
    assert list(cx.put_safetensors("model", path, skip="w[0]")) == ["w1"]


def mixed_file(count: int) -> bytes:
    """Tensors of dtypes that NumPy does not have, between two that it has."""
    kinds = [("F32", 32), *[("BF16", 16), ("F8_E4M3", 8), ("F4", 4)] * count, ("I64", 64)]
    header, data = {}, b""
    for i, (kind, bits) in enumerate(kinds):
        content = bytes([i + 1]) * (4 * bits // 8)
        offsets = [len(data), len(data) + len(content)]
        header[f"{i}.{kind}"] = {"dtype": kind, "shape": [4], "data_offsets": offsets}
        data += content
    return file_of(header, data)


def test_tensors_of_unknown_dtypes_are_named(path):
    path.write_bytes(mixed_file(3))
    with pytest.raises(cx.ExchangeError) as caught:
        cx.put_safetensors("model", path)
    text = str(caught.value)
    assert "BF16, F4, F8_E4M3" in text and "'1.BF16' (BF16), '2.F8_E4M3' (F8_E4M3)" in text
    assert "and 4 more" in text and "skip=" in text
    assert "F32" not in text
    assert cx.names() == []


def test_the_others_of_such_a_file_can_be_had(path):
    path.write_bytes(mixed_file(1))
    bundle = cx.put_safetensors("model", path, skip=["*.BF16", "*.F8_*", "*.F4"])
    assert list(bundle) == ["0.F32", "4.I64"]
    assert bundle["0.F32"].numpy().tobytes() == b"\1" * 16
    assert bundle["4.I64"].numpy().tobytes() == b"\5" * 32


# --- files that are wrong -------------------------------------------------------------------------

VALID = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
}
DATA = bytes(range(32))


def file_of(header, data: bytes = DATA, length: int | None = None) -> bytes:
    """A file's bytes; a header that is not bytes already becomes JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def valid_but(**changes) -> bytes:
    """The valid file, with the fields of tensor "a" changed."""
    return file_of(VALID | {"a": VALID["a"] | changes})


TWICE = b"{%s,%s}" % (
    b'"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}',
    b'"a":{"dtype":"U8","shape":[16],"data_offsets":[16,32]}',
)

HOSTILE = {
    "empty": b"",
    "no length": b"1234567",
    "length past the end": file_of(VALID, length=1 << 20),
    "huge length": file_of(VALID, length=(1 << 64) - 1),
    "not JSON": file_of(b"{'a'}"),
    "not UTF-8": file_of(b'{"\xff": 1}'),
    "half a surrogate": file_of(b'{"\\ud800":{"dtype":"U8","shape":[32],"data_offsets":[0,32]}}'),
    "deep": file_of(b'{"a":' * 100_000),
    "a list": file_of([VALID]),
    "an entry without dtype": file_of({"a": {"shape": [32], "data_offsets": [0, 32]}}),
    "unknown dtype": valid_but(dtype="F33"),
    "negative shape": valid_but(shape=[-2, -3]),
    "shape of floats": valid_but(shape=[2.0, 3]),
    "shape too large": valid_but(shape=[2, 4]),
    "shape overflows": valid_but(shape=[1 << 63, 1 << 63]),
    "shape overflows to 0": valid_but(shape=[1 << 62, 4], data_offsets=[0, 0]),
    "offsets turned round": valid_but(data_offsets=[24, 0]),
    "negative offset": valid_but(data_offsets=[-24, 0]),
    "offsets past the end": valid_but(shape=[2, 30], data_offsets=[0, 240]),
    "overlap": valid_but(shape=[4, 2], data_offsets=[0, 32]),
    "hole": file_of({"b": VALID["b"]}),
    "a key twice": file_of(TWICE),
    "bytes after the last": file_of(VALID, DATA + b"!"),
    "data cut short": file_of(VALID, DATA[:-1]),
    "metadata of numbers": file_of(VALID | {"__metadata__": {"a": 1}}),
}


def test_the_valid_file_of_these_is_read(path):
    path.write_bytes(file_of(VALID))
    assert cx.put_safetensors("model", path)["b"].item() == int.from_bytes(DATA[24:], "little")


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_wrong_file_is_a_clear_error(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors' is not a valid safetensors file: "):
        cx.put_safetensors("model", path)
    assert cx.names() == []


def test_too_many_dimensions_are_an_error_that_names_the_tensor(path):
    path.write_bytes(
        file_of({"deep": {"dtype": "U8", "shape": [1] * 70, "data_offsets": [0, 1]}}, b"x")
    )
    with pytest.raises(cx.ExchangeError, match=r"'deep': .*dimension"):
        cx.put_safetensors("model", path)


def test_damaged_headers_are_read_or_refused(path):
    choose = random.Random(1)
    intact = file_of(VALID)
    refused = 0
    for _ in range(300):
        content = bytearray(intact)
        for _ in range(choose.randint(1, 3)):
            content[choose.randrange(len(content) - len(DATA))] = choose.randrange(256)
        path.write_bytes(content)
        try:
            bundle = cx.put_safetensors("model", path)
        except ValueError:
            refused += 1
        else:
            assert bundle.nbytes == len(DATA)
    assert refused > 150


@pytest.mark.parametrize(
    ("moment", "text"),
    [("before the header is read", "not a valid"), ("between two reads", "cut short while")],
)
def test_a_file_cut_short_meanwhile_is_an_error(file, monkeypatch, moment, text):
    """Where a mapped file would be a bus error."""
    entries_of, preadv = _safetensors._entries_of, os.preadv

    def cut(*arguments):
        os.truncate(file, 200_000)
        return entries_of(*arguments)

    def read_a_bit_and_cut(descriptor, buffers, offset):
        count = preadv(descriptor, [buffers[0][:1000]], offset)
        os.truncate(file, 200_000)
        return count

    if moment == "between two reads":
        monkeypatch.setattr(os, "preadv", read_a_bit_and_cut)
    else:
        monkeypatch.setattr(_safetensors, "_entries_of", cut)
    with pytest.raises(ValueError, match=text):
        cx.put_safetensors("model", file)
    assert cx.names() == []


def test_what_is_no_file_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        cx.put_safetensors("model", tmp_path / "none.safetensors")
    os.mkfifo(tmp_path / "pipe")
    for wrong in tmp_path, tmp_path / "pipe", "/dev/zero":
        with pytest.raises(ValueError, match="not a regular file"):
            cx.put_safetensors("model", wrong)


# --- out of it ------------------------------------------------------------------------------------


def test_a_bundle_is_saved_and_comes_back(path):
    cx.put("model", TENSORS)
    cx.save_safetensors("model", path)
    assert same(load_file(path), TENSORS)
    assert same(cx.put_safetensors("again", path), TENSORS)


def test_nested_keys_are_joined(path):
    cx.put(
        "model", {"a": {"b": np.zeros(2), "c": {"d": np.ones(3)}, "nothing": {}}, "e.f": np.ones(1)}
    )
    cx.save_safetensors("model", path)
    assert same(load_file(path), {"a.b": np.zeros(2), "a.c.d": np.ones(3), "e.f": np.ones(1)})


def test_a_tensor_is_saved_under_the_key_tensor(path):
    cx.put("x", np.arange(3))
    cx.save_safetensors("x", str(path))
    assert same(load_file(path), {"tensor": np.arange(3)})


def test_shared_memory_is_written_for_each_tensor(path):
    weight = np.arange(4.0)
    assert cx.put("tied", {"a": weight, "b": weight}).nbytes == 64
    cx.save_safetensors("tied", path)
    assert same(load_file(path), {"a": weight, "b": weight})


def test_saving_makes_an_ordinary_file_and_nothing_else(tmp_path, path):
    (tmp_path / "ordinary").write_bytes(b"")
    cx.put("x", np.arange(3))
    cx.save_safetensors("x", path)
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "ordinary"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode(file, mode):
    file.chmod(mode)
    cx.put("x", np.arange(3))
    cx.save_safetensors("x", file)
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert same(load_file(file), {"tensor": np.arange(3)})


def test_saving_replaces_atomically_and_through_a_link(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    cx.put("x", np.arange(3))
    with safe_open(file, "np") as reader:
        cx.save_safetensors("x", tmp_path / "link")
        np.testing.assert_array_equal(reader.get_tensor("large"), TENSORS["large"])
    assert (tmp_path / "link").is_symlink()
    assert same(load_file(file), {"tensor": np.arange(3)})


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ({"a": np.ones(1), "z": np.ones(2, "complex128")}, cx.ExchangeError, r"complex128.*'z'"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, ValueError, r"two tensors.*'a\.b'"),
        ({"__metadata__": np.ones(1)}, ValueError, "__metadata__"),
    ],
    ids=["dtype", "same key", "metadata"],
)
def test_what_cannot_be_saved_leaves_the_old_file(tmp_path, file, value, error, text):
    before = file.read_bytes()
    cx.put("x", value)
    with pytest.raises(error, match=text):
        cx.save_safetensors("x", file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_failing_to_write_is_an_os_error_and_leaves_nothing(tmp_path, path):
    cx.put("x", np.arange(3))
    with pytest.raises(FileNotFoundError, match="none"):
        cx.save_safetensors("x", tmp_path / "none" / "model.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        cx.save_safetensors("x", tmp_path / "folder")
    with pytest.raises(cx.NotFound, match="nowhere"):
        cx.save_safetensors("nowhere", path)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path):
    cx.put("x", np.ones(1 << 20))
    code = f"""
import os, resource, signal, tensorcx as cx
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    cx.save_safetensors("x", {str(tmp_path / "x")!r})
except OSError as error:
    print("cannot be written" in str(error), os.listdir({str(tmp_path)!r}))
"""
    assert output_of(code) == "True []"


# --- memory ---------------------------------------------------------------------------------------


def output_of(code: str, *arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


LIMITED = """
import re, resource, sys, numpy as np, tensorcx as cx
from safetensors.numpy import load_file

path, small = sys.argv[1:]
cx.put_safetensors("model", small)  # all that is loaded or allocated once
cx.save_safetensors("model", small)
private = int(re.search(r"VmData:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
limit = private + (4 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.fromfile(path, "uint8")
except MemoryError:
    print("limited")
cx.put_safetensors("model", path)
cx.save_safetensors("model", path)
print(cx.get("model")["a"][-1].item())
"""


@pytest.mark.bare
def test_neither_way_needs_private_memory_of_the_file_s_size(tmp_path, path):
    """The kernel refuses more than 4 MiB of private memory for a file of 64 MiB."""
    save_file({"a": np.arange(8 << 20, dtype="int64")}, path)
    save_file({"a": np.zeros(1)}, tmp_path / "small")
    assert output_of(LIMITED, path, tmp_path / "small").split() == ["limited", str((8 << 20) - 1)]


# --- without the package, and a real model --------------------------------------------------------


@pytest.mark.parametrize("package", ["None", "type(sys)('safetensors')"], ids=["none", "too old"])
def test_without_the_package_the_error_says_what_to_install(file, package):
    code = f"""
import sys, tensorcx as cx
sys.modules["safetensors"] = {package}
cx.put("x", b"x")
for call in cx.put_safetensors, cx.save_safetensors:
    try:
        call("x", sys.argv[1])
    except ImportError as error:
        print(error)
cx.delete("x")
"""
    lines = output_of(code, file).splitlines()
    assert len(lines) == 2
    assert all("pip install 'tensorcx[safetensors]'" in line for line in lines)


@pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None, reason="an environment without the model"
)
def test_a_model_goes_in_and_out(path):
    model = minilm.model_folder() / "model.safetensors"
    expected = load_file(model)
    assert len(expected) > 100
    cx.put_safetensors("model", model, readonly=True)
    assert same(cx.get("model"), expected)
    cx.save_safetensors("model", path)
    assert same(load_file(path), expected)


# --- the command line -----------------------------------------------------------------------------


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tensorcx", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_put_and_get_carry_such_files(file, tmp_path):
    out = tmp_path / "out.safetensors"
    for arguments in (
        ("put", "m", file, "--skip", "of.*", "--skip", "none"),
        ("get", "m", "-o", out),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert same(load_file(out), {key: TENSORS[key] for key in ("scalar", "large")})


def test_the_commands_say_what_is_wrong(file, tmp_path):
    file.write_bytes(mixed_file(1))
    np.save(tmp_path / "x.npy", np.zeros(1))
    for arguments, text in (
        (("put", "m", file), "BF16"),
        (("put", "m", tmp_path / "x.npy", "--skip", "a"), "--skip"),
        (("get", "nowhere", "-o", tmp_path / "out.safetensors"), "nowhere"),
    ):
        done = command(*arguments)
        assert done.returncode == 1 and re.fullmatch(rf"tensorcx: .*{text}.*\n", done.stderr)
    assert not (tmp_path / "out.safetensors").exists()
