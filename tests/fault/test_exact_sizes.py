"""A tensor has exactly its own bytes: no page, no slab, no leftovers of others shine through."""

import pytest
from helpers import run

SIZES = [1, 7, 8, 255, 256, 257, 4095, 4096, 4097, 16383, 65535, 65536, 65537, (1 << 21) + 1]

EXACT = """
import gc
for n in eval(sys.argv[1]):
    made = {"put": cx.put("n", np.arange(n, dtype=np.uint8)), "get": cx.get("n"),
            "empty": cx.empty((n,), "uint8"), "copy": cx.get("n").copy()}
    for how, tensor in made.items():
        assert tensor.nbytes == tensor.size == n, how
        for view in memoryview(tensor), np.asarray(tensor), np.from_dlpack(tensor):
            assert view.nbytes == n, how
        try:
            np.asarray(tensor)[n] = 1
        except IndexError:
            continue
        raise AssertionError(f"wrote past the end of {how}")
    cx.delete("n")
"""


def test_every_view_has_exactly_the_bytes_asked_for(daemon):
    run(EXACT, SIZES, socket=daemon.path)


def test_a_reader_sees_the_same_size(daemon):
    writer = """
for n in eval(sys.argv[1]): cx.put(str(n), np.full(n, n % 251, np.uint8))
"""
    reader = """
client = cx.connect(autostart=False)
for n in eval(sys.argv[1]):
    array = np.asarray(cx.get(str(n)))
    assert array.nbytes == n and (array == n % 251).all()
    assert client.stat(str(n))["nbytes"] == n
    cx.delete(str(n))
"""
    for code in writer, reader:
        run(code, SIZES, socket=daemon.path)


def test_neighbours_never_touch(daemon):
    code = """
    tensors = [cx.zeros((n,), "uint8") for n in eval(sys.argv[1]) * 10]
    for i, tensor in enumerate(tensors):
        np.asarray(tensor)[:] = i % 256
    for i, tensor in enumerate(tensors):
        assert (np.asarray(tensor) == i % 256).all(), i
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    """
    run(code, SIZES, socket=daemon.path)


@pytest.mark.parametrize("warm", ["0", "3600"])
def test_zeros_are_zero_on_used_memory_and_empty_stays_within_the_user(start, warm):
    """empty() may show old bytes of the same user, as the documentation says; zeros() never."""
    daemon = start("--warm-seconds", warm, checked=False)
    secret = """
    for n in 100, 10_000, 1 << 20, 20 << 20:
        cx.asarray(np.frombuffer(b"SECRET" * (n // 6), np.uint8), copy=True)
    """
    looks = """
    for n in 10, 100, 10_000, 1 << 20, 20 << 20:
        zero = np.asarray(cx.zeros((n,), "uint8"))
        assert not zero.any(), n
    """
    for code in secret, looks, secret, looks:
        run(code, socket=daemon.path)


@pytest.mark.parametrize("shape", [(3,), (1000,), (1 << 20,)])
def test_the_buffer_ends_where_the_tensor_ends(daemon, shape):
    code = """
    shape = eval(sys.argv[1])
    tensor = cx.zeros(shape, "int16")
    view = memoryview(tensor)
    assert view.shape == shape and view.itemsize == 2 and len(view) == shape[0]
    for bad in (view.__getitem__, tensor.__getitem__):
        try: bad(shape[0])
        except IndexError: continue
        raise AssertionError("read past the end")
    """
    run(code, shape, socket=daemon.path)
