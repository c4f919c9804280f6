"""Read-only for everybody, read-only for one, and many writers of one matrix."""

import contextlib

import pytest
from helpers import LONG, Program, run

TRIES = """
def refuses(what, call, *kinds):
    try: call()
    except kinds or (ValueError, TypeError, BufferError): return
    raise AssertionError(f"{what} was allowed")

def try_to_write(tensor):
    assert tensor.readonly
    array = np.asarray(tensor)
    assert not array.flags.writeable
    view = memoryview(tensor)
    assert view.readonly
    def shuffle(): np.random.default_rng(1).shuffle(array)
    def in_place(): nonlocal_array = array; nonlocal_array += 1
    def assign(): array[0] = 1
    def by_view(): view[0] = 1
    def by_tensor(): tensor[0] = 1
    def unlock(): array.flags.writeable = True
    def by_slice(): np.asarray(tensor[1:])[0] = 1
    def by_cast(): memoryview(tensor).cast("B")[0] = 1
    for call in (shuffle, in_place, assign, by_view, by_tensor, unlock, by_slice, by_cast,
                 lambda: np.add(array, 1, out=array), lambda: np.copyto(array, 0),
                 lambda: array.sort(), lambda: array.fill(0), lambda: array.put(0, 1),
                 lambda: np.frombuffer(tensor, array.dtype).fill(1),
                 lambda: tensor.__dlpack__(), lambda: tensor.__dlpack__(max_version=(0, 8))):
        refuses(getattr(call, "__name__", call), call)
    assert tensor[1:].readonly and tensor.copy().readonly is False
    copied = np.asarray(tensor.copy()); copied += 1
    assert array.tolist() == list(range(10))
"""


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_what_was_put_read_only_nobody_writes(daemon, dtype):
    writer = (
        TRIES
        + f"""
t = cx.put("fixed", np.arange(10, dtype="{dtype}"), readonly=True)
try_to_write(t)
"""
    )
    reader = (
        TRIES
        + """
try_to_write(cx.get("fixed"))
try_to_write(cx.get("fixed", readonly=True))
cx.delete("fixed")
"""
    )
    for code in writer, reader:
        run(code, socket=daemon.path)


def test_who_does_not_want_to_write_cannot_and_others_can(daemon):
    code = (
        TRIES
        + """
writable = cx.put("free", np.arange(10))
careful = cx.get("free", readonly=True)
try_to_write(careful)
np.asarray(writable)[0] = 7
np.asarray(cx.get("free"))[1] = 8
assert np.asarray(careful)[:2].tolist() == [7, 8]
cx.delete("free")
"""
    )
    run(code, socket=daemon.path)


def test_by_default_every_owner_writes_on_every_route(daemon):
    code = """
    t = cx.put("free", np.arange(10, dtype=np.float32))
    assert not t.readonly
    np.asarray(t)[0] = 1; memoryview(t)[1] = 2.0; t[2] = 3; np.asarray(t[3:])[0] = 4
    np.frombuffer(t, np.float32)[4] = 5
    array = np.asarray(cx.get("free")); np.add(array, 1, out=array)
    assert np.asarray(t)[:5].tolist() == [2, 3, 4, 5, 6]
    cx.delete("free")
    """
    run(code, socket=daemon.path)


def test_a_bundle_can_be_read_only_too(daemon):
    writer = TRIES + "cx.put('b', {'x': np.arange(10), 'n': {'y': np.arange(10)}}, readonly=True)"
    reader = (
        TRIES
        + """
b = cx.get("b")
try_to_write(b["x"])
try_to_write(b["n"]["y"])
cx.delete("b")
"""
    )
    for code in writer, reader:
        run(code, socket=daemon.path)


def test_shared_memory_put_read_only_is_read_only_for_those_who_get_it(daemon):
    """The one who made it may still write: it was his before."""
    code = (
        TRIES
        + """
mine = cx.zeros((10,), "int64")
mine[...] = np.arange(10)
cx.put("fixed", mine, readonly=True)
try_to_write(cx.get("fixed"))
cx.delete("fixed")
"""
    )
    run(code, socket=daemon.path)


FILLS = """
matrix = np.asarray(cx.get("matrix"))
part, parts = int(sys.argv[1]), int(sys.argv[2])
mine = slice(part * matrix.shape[1] // parts, (part + 1) * matrix.shape[1] // parts)
matrix[:, mine] = (np.arange(matrix.shape[0]) % (part + 2) == 0)[:, None]
"""

CHECKS = """
tensor, parts = cx.get("matrix"), int(sys.argv[1])
matrix = np.asarray(tensor)
for part in range(parts):
    mine = slice(part * matrix.shape[1] // parts, (part + 1) * matrix.shape[1] // parts)
    wanted = np.arange(matrix.shape[0]) % (part + 2) == 0
    assert (matrix[:, mine] == wanted[:, None]).all(), part
assert cx.stats()["storages"] == 1
cx.delete("matrix")
"""


def fill_together(daemon, rows, columns, parts):
    made = "cx.put('matrix', cx.zeros((int(sys.argv[1]), int(sys.argv[2])), bool))"
    run(made, rows, columns, socket=daemon.path)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(Program(FILLS, part, parts, socket=daemon.path))
            for part in range(parts)
        ]
        for worker in workers:
            worker.finish(LONG)
    with Program(CHECKS, parts, socket=daemon.path) as program:
        program.finish(LONG)


def test_many_processes_fill_one_matrix(daemon):
    fill_together(daemon, 10_000, 250, parts=6)


@pytest.mark.slow
def test_sixty_four_processes_fill_one_large_matrix(daemon):
    fill_together(daemon, 1_000_000, 250, parts=64)
