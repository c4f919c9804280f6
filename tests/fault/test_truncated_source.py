"""Files and segments that somebody cuts short under those who read them."""

import os
import signal

import numpy as np
import pytest
from helpers import Program

COPIES_A_FILE = """
path = sys.argv[1]
mapped = np.memmap(path, np.float32, "r")
tensors = [cx.put(f"w/{i}", mapped[i * 1000 : (i + 1) * 1000]) for i in range(10)]
say("copied")
hear()
for i, tensor in enumerate(tensors):
    assert np.array_equal(np.asarray(tensor), np.arange(i * 1000, (i + 1) * 1000))
for name in cx.names():
    cx.delete(name)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    np.arange(10_000, dtype=np.float32).tofile(path)
    return path


@pytest.mark.parametrize("change", ["overwritten", "truncated"])
def test_what_was_put_from_a_file_does_not_change_with_it(daemon, file, change):
    with Program(COPIES_A_FILE, file, socket=daemon.path) as program:
        program.expect("copied")
        if change == "overwritten":
            with open(file, "r+b") as raw:
                raw.write(bytes(40_000))
        else:
            os.truncate(file, 0)
        program.tell()
        program.finish()


def test_a_source_cut_short_during_put_hurts_only_its_own_process(daemon, file):
    code = """
mapped = np.memmap(sys.argv[1], np.float32, "r")
os.truncate(sys.argv[1], 0)
cx.put("never", mapped)
"""
    with Program(code, file, socket=daemon.path) as program:
        assert program.end()[0] in (-signal.SIGBUS, 1)
    daemon.settle_clean()


def test_a_memfd_segment_cannot_be_cut_short_by_a_client(start):
    daemon = start("--backing", "memfd")
    with daemon.connect() as client, daemon.connect() as reader:
        grant = client.put("name", b"still whole")["grant"]
        size, fd = client.map(grant["segment"])
        with open(fd, "r+b") as segment:
            for length in 0, size - 1, size + 1:
                with pytest.raises(PermissionError):
                    os.ftruncate(segment.fileno(), length)
        reader.get("name")
        size_seen, fd = reader.map(grant["segment"])
        with open(fd, "rb") as segment:
            assert size_seen == size
            assert os.pread(segment.fileno(), 11, grant["offset"]) == b"still whole"
        client.delete("name")


def test_a_posix_segment_cut_short_does_not_end_the_daemon(start):
    """Documented: whoever may connect can do this to those who map it; never to the daemon."""
    daemon = start("--backing", "posix")
    with daemon.connect() as client:
        grant = client.put("name", b"victim")["grant"]
        _, fd = client.map(grant["segment"])
        with open(fd, "r+b") as segment:
            os.ftruncate(segment.fileno(), 0)
        client.put("other", b"small again")
        client.delete("name")
        client.delete("other")
        client.alloc(1 << 20)
