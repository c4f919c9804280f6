"""Errors and their classes, what is documented and exported, and who may not use it."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arrays import some

import tensorcx as cx
from tensorcx import _core, _errors, _platform

ROOT = Path(__file__).resolve().parents[2]


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
