"""Descriptors and mappings: none inherited, none mixed up, none left behind."""

import pytest
from helpers import LONG, Program, run

CHILD = '''
import subprocess
tensors = [cx.put(f"t/{i}", np.zeros(1 << 16)) for i in range(10)]
listing = """
import os
for n in map(int, os.listdir("/proc/self/fd")):
    try: print(os.readlink(f"/proc/self/fd/{n}"))
    except FileNotFoundError: pass
"""
child = subprocess.run([sys.executable, "-S", "-c", listing], close_fds=False,
                       capture_output=True, text=True, check=True)
assert child.stdout.count("\\n") >= 3
for line in child.stdout.splitlines():
    assert "tensorcx" not in line and "memfd" not in line and "socket" not in line, line
for name in cx.names():
    cx.delete(name)
'''


def test_a_child_inherits_no_descriptor_of_ours(daemon):
    run(CHILD, socket=daemon.path)


def test_the_number_of_descriptors_does_not_grow_with_tensors(daemon):
    code = """
    def count(): return len(os.listdir("/proc/self/fd"))
    first = cx.put("first", np.zeros(10))
    before = count()
    kept = [cx.put(f"t/{i}", np.zeros(512)) for i in range(2000)]
    kept += [cx.put(f"big/{i}", np.zeros(4 << 20)) for i in range(5)]
    assert count() <= before + 1, (before, count())
    say("here")
    hear()
    for name in cx.names():
        cx.delete(name)
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("here")
        assert daemon.stats()["storages"] == 2006
        program.tell()
        program.finish()


PRODUCER = """
import random
rounds, largest = int(sys.argv[1]), int(sys.argv[2])
dice, acknowledged = random.Random(1), 0
cx.put("ack", np.array([-1]))
for n in range(rounds):
    size = dice.choice([1, 10, 1000, 100_000, dice.randint(1, largest // 8)])
    array = cx.empty((size,), "int64")
    np.asarray(array)[:] = n
    cx.put("box", array)
    del array
    seen = cx.get("ack", newer_than=acknowledged, timeout=60)
    while seen.item() != n:
        acknowledged = seen.version
        seen = cx.get("ack", newer_than=acknowledged, timeout=60)
"""

CONSUMER = """
rounds, version, maps = int(sys.argv[1]), 0, []
for n in range(rounds):
    tensor = cx.get("box", newer_than=version, timeout=60)
    array = np.asarray(tensor)
    assert array[0] == array[-1] == n, (n, array[0], array[-1])
    version = tensor.version
    del array, tensor
    cx.put("ack", np.array([n]))
    maps.append(open("/proc/self/maps").read().count("tensorcx"))
half = len(maps) // 2
assert max(maps[half:]) <= max(maps[:half]) + 2, "the number of mappings grows"
"""


def pass_numbers(daemon, rounds, largest):
    with (
        Program(PRODUCER, rounds, largest, socket=daemon.path) as producer,
        Program(CONSUMER, rounds, socket=daemon.path) as consumer,
    ):
        consumer.finish(LONG)
        producer.finish()
    with daemon.connect() as client:
        client.delete("box")
        client.delete("ack")


def test_a_reader_never_sees_another_tensors_bytes(daemon):
    pass_numbers(daemon, 200, 32 << 20)


@pytest.mark.slow
def test_a_reader_never_sees_another_tensors_bytes_in_a_long_run(daemon):
    pass_numbers(daemon, 5000, 200 << 20)
