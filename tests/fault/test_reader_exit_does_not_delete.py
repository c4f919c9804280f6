"""A process that only reads takes nothing away when it ends, in whatever manner."""

import signal
import zlib

import numpy as np
import pytest
from helpers import Program, run

MANNERS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('on purpose')", 1),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("die()", -signal.SIGKILL),
    "abort": ("os.abort()", -signal.SIGABRT),
}

READER = """
import zlib
array = np.asarray(cx.get("frame"))
assert zlib.crc32(array) == int(sys.argv[1]), "the data changed"
"""


def read_in_every_manner(daemon, nbytes, rounds):
    values = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    producer = f"""
    values = np.random.default_rng(1).integers(0, 256, {nbytes}, np.uint8)
    cx.put("frame", values)
    say("ready")
    hear()
    cx.delete("frame")
    """
    with Program(producer, socket=daemon.path) as program:
        program.expect("ready")
        for _ in range(rounds):
            for manner, code in MANNERS.values():
                # Each reader checks what the one before it left.
                with Program(READER + manner, zlib.crc32(values), socket=daemon.path) as reader:
                    ended, error = reader.end()
                    assert ended == code, error
                    assert "resource_tracker" not in error and "leaked" not in error
                    if "on purpose" not in manner:
                        assert error == ""
                assert daemon.stats()["names"] == 1
        program.tell()
        program.finish()


def test_readers_may_end_as_they_like(daemon):
    read_in_every_manner(daemon, 4 << 20, rounds=1)


@pytest.mark.slow
def test_many_readers_may_end_as_they_like(daemon):
    read_in_every_manner(daemon, 64 << 20, rounds=3)


def test_the_data_outlives_its_producer(daemon):
    with Program('cx.put("frame", np.arange(1000)); die()', socket=daemon.path) as producer:
        assert producer.end()[0] == -signal.SIGKILL
    daemon.settle(clients=0)
    reader = """
    assert np.array_equal(np.asarray(cx.get("frame")), np.arange(1000))
    cx.delete("frame")
    """
    run(reader, socket=daemon.path)
