"""Whatever a name looks like, it is a key of the daemon's and no file answers to it."""

from pathlib import Path

from helpers import Program

USES = """
folder = sys.argv[1]
names = [f"{folder}/made", "../made", "../../made", "/made", "a/../../made", "made/", ".", "..",
         "~/made", "$HOME/made", "d.sock", "/dev/shm/made", "/proc/self/mem", "x" * 255]
for name in names:
    cx.put(name, np.arange(3))
    assert cx.get(name).tolist() == [0, 1, 2]
assert sorted(cx.names()) == sorted(names)
for name in names:
    cx.delete(name)
for name in names:
    with cx.queue(name) as queue:
        queue.send(np.arange(3))
        assert queue.recv(timeout=60).tolist() == [0, 1, 2]
assert cx.names() == []
say("done")
hear()
"""


def files(folder) -> set[str]:
    return {str(path) for path in Path(folder).rglob("*")}


def test_names_that_look_like_paths_make_and_open_no_file(daemon, folder):
    before = files(folder)
    with Program(USES, folder, socket=daemon.path, cwd=folder) as program:
        program.expect("done")
        assert files(folder) == before
        assert not [*Path("/").glob("made*"), *Path("/dev/shm").glob("made*")]
        program.tell()
        program.finish()
