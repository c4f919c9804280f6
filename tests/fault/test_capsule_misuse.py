"""Capsules dropped, taken twice, refused half-way: in a long loop, memory and counts stay flat."""

import pytest
from helpers import LONG, SUPPORT, Program, run

COMMON = f"""
import gc
sys.path.insert(0, {str(SUPPORT)!r})
import forge
from forge import Forge, Producer
rounds = int(sys.argv[1])
block = np.zeros(1 << 18, np.float32)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def flat(work):
    "Runs work() often; one block kept each time would be far over the bound."
    for _ in range(10): work()
    gc.collect()
    before = resident()
    for _ in range(rounds): work()
    gc.collect()
    assert resident() - before < rounds * block.nbytes / 4, (resident(), before)

def refuses(call, *kinds):
    try: call()
    except kinds: return
    raise AssertionError("accepted")
"""

WORK = {
    "private, exported and dropped": """
def work(): cx.from_dlpack(block.copy()).__dlpack__(max_version=(1, 0))
""",
    "private, exported legacy and dropped": """
def work(): cx.from_dlpack(block.copy()).__dlpack__()
""",
    "shared, exported and dropped": """
def work(): cx.asarray(block, copy=True).__dlpack__(max_version=(1, 0))
""",
    "a copy, exported and dropped": """
t = cx.from_dlpack(block)
def work(): t.__dlpack__(copy=True)
""",
    "exported and imported": """
def work(): np.from_dlpack(cx.from_dlpack(block.copy())).sum()
""",
    "imported twice": """
def work():
    source = cx.from_dlpack(block.copy())
    class Twice:
        capsule = source.__dlpack__(max_version=(1, 0))
        def __dlpack__(self, **_): return self.capsule
        def __dlpack_device__(self): return (1, 0)
    twice = Twice()
    cx.from_dlpack(twice)
    refuses(lambda: cx.from_dlpack(twice), BufferError)
""",
    "a producer that raises": """
class Raises:
    def __init__(self): self.ballast = block.copy()
    def __dlpack__(self, **_): raise RuntimeError("no")
    def __dlpack_device__(self): return (1, 0)
def work(): refuses(lambda: cx.from_dlpack(Raises()), RuntimeError)
""",
    "a dtype that is refused": """
def work(): refuses(lambda: cx.from_dlpack(block.copy().view(np.int64)), BufferError)
""",
    "a layout that is refused": """
def work(): refuses(lambda: cx.from_dlpack(block.copy().reshape(512, 512).T), BufferError)
""",
    "a device that is refused": """
def work(): refuses(lambda: cx.from_dlpack(block.copy(), device="cuda:99"), cx.DeviceError)
""",
    "a request that is refused": """
t = cx.from_dlpack(block)
def work(): refuses(lambda: t.__dlpack__(copy=True, dl_device=(2, 0)), BufferError)
""",
    "copy=True": """
def work(): cx.from_dlpack(block.copy(), copy=True)
""",
    "put and deleted": """
def work(): cx.put("block", block); cx.delete("block")
""",
}


def loop(daemon, work, rounds):
    code = COMMON + work + "flat(work)\ngc.collect()\nassert cx.stats()['storages'] == 0\n"
    if "t = cx" in work:
        code = code.replace("assert cx.stats()['storages'] == 0\n", "")
    with Program(code, rounds, socket=daemon.path) as program:
        program.finish(LONG)


@pytest.mark.bare
@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_memory_stays_flat(daemon, work):
    loop(daemon, work, 200)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_memory_stays_flat_for_long(daemon, work):
    loop(daemon, work, 10_000)


@pytest.mark.parametrize("copy", [None, False, True])
def test_every_capsule_that_was_taken_is_released_once(daemon, copy):
    code = f"""
wrong = [dict(dtype=(2, 64, 1)), dict(device=(99, 0)), dict(strides=(1, 2)), dict(version=(2, 0)),
         dict(ndim=-1), dict(data=None), dict(byte_offset=2)]
right = [dict(), dict(versioned=False), dict(strides=None), dict(flags=2)]
for changes in wrong * 10:
    forged = Forge(**changes)
    refuses(lambda: cx.from_dlpack(Producer(forged, device=(1, 0)), copy={copy}), BufferError)
    assert forged.is_released_once(), changes
for changes in right * 10:
    forged = Forge(**changes)
    tensor = cx.from_dlpack(Producer(forged), copy={copy})
    assert forged.released == {int(bool(copy))}
    del tensor
    assert forged.is_released_once(), changes
"""
    run(COMMON + code, 1, socket=daemon.path)
