"""Exchange from many threads, in a second interpreter, and at the end of a process."""

import subprocess
import sys

import numpy as np
import pytest
from forge import Forge, Producer
from threads import together

import tensorcx as cx

THREADS = 8


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
def test_of_many_threads_with_one_capsule_exactly_one_wins(versioned):
    for _ in range(100):
        forged = Forge(versioned=versioned)
        source = Producer(forged, capsule=forged.capsule())
        results = together(lambda _, source=source: cx.from_dlpack(source))
        assert sum(isinstance(result, cx.Tensor) for result in results) == 1
        assert sum(isinstance(result, BufferError) for result in results) == THREADS - 1
        del source
        assert forged.released == 0
        del results
        assert forged.is_released_once()


def test_threads_import_export_and_let_go_of_one_tensor():
    forged = Forge(np.arange(6, dtype=np.float32).tobytes())
    box = [cx.from_dlpack(Producer(forged))]

    def work(_):
        total = 0.0
        for _ in range(500):
            total += float(np.from_dlpack(cx.from_dlpack(box[0])).sum())
        return total

    assert together(work) == [500 * 15.0] * THREADS
    box.clear()
    assert forged.is_released_once()


def test_the_last_references_of_many_threads_release_once():
    for _ in range(50):
        forged = Forge()
        tensor = cx.from_dlpack(Producer(forged))
        boxes = [[np.from_dlpack(tensor)] for _ in range(THREADS)]
        del tensor
        together(lambda i, boxes=boxes: boxes[i].clear())
        assert forged.is_released_once()


def test_threads_put_get_and_delete_at_once():
    def work(i):
        for n in range(100):
            value = np.full(64, i * 1000 + n, np.int32)
            cx.put(f"threads/{i}", value)
            assert (np.asarray(cx.get(f"threads/{i}")) == value).all()
        cx.delete(f"threads/{i}")
        return "done"

    assert together(work) == ["done"] * THREADS


def test_threads_share_one_name():
    cx.put("threads/one", np.zeros(4, np.int32))

    def work(i):
        for n in range(100):
            cx.put("threads/one", np.full(4, i * 1000 + n, np.int32))
            seen = np.asarray(cx.get("threads/one"))
            assert (seen == seen[0]).all()
        return "done"

    assert together(work) == ["done"] * THREADS
    cx.delete("threads/one")


SUBINTERPRETER = """
import threading

script = '''
import sys
try:
    import numpy as np, tensorcx as cx
except ImportError as error:
    print("refused:", error)
else:
    import threading
    box = [cx.from_dlpack(cx.asarray(np.arange(6, dtype=np.float32), copy=True))]
    view = np.from_dlpack(box[0])
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    print("worked")
sys.stdout.flush()
'''
try:
    import _interpreters as interpreters
    one = interpreters.create("legacy")
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters
    one = interpreters.create(isolated=False)
interpreters.run_string(one, script)
interpreters.destroy(one)
print("main goes on", flush=True)
"""


def test_a_second_interpreter_works_or_refuses_cleanly():
    """NumPy itself may refuse to be loaded there; nothing ever crashes. (The memory is ours: the
    deleter of NumPy's own arrays does not support a second interpreter.)"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SUBINTERPRETER],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    first, last = run.stdout.splitlines()
    assert first == "worked" or first.startswith("refused:"), run.stdout
    assert last == "main goes on"


AT_EXIT = """
import numpy as np, tensorcx as cx, threading
kept = cx.from_dlpack(np.arange(6, dtype=np.float32))
view = np.from_dlpack(kept)
capsule = kept.__dlpack__(max_version=(1, 0))
cycle = [kept]; cycle.append(cycle)
shared = cx.asarray(np.ones(1000, np.float32), copy=True)
shared_view = np.from_dlpack(shared)
print("at the end", flush=True)
"""


def test_views_alive_at_exit_are_no_trouble():
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=100, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "at the end\n", "")
