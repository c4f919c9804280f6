"""A part of a large private array: shared memory is taken for the part, not for the whole."""

import pytest
from helpers import run

PARTS = {
    "a row": "whole[:1]",
    "a column": "whole[:, 5]",
    "every thousandth row": "whole[::1000]",
    "a transposed corner": "whole[:100, :50].T",
    "one element": "whole[7, 7]",
    "a flipped row": "whole[3, ::-1]",
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_shared_memory_is_taken_for_the_part_only(daemon, part):
    code = f"""
    whole = np.zeros((8192, 8192))  # 512 MiB, of which nothing is touched
    part = np.asarray({part})
    part[...] = 1 + np.arange(part.size).reshape(part.shape)
    tensor = cx.put("part", part)
    assert np.array_equal(np.asarray(tensor), part)
    assert cx.stats()["bytes"] == part.nbytes
    cx.delete("part")
    """
    run(code, socket=daemon.path)
