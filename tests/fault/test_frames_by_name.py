"""A name that is put anew all the time: readers see whole versions, and never an older one."""

import contextlib

from helpers import Program

WRITER = """
for k in range(1, int(sys.argv[1]) + 1):
    cx.put("frame", np.full(6_220_800 // 8, k))
say("done")
hear()
"""

READER = """
last, version, seen = int(sys.argv[1]), 0, 0
while seen < last:
    tensor = cx.get("frame", newer_than=version, timeout=60)
    array = np.asarray(tensor)
    assert array.min() == array.max(), "half of one frame, half of another"
    assert array[0] > seen and tensor.version > version, "an older frame"
    seen, version = array[0], tensor.version
"""

KEEPER = """
kept, version = [], 0
while len(kept) < 20:
    kept.append(cx.get("frame", newer_than=version, timeout=60))
    version = kept[-1].version
say("full")
hear()
for tensor in kept:
    array = np.asarray(tensor)
    assert array.min() == array.max()
assert [t.version for t in kept] == sorted({t.version for t in kept})
"""


def test_readers_of_a_name_that_is_put_anew_see_whole_frames_in_order(daemon):
    frames = 100
    with contextlib.ExitStack() as stack:

        def program(code, *args):
            return stack.enter_context(Program(code, *args, socket=daemon.path))

        readers = [program(READER, frames) for _ in range(3)]
        keeper = program(KEEPER)
        daemon.settle(waiting=4)
        writer = program(WRITER, frames)
        writer.expect("done")
        for reader in readers:
            reader.finish()
        keeper.expect("full")
        keeper.tell()
        keeper.finish()
        writer.tell()
        writer.finish()
    with daemon.connect() as client:
        client.delete("frame")
