"""docs/lifetime.md is true: its example prints what it shows, and so do its rarer rows."""

import gc
import os
import re
import subprocess
import sys
import tempfile

import daemon as d
import numpy as np
from example import run_example

import tensorcx as cx

MiB = 1 << 20


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: pids, ages, versions, column widths, warmth."""
    text = re.sub(r"^ *\d+  (\S+)", r"PID \1", text, flags=re.MULTILINE)
    text = re.sub(r"\d+ +\d+ s", "N", text)
    text = re.sub(r"\d+ MiB warm", "N warm", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_worked_example_prints_what_the_document_shows():
    document = (d.ROOT / "docs" / "lifetime.md").read_text()
    (shown,) = re.findall(r"```\n(\$ tensorcx ls\n.*?)```", document, flags=re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="tcx-") as folder, d.Daemon(folder) as running:
        environment = os.environ | {"TENSORCX_SOCKET": str(running.path)}
        printed = run_example("lifetime.py", env=environment)
        running.settle_clean()
    assert plain(printed) == plain(shown)


def bytes_now() -> int:
    return cx.stats()["bytes"]


def test_an_exception_that_is_kept_keeps_the_variables_of_its_frames():
    def fail():
        tensor = cx.zeros(MiB, "uint8")
        raise RuntimeError(tensor.nbytes)

    try:
        fail()
    except RuntimeError as error:
        kept = error
    assert bytes_now() == MiB
    del kept
    assert bytes_now() == 0


def test_a_reference_cycle_ends_when_python_collects_it():
    gc.disable()
    try:
        cycle = [cx.zeros(MiB, "uint8")]
        cycle.append(cycle)
        del cycle
        assert bytes_now() == MiB
        gc.collect()
        assert bytes_now() == 0
    finally:
        gc.enable()


def test_a_private_entry_keeps_its_pack_and_all_that_the_pack_refers_to():
    shared = cx.zeros(MiB, "uint8")
    cx.put("bundle", {"shared": shared, "a": np.ones(2 * MiB, "uint8"), "b": np.ones(3, "uint8")})
    del shared
    packed, referred = cx.get("bundle")["b"], cx.get("bundle")["shared"]
    cx.delete("bundle")
    assert bytes_now() >= 3 * MiB
    copied = packed.copy()
    del packed
    assert bytes_now() == MiB + copied.nbytes
    del referred
    assert bytes_now() == copied.nbytes
    del copied


def test_a_publisher_that_ends_takes_its_ephemeral_name_and_no_other():
    code = """
import numpy as np, tensorcx as cx
cx.put("stays", np.ones(1 << 20, "uint8"))
cx.put("goes", np.ones(1 << 20, "uint8"), ephemeral=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    d.settle(lambda: cx.names() == ["stays"], "the end of the ephemeral name")
    d.settle(lambda: bytes_now() == MiB, "the end of its memory")
    cx.delete("stays")
    assert bytes_now() == 0
