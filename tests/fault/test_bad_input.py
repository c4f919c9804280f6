"""Wrong arguments: one clear error that says what was asked, what the limit is and what to do."""

import numpy as np
import pytest

import tensorcx as cx


@pytest.fixture
def client(daemon):
    with cx.Client(daemon.path, autostart=False) as client:
        yield client


def refused(kind, call, *words):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert "\n" not in text


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("call", ["get", "delete", "stat"])
def test_an_unknown_name_is_a_key_error_that_tells_it(client, call):
    refused(cx.NotFound, lambda: getattr(client, call)("frames/left"), "frames/left")
    refused(KeyError, lambda: getattr(client, call)("frames/left"))


NOT_NAMES = ["", "a\nb", "a\0b", "\x1b[31m", "x" * 256, "ä" * 128, "\x7f", "\x85"]


@pytest.mark.parametrize("name", NOT_NAMES, ids=ascii)
@pytest.mark.parametrize("call", ["put", "get", "delete", "stat"])
def test_what_is_no_name_is_a_value_error(client, call, name):
    arguments = (name, np.zeros(3)) if call == "put" else (name,)
    refused(ValueError, lambda: getattr(client, call)(*arguments), "name")


@pytest.mark.parametrize("name", [None, 3, b"bytes", ["list"]], ids=repr)
@pytest.mark.parametrize("call", ["put", "get", "delete", "stat", "exists"])
def test_a_name_is_text(client, call, name):
    arguments = (name, np.zeros(3)) if call == "put" else (name,)
    refused(TypeError, lambda: getattr(client, call)(*arguments))


@pytest.mark.parametrize("name", ["\ud800", "a\udfff"], ids=ascii)
def test_half_a_surrogate_pair_is_no_name(client, name):
    refused(ValueError, lambda: client.put(name, np.zeros(3)))


@pytest.mark.parametrize("name", ["a", "..", "/", " x ", "x" * 255, "\N{PARTY POPPER}", "a\u2028b"])
def test_everything_else_is_a_name(client, name):
    client.put(name, np.arange(3))
    assert client.names() == [name]
    assert client.get(name).name == name
    client.delete(name)


def test_exclusive_keeps_what_is_there(client):
    client.put("name", np.arange(3))
    refused(cx.Exists, lambda: client.put("name", np.arange(4), exclusive=True), "name")
    assert client.get("name").shape == (3,)
    client.delete("name")


# ------------------------------------------------------------------------------- dtypes and shapes


@pytest.mark.parametrize("dtype", ["S4", "U3", "datetime64[s]", "timedelta64[s]", "V8", "O", "g"])
@pytest.mark.parametrize("call", ["empty", "zeros", "put", "asarray"])
def test_a_dtype_that_storage_does_not_know_is_named(client, call, dtype):
    if call in ("empty", "zeros"):
        refused(BufferError, lambda: getattr(client, call)((3,), dtype))
        refused(ValueError, lambda: getattr(client, call)((3,), dtype))
    else:
        array = np.zeros(3, dtype)
        arguments = ("name", array) if call == "put" else (array,)
        refused(BufferError, lambda: getattr(client, call)(*arguments))
    assert client.names() == []


def test_a_dtype_that_does_not_exist_is_numpys_error(client):
    refused(TypeError, lambda: client.empty((3,), "float31"))


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16"])
def test_foreign_byte_order_is_packed_or_refused_never_mixed_up(client, dtype):
    array = np.arange(3).astype(dtype)
    try:
        tensor = client.asarray(array)
    except BufferError:
        return
    assert np.asarray(tensor).tolist() == array.tolist()


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (0, -1), (-(2**63),)])
@pytest.mark.parametrize("call", ["empty", "zeros"])
def test_a_negative_dimension_is_a_value_error(client, call, shape):
    refused(ValueError, lambda: getattr(client, call)(shape, "float32"), "dimension")


WRAPPING = [
    (2**32, 2**32), (2**62, 4), (2**62 + 1,), (65536,) * 4, (2**61,), (2**63 - 1,), (3, 2**62),
]  # fmt: skip


@pytest.mark.parametrize("shape", WRAPPING, ids=str)
@pytest.mark.parametrize("call", ["empty", "zeros"])
def test_a_shape_that_overflows_is_an_error_and_no_small_tensor(client, call, shape):
    refused((ValueError, MemoryError), lambda: getattr(client, call)(shape, "float64"))
    assert client.stats()["storages"] == 0


@pytest.mark.parametrize("shape", [(2**63,), (2**64, 1), (10**30,), (-(2**64),)])
def test_a_dimension_beyond_64_bits_is_an_error(client, shape):
    refused((ValueError, OverflowError), lambda: client.empty(shape, "uint8"))


@pytest.mark.parametrize("shape", ["3", 2.5, (1.5,), None, ("3",), {}, object()], ids=repr)
def test_a_shape_is_made_of_integers(client, shape):
    refused(TypeError, lambda: client.empty(shape, "uint8"))


def test_more_than_64_dimensions_are_refused_and_64_are_not(client):
    assert client.zeros((1,) * 64, "uint8").ndim == 64
    refused(ValueError, lambda: client.empty((1,) * 65, "uint8"), "64")


@pytest.mark.parametrize("value", [None, object(), {1, 2}, "text", lambda: 0], ids=repr)
def test_what_is_no_array_is_not_put(client, value):
    refused((TypeError, BufferError), lambda: client.put("name", value))
    assert client.names() == []


@pytest.mark.parametrize("values", [[[1], [1, 2]], [object()], ["a", "b"]], ids=repr)
def test_lists_that_make_no_array_are_not_put(client, values):
    refused((TypeError, ValueError, BufferError), lambda: client.put("name", values))


# --------------------------------------------------------------------------------- other arguments


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), float("inf"), float("-inf")])
def test_a_timeout_is_not_negative(client, timeout):
    refused(ValueError, lambda: client.get("name", timeout=timeout), "timeout")


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_time_to_live_is_positive(client, ttl):
    refused(ValueError, lambda: client.put("name", np.zeros(3), ttl=ttl), "ttl")


@pytest.mark.parametrize("version", [-1, 2**64, 2**70])
def test_a_version_is_what_fits_one(client, version):
    client.put("name", np.zeros(3))
    refused((ValueError, OverflowError), lambda: client.get("name", newer_than=version))
    client.delete("name")


def test_copy_false_of_private_memory_is_refused(client):
    refused(cx.ExchangeError, lambda: client.put("name", np.zeros(3), copy=False), "copy")
    refused(cx.ExchangeError, lambda: client.asarray(np.zeros(3), copy=False), "copy")
    assert client.names() == []


def test_a_bad_entry_fails_the_whole_bundle_and_is_named(client):
    bundle = {"good": np.zeros(3), "nested": {"bad": np.zeros(3, "S4")}}
    refused(BufferError, lambda: client.put("bundle", bundle), "nested", "bad")
    refused(
        (TypeError, BufferError), lambda: client.put("bundle", {"a": {"b": object()}}), "a", "b"
    )
    assert client.names() == []


@pytest.mark.parametrize("key", [1, None, b"x", ("a",)], ids=repr)
def test_a_bundle_has_keys_of_text(client, key):
    refused(TypeError, lambda: client.put("bundle", {key: np.zeros(3)}))


def test_a_bundle_within_itself_is_refused(client):
    bundle: dict = {"a": np.zeros(3)}
    bundle["self"] = bundle
    refused((ValueError, RecursionError), lambda: client.put("bundle", bundle))
    assert client.names() == []


def test_a_closed_tensor_says_so(client):
    tensor = client.zeros((3,), "float32")
    tensor.close()
    for use in (
        lambda: np.asarray(tensor),
        lambda: tensor.shape,
        lambda: tensor[0],
        lambda: client.put("name", tensor),
        lambda: memoryview(tensor),
        tensor.item,
        tensor.data_ptr,
    ):
        refused((ValueError, cx.Error), use, "closed")
    assert "closed" in repr(tensor)
