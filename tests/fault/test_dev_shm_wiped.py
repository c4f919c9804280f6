"""Somebody empties /dev/shm (a logout, a cleaner): nobody notices, as no name of ours is there."""

import os

from daemon import shm_files
from helpers import Program

HOLDER = """
tensors = [cx.put(f"kept/{i}", np.full(1 << 20, i, np.uint8)) for i in range(5)]
say("ready")
hear()
for i, tensor in enumerate(tensors):
    array = np.asarray(tensor)
    assert (array == i).all()
    array[:] = i + 1
say("written")
hear()
"""

NEWCOMER = """
for i in range(5):
    assert (np.asarray(cx.get(f"kept/{i}")) == i + 1).all()
new = cx.put("new", np.ones(5 << 20, np.uint8))
for name in cx.names():
    cx.delete(name)
"""


def test_all_goes_on_when_dev_shm_is_emptied(start):
    daemon = start("--backing", "posix")
    with Program(HOLDER, socket=daemon.path) as holder:
        holder.expect("ready")
        assert daemon.stats()["backing"] == 0
        for name in shm_files():
            os.unlink(f"/dev/shm/{name}")
        holder.tell()
        holder.expect("written")
        with Program(NEWCOMER, socket=daemon.path) as newcomer:
            newcomer.finish()
        holder.tell()
        holder.finish()


def test_nothing_of_ours_has_a_name_while_it_is_used(start):
    daemon = start("--backing", "posix")
    with Program(HOLDER, socket=daemon.path) as holder:
        holder.expect("ready")
        assert shm_files() == set()
        with daemon.connect() as client:
            for name in client.names():
                client.delete(name)
        holder.tell()
        holder.expect("written")
        holder.tell()
        holder.finish()
