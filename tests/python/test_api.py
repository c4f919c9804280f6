"""What the module's functions take and give, and the errors of those who use them wrongly."""

import array
import ast
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import daemon as d
import numpy as np
import pytest

import tensorcx as cx
from tensorcx import _core, _errors, _platform

ROOT = Path(__file__).resolve().parents[2]


def some(shape=(2, 3), dtype="float32"):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


class Producer:
    """Has nothing but DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array = array
        self.device = device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


# -------------------------------------------------------------------------------------- new tensors


def test_empty_zeros_and_full_make_shared_memory():
    assert cx.empty((2, 3), "int16").shape == (2, 3)
    assert cx.zeros(4).tolist() == [0.0] * 4
    assert cx.zeros(4).dtype == np.float64
    assert cx.full((2,), 7).tolist() == [7, 7]
    assert cx.full((2,), 7).dtype == np.int64
    assert cx.full([2], 7, "float32").dtype == np.float32
    assert cx.zeros(np.array([2, 3])).shape == (2, 3)
    assert cx.empty((), bool).is_shared


def test_zeros_are_zero_also_in_recycled_memory():
    cx.full((1 << 20,), 255, "uint8").close()
    assert not np.asarray(cx.zeros((1 << 20,), "uint8")).any()


def test_empty_like_takes_shape_and_dtype():
    assert cx.empty_like(some()).shape == (2, 3)
    assert cx.empty_like(cx.zeros(3, "int8")).dtype == np.int8
    assert cx.empty_like(some(), "bool").dtype == np.bool_
    assert cx.empty_like([[1, 2]]).shape == (1, 2)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((-1,), ValueError),
        ((2, -3), ValueError),
        ((1 << 62, 1 << 62), ValueError),
        ((1 << 70,), ValueError),
        ((1,) * 65, ValueError),
        ("ab", TypeError),
        (2.5, TypeError),
        ((2, "3"), TypeError),
        (None, TypeError),
    ],
    ids=str,
)
def test_a_bad_shape_is_a_clear_error(shape, error):
    with pytest.raises(error, match=r"shape|dimension|elements|overflow|large"):
        cx.empty(shape, "float32")


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "U3", "longdouble", ">f4", "i4,f4"])
def test_a_dtype_that_is_not_stored_is_named(dtype):
    with pytest.raises(cx.ExchangeError, match=re.escape(str(np.dtype(dtype)))):
        cx.empty(3, dtype)


def test_an_unknown_dtype_is_a_type_error():
    with pytest.raises(TypeError, match="nonsense"):
        cx.empty(3, "nonsense")


# ------------------------------------------------------------------------------------------ asarray


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "int64", 3),
        (2.5, "float64", 2.5),
        (True, "bool", True),
        (1 + 2j, "complex128", 1 + 2j),
        ([1, 2], "int64", [1, 2]),
        (((1.0,), (2.0,)), "float64", [[1.0], [2.0]]),
        ([], "float64", []),
        (b"ab", "uint8", [97, 98]),
        (bytearray(b"ab"), "uint8", [97, 98]),
        (memoryview(b"ab")[::-1], "uint8", [98, 97]),
        (array.array("i", [1, -2]), "int32", [1, -2]),
        (np.float16(1.5), "float16", 1.5),
        (np.bool_(True), "bool", True),
        (range(3), "int64", [0, 1, 2]),
    ],
    ids=repr,
)
def test_asarray_takes_scalars_lists_and_buffers(value, dtype, expected):
    tensor = cx.asarray(value)
    assert tensor.dtype == np.dtype(dtype)
    assert tensor.tolist() == expected


LAYOUTS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], (4, 3)),
    "every second": lambda a: a[:, ::2],
    "Fortran": np.asfortranarray,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1),
    "field of a record": lambda a: np.array([(1, 2.5), (3, 4.5)], "i1,f4")["f1"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_asarray_packs_any_layout(layout):
    source = LAYOUTS[layout](some())
    tensor = cx.asarray(source)
    np.testing.assert_array_equal(np.asarray(tensor), source)
    tensor[...] = 0  # and its memory is writable, whatever the source was


def test_asarray_takes_what_has_only_dlpack():
    assert cx.asarray(Producer(some((3,), "uint16"))).tolist() == [0, 1, 2]


def test_asarray_refuses_other_devices_by_name():
    with pytest.raises(cx.ExchangeError, match=r"device \(8, 0\)"):
        cx.asarray(Producer(some(), device=(8, 0)))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.array([object()]), "object"),
        ([None], "object"),
        ([1 << 70], "object"),
        ("text", "<U4"),
        (np.array(["2024-01-01"], "M8[D]"), "datetime64"),
        (np.datetime64("2024-01-01"), "datetime64"),
        (np.zeros(2, ">i4"), ">i4"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, "i4,f4"), "f4"),
        (memoryview(b"ab").cast("c"), "S1"),
        (Producer(np.zeros(2, ">f4")), "float32|byte|native"),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_asarray_names_the_dtype_it_does_not_take(value, named):
    with pytest.raises(cx.ExchangeError, match=named):
        cx.asarray(value)


def test_asarray_of_a_mapping_points_to_put():
    with pytest.raises(TypeError, match="put"):
        cx.asarray({"a": 1})


def test_asarray_copies_only_where_it_must():
    t = cx.asarray(some())
    for source in (t, np.asarray(t), memoryview(t), Producer(np.asarray(t)), np.from_dlpack(t)):
        assert cx.asarray(source).storage_id == t.storage_id
        assert cx.asarray(source, copy=False).storage_id == t.storage_id
        assert cx.asarray(source, copy=True).storage_id != t.storage_id
    assert cx.asarray(t, "float32").storage_id == t.storage_id
    assert cx.asarray(t.numpy().T).storage_id != t.storage_id


def test_asarray_without_leave_to_copy_refuses():
    private = cx.from_dlpack(some(), copy=False)
    for source in (some(), private, [1, 2], cx.asarray(some()).numpy().T):
        with pytest.raises(cx.ExchangeError, match="cop"):
            cx.asarray(source, copy=False)
    with pytest.raises(cx.ExchangeError, match="float32 to int8"):
        cx.asarray(cx.zeros(2, "float32"), "int8", copy=False)


def test_asarray_converts():
    assert cx.asarray([1, 2], "float32").dtype == np.float32
    assert cx.asarray(cx.zeros(2, "float32"), "int8").dtype == np.int8


def test_is_shared_knows_shared_memory_in_any_form():
    t = cx.asarray(some((4, 4)))
    shared = [
        t,
        np.asarray(t),
        np.asarray(t).T,
        np.asarray(t)[::-1, 1],
        memoryview(t),
        Producer(t.numpy()),
    ]
    assert all(cx.is_shared(x) for x in shared)
    private = [some(), [1], 3, "x", b"abc", None, np.array([None]), cx.from_dlpack(some()), {}]
    assert not any(cx.is_shared(x) for x in private)


# ---------------------------------------------------------------------------------- names, bundles


def test_put_publishes_and_get_finds_the_same_memory():
    put = cx.put("a", some())
    got = cx.get("a")
    put[0, 0] = 50
    assert got.tolist()[0][0] == 50
    assert got.storage_id == put.storage_id
    cx.delete("a")


def test_put_of_shared_memory_shows_later_writes_and_a_snapshot_does_not():
    t = cx.asarray(some())
    cx.put("live", t)
    cx.put("view", np.asarray(t))
    cx.put("snapshot", t, copy=True)
    t[0, 0] = 50
    values = [cx.get(name).tolist()[0][0] for name in ("live", "view", "snapshot")]
    for name in ("live", "view", "snapshot"):
        cx.delete(name)
    assert values == [50, 50, 0]


def test_put_without_leave_to_copy_refuses_private_memory():
    with pytest.raises(cx.ExchangeError, match="cop"):
        cx.put("a", some(), copy=False)
    assert not cx.exists("a")
    cx.put("a", cx.zeros(3), copy=False)
    cx.delete("a")


def test_exclusive_put_does_not_replace():
    cx.put("a", some(), exclusive=True)
    with pytest.raises(cx.Exists, match="a"):
        cx.put("a", np.zeros(1), exclusive=True)
    assert cx.get("a").shape == (2, 3)
    cx.delete("a")


def test_read_only_memory_stays_read_only_under_another_name():
    cx.put("a", some(), readonly=True)
    cx.put("b", cx.get("a"))
    cx.put("c", np.asarray(cx.get("a")))
    cx.put("d", {"inner": cx.get("a")})
    cx.put("e", cx.get("a"), copy=True)
    modes = [cx.get(name).readonly for name in "abce"]
    inner = cx.get("d")["inner"].readonly
    for name in "abcde":
        cx.delete(name)
    assert modes == [True, True, True, False]
    assert inner


def test_names_exist_until_they_are_deleted():
    for name in ("b", "a/2", "a/1"):
        cx.put(name, some())
    assert cx.names() == ["a/1", "a/2", "b"]
    assert cx.names("a/") == cx.names(prefix="a/") == ["a/1", "a/2"]
    assert cx.exists("b")
    for name in cx.names():
        cx.delete(name)
    assert not cx.exists("b")
    with pytest.raises(cx.NotFound, match="b"):
        cx.delete("b")


def test_an_unknown_name_is_an_error_that_names_it():
    with pytest.raises(cx.NotFound, match="nowhere") as caught:
        cx.get("nowhere")
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith(("'", '"')), "KeyError's repr is not for people"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b"], ids=repr)
def test_a_bad_name_is_a_value_error(name):
    for action in (lambda: cx.put(name, some()), lambda: cx.get(name)):
        with pytest.raises(ValueError, match="name"):
            action()


@pytest.mark.parametrize("name", [None, 3, b"x"])
def test_a_name_is_text(name):
    for action in (lambda: cx.put(name, some()), lambda: cx.get(name), lambda: cx.delete(name)):
        with pytest.raises(TypeError, match="name must be a str"):
            action()


def test_waiting_for_a_name_ends_with_timeout():
    with pytest.raises(cx.Timeout) as caught:
        cx.get("nowhere", timeout=0.01)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    words = rf"timeout must be 0 \(at once\), .* or None \(waits for ever\), not {timeout!r}"
    with pytest.raises(ValueError, match=words):
        cx.get("nowhere", timeout=timeout)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_ttl_is_a_number_of_seconds(ttl):
    with pytest.raises(ValueError, match="ttl"):
        cx.put("a", some(), ttl=ttl)


def wait_until_someone_waits():
    d.settle(lambda: cx.stats()["waiting"], "a waiting call")


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_waiting_get_is_answered_by_put(timeout):
    got = []
    thread = threading.Thread(target=lambda: got.append(cx.get("later", timeout=timeout).tolist()))
    thread.start()
    wait_until_someone_waits()
    cx.put("later", some())
    thread.join()
    cx.delete("later")
    assert got == [some().tolist()]


def test_newer_than_waits_for_the_next_version():
    first = cx.put("a", np.zeros(1))
    with pytest.raises(cx.Timeout):
        cx.get("a", newer_than=first.version, timeout=0.01)
    second = cx.put("a", np.ones(1))
    got = cx.get("a", newer_than=first.version, timeout=60)
    cx.delete("a")
    assert got.version == second.version


def test_a_ttl_takes_the_name_away():
    cx.put("a", some(), ttl=0.01)
    d.settle(lambda: not cx.exists("a"), "the end of the name")


def test_ctrl_c_ends_a_waiting_get():
    # Set, since who runs tests in the background may ignore it.
    program = (
        "import signal, tensorcx as cx; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "cx.get('never', timeout=None)"
    )
    waiter = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until_someone_waits()
    waiter.send_signal(signal.SIGINT)
    _, errors = waiter.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_signal_handler_that_raises_ends_the_wait_with_its_exception():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    main = threading.main_thread().ident

    def send():
        wait_until_someone_waits()
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(Alarm):
            cx.get("never", timeout=None)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_returns_does_not_end_the_wait():
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(cx.exists("late")))
    main = threading.main_thread().ident

    def send():
        wait_until_someone_waits()
        signal.pthread_kill(main, signal.SIGUSR1)
        d.settle(lambda: calls, "the signal handler")
        cx.put("late", some())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert cx.get("late", timeout=None).shape == (2, 3)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    cx.delete("late")
    assert calls == [False]


# ------------------------------------------------------------------------------------------- errors


def test_every_status_has_the_exception_that_status_def_names():
    lines = re.findall(
        r"^STATUS\(\w+, (\d+), .*, (\w+)\)$", (ROOT / "proto/wire/status.def").read_text(), re.M
    )
    named = {int(number): name for number, name in lines if name != "None"}
    raised = {number: error.__name__ for number, error in enumerate(_errors.BY_STATUS) if number}
    assert raised == named


def test_exceptions_are_also_the_built_in_ones():
    also = {
        cx.NotFound: KeyError,
        cx.OutOfMemory: MemoryError,
        cx.Timeout: TimeoutError,
        cx.DaemonUnavailable: ConnectionError,
        cx.DaemonLost: ConnectionError,
        cx.ExchangeError: (BufferError, ValueError),
    }
    for error in (cx.NotFound, cx.Exists, cx.OutOfMemory, cx.Timeout, cx.Stale, *also):
        assert issubclass(error, cx.Error)
    for error, builtin in also.items():
        for base in builtin if isinstance(builtin, tuple) else (builtin,):
            assert issubclass(error, base)


def test_every_public_name_is_documented_and_says_where_it_is():
    for name in cx.__all__:
        thing = getattr(cx, name)
        assert thing.__doc__, name
        assert thing.__module__ == "tensorcx"


def test_module_functions_have_the_signature_of_their_method():
    for name in cx.__all__:
        method = getattr(cx.Client, name, None)
        if method and name != "connect":
            ours = list(inspect.signature(getattr(cx, name)).parameters.values())
            theirs = list(inspect.signature(method).parameters.values())[1:]
            assert ours == theirs, name


def test_device_and_copy_are_said_by_keyword_as_in_the_array_api():
    for make in (cx.empty, cx.zeros, cx.full, cx.empty_like, cx.asarray, cx.from_dlpack):
        for name in {"device", "copy"} & set(parameters := inspect.signature(make).parameters):
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, make


def test_arguments_can_be_said_by_the_names_that_the_signature_tells():
    with cx.Client() as client:
        for way in (cx, client):
            way.put(name="said", value=some())
            assert way.get(name="said").shape == way.empty_like(x=some()).shape
            assert way.exists(name="said")
            way.delete(name="said")
            assert not way.exists(name="said")


def test_the_stub_knows_every_member_of_the_extension():
    stub = ast.parse((Path(cx.__file__).parent / "_core.pyi").read_text())
    for node in (n for n in stub.body if isinstance(n, ast.ClassDef)):
        described = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        members = set(vars(getattr(_core, node.name)))
        inherited = {"__doc__", "__module__", "__new__", "__buffer__", "__release_buffer__"}
        assert members - inherited <= described, node.name


@pytest.mark.parametrize(
    ("platform", "release", "machine", "needs"),
    [
        ("darwin", "23.0", "arm64", "needs Linux, this is darwin"),
        ("linux", "5.10.0-21-amd64", "x86_64", "needs Linux 5.14 or newer, this is 5.10"),
        ("linux", "6.1.0", "riscv64", "needs x86-64 or arm64, this is riscv64"),
    ],
)
def test_elsewhere_the_import_fails_with_a_clear_text(
    monkeypatch, platform, release, machine, needs
):
    system = os.uname_result(("Linux", "host", release, "#1", machine))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: system)
    with pytest.raises(ImportError, match=needs):
        _platform.check()


@pytest.mark.parametrize("release", ["5.14.0", "6.1.0-18-amd64", "10.0", "custom"])
def test_a_newer_or_unknown_kernel_is_welcome(monkeypatch, release):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("L", "h", release, "#1", "aarch64")))
    _platform.check()


# ----------------------------------------------------------------------------------- what is taken


def test_a_dtype_that_is_asked_for_may_come_from_one_that_is_not_known():
    assert cx.asarray(np.arange(3, dtype=">f4"), "f4").tolist() == [0, 1, 2]
    assert cx.asarray(np.ones(2, np.longdouble), "f8").tolist() == [1, 1]
    assert cx.empty_like(np.ones(3, "M8[s]"), "f4").shape == (3,)


def test_masked_arrays_are_not_taken_without_their_mask():
    with pytest.raises(cx.ExchangeError, match="mask"):
        cx.asarray(np.ma.masked_array([1, 2], [True, False]))


FIRST_CALLS = """
import sys
import numpy as np, tensorcx as cx
before = set(sys.modules)
cx.put("array", np.ones(3)); cx.get("array").numpy()
cx.put("bundle", {"a": np.ones(3)}); cx.get("bundle")["a"].numpy()
cx.delete("array"); cx.delete("bundle")
print(*set(sys.modules) - before)
"""


def test_the_first_calls_import_nothing():
    """Who measures a first put wants to see memory, not imports."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, check=True)
    assert done.stdout.split() == []


def test_memory_of_any_dtype_and_layout_is_known_by_its_address():
    t = cx.zeros((4, 4), "float64")
    array = t.numpy()
    assert cx.is_shared(array.view("M8[s]"))
    assert cx.is_shared(array[::-2, 1:3].T)
    assert not cx.is_shared(np.zeros(3, "M8[s]"))


@pytest.mark.parametrize("value", [-1, "1", 1.5, 1 << 64])
def test_newer_than_is_a_version(value):
    with pytest.raises(ValueError, match="newer_than"):
        cx.get("any", newer_than=value)


@pytest.mark.parametrize("value", ["1", "x", 0, -1, float("nan"), float("inf"), 10**400])
def test_ttl_is_a_positive_number(value):
    with pytest.raises(ValueError, match="ttl"):
        cx.put("any", some(), ttl=value)


@pytest.mark.parametrize("shape", [{}, {1}, {1: 2}, b"ab", "ab", 1.5, [1.5], None])
def test_a_shape_is_ints(shape):
    with pytest.raises(TypeError, match="shape"):
        cx.zeros(shape)


def test_copy_is_true_false_or_none():
    for call in (lambda: cx.asarray(some(), copy="no"), lambda: cx.from_dlpack(some(), copy=2)):
        with pytest.raises(TypeError, match="copy"):
            call()


def test_swapped_arguments_are_a_short_error():
    with pytest.raises(TypeError) as caught:
        cx.put(list(range(100_000)), "name")
    assert len(str(caught.value)) < 200
