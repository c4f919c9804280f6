"""Published in one process, opened in others: one memory, which outlives whoever made it."""

import pytest
from helpers import Program

MAKES = """
tensor = cx.put("frame", np.arange(6, dtype=np.float32).reshape(2, 3))
say("ready")
hear()
"""

# A writer writes what it is told; a reader says what it sees.
OPENS = """
tensor = cx.get("frame", timeout=60)
view = np.from_dlpack(tensor)
array = np.asarray(tensor)
assert view.ctypes.data == array.ctypes.data == tensor.data_ptr()
say("open")
while True:
    word = hear()
    if word.startswith("write"):
        array[0, 0] = float(word.split()[1])
        say("written")
    elif word == "read":
        say(view[0, 0])
    elif word == "drop":
        del tensor, view, array
        say("dropped")
    else:
        break
"""


@pytest.mark.parametrize("end", ["in good order", "killed"])
def test_one_writes_and_all_see_it(daemon, end):
    def opens():
        return Program(OPENS, socket=daemon.path)

    with Program(MAKES, socket=daemon.path) as maker, opens() as one, opens() as two:
        maker.expect("ready")
        one.expect("open")
        two.expect("open")
        for writer, reader, value in (one, two, "7.0"), (two, one, "8.5"):
            writer.tell(f"write {value}")
            writer.expect("written")
            reader.tell("read")
            reader.expect(value)

        if end == "killed":
            maker.kill()
        else:
            maker.tell()
            maker.finish()
        one.tell("read")
        one.expect("8.5")
        daemon.settle(clients=2, storages=1)

        with daemon.connect() as client:
            client.delete("frame")
        assert daemon.stats()["storages"] == 1, "two still use it"
        if end == "killed":
            one.kill()
        else:
            one.tell("drop")
            one.expect("dropped")
        two.tell("read")
        two.expect("8.5")
        assert daemon.settle(holds=1)["storages"] == 1, "one still uses it"
        if end == "killed":
            two.kill()
        else:
            two.tell("drop")
            two.expect("dropped")
        daemon.settle(storages=0, bytes=0)
        for program in one, two:
            if end != "killed":
                program.tell()
                program.finish()


def test_readers_keep_what_they_have_when_the_name_moves_on(daemon):
    with Program(MAKES, socket=daemon.path) as maker, Program(OPENS, socket=daemon.path) as old:
        maker.expect("ready")
        old.expect("open")
        with daemon.connect() as client:
            client.put("frame", b"something else")
        old.tell("read")
        old.expect("0.0")
        maker.tell()
        maker.finish()
        old.tell("read")
        old.expect("0.0")
        old.tell()
        old.finish()
    daemon.settle(storages=1)
    with daemon.connect() as client:
        client.delete("frame")
