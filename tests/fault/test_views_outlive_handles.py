"""Every view holds the memory; close() ends a handle and nothing else; no view is ever refused."""

import pytest
from helpers import Program

PATHS = {
    "asarray": "np.asarray(t)",
    "from_dlpack": "np.from_dlpack(t)",
    "memoryview": "np.asarray(memoryview(t))",
    "numpy": "t.numpy()",
    "slice": "np.asarray(t[10:])",
    "sub-view": "np.asarray(t)[10:20]",
    "capsule": "capsule_view(t)",
    "iterator": "np.asarray(next(iter(t)))",
    "frombuffer": "np.frombuffer(t, np.int64)",
}

COMMON = """
import gc
class Holder:
    def __init__(self, capsule): self.capsule = capsule
    def __dlpack__(self, **_): return self.capsule
    def __dlpack_device__(self): return (1, 0)
VERSION = (1, 0) if int(np.__version__.split(".")[0]) > 1 else None
def capsule_view(t):
    return np.from_dlpack(Holder(t.__dlpack__(max_version=VERSION)))
def churn():
    gc.collect()
    for i in range(10_000):
        bytearray(i % 5000)
    kept = [cx.asarray(np.full(1000, -1), copy=True) for _ in range(50)]
def use(view):
    assert (view >= 0).all()
    if view.flags.writeable:
        view[...] = 3
        assert (view == 3).all()
def shared(): return cx.asarray(np.arange(100_000), copy=True)
def private(): return cx.from_dlpack(np.arange(100_000, dtype=np.int32))
"""

SOURCES = pytest.mark.parametrize("source", ["shared", "private"])
EVERY = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())


def body(source, path):
    if source == "private" and "frombuffer" in path:
        return path.replace("int64", "int32")
    return path


def run(daemon, code):
    with Program(COMMON + code, socket=daemon.path) as program:
        program.finish()


@SOURCES
@EVERY
def test_a_view_is_good_after_its_handle_is_dropped(daemon, source, path):
    run(daemon, f"""
def make():
    t = {source}()
    return {body(source, path)}
view = make()
churn()
use(view)
del view
gc.collect()
assert cx.stats()["storages"] == 0
""")  # fmt: skip


@SOURCES
@EVERY
def test_a_view_is_good_after_its_handle_is_closed(daemon, source, path):
    run(daemon, f"""
with {source}() as t:
    view = {body(source, path)}
churn()
use(view)
try:
    np.asarray(t)
except (ValueError, cx.Error) as error:
    assert "closed" in str(error), error
else:
    raise AssertionError("a closed handle was used")
t.close()
""")  # fmt: skip


def test_the_memory_goes_with_the_last_view(daemon):
    run(daemon, """
t = shared()
views = [np.asarray(t), np.from_dlpack(t), memoryview(t), t[5:], t.__dlpack__()]
t.close()
while views:
    gc.collect()
    assert cx.stats()["storages"] == 1, views
    views.pop()
gc.collect()
assert cx.stats()["storages"] == 0
""")  # fmt: skip


def test_a_with_block_does_not_hide_an_error(daemon):
    run(daemon, """
try:
    with shared() as t:
        view = np.asarray(t)
        raise KeyError("mine")
except KeyError as error:
    assert error.args == ("mine",) and error.__context__ is None
use(view)
""")  # fmt: skip


AT_EXIT = {
    "module globals": "",
    "a cycle": "cycle = [view, t]; cycle.append(cycle); del view, t",
    "a default argument": "def f(v=view): pass",
    "an atexit function": "import atexit; atexit.register(lambda: use(view))",
    "a class attribute": "class C: v = view; u = t",
    "a destructor": """
class Late:
    def __init__(self, v): self.v = v
    def __del__(self): bytes(self.v)
late = Late(view)
del view, t
""",
    "a thread that reads on": """
import threading
def read():
    while True: bytes(view)
threading.Thread(target=read, daemon=True).start()
""",
    "sys.exit in a thread's company": """
import threading
def ask():
    while True: cx.stats()
threading.Thread(target=ask, daemon=True).start()
sys.exit()
""",
}


@pytest.mark.parametrize("path", ["np.asarray(t)", "np.from_dlpack(t)", "memoryview(t)"])
@pytest.mark.parametrize("end", AT_EXIT.values(), ids=AT_EXIT.keys())
def test_views_may_live_until_the_end_of_the_interpreter(daemon, path, end):
    if "use(view)" in end and "memoryview" in path:
        path = "np.asarray(memoryview(t))"
    run(daemon, f"""
t = shared()
view = {path}
local = private()
local_view = np.asarray(local)
{end}
""")  # fmt: skip


def test_views_are_good_when_the_daemon_is_killed_and_at_the_end(start):
    daemon = start()
    code = """
t = shared()
views = [np.asarray(t), np.asarray(t[5:]), capsule_view(t)]
say("ready")
hear()
churn_only = [bytearray(i) for i in range(1000)]
for view in views:
    use(view)
t.close()
"""
    with Program(COMMON + code, socket=daemon.path) as program:
        program.expect("ready")
        daemon.kill()
        program.tell()
        program.finish()
