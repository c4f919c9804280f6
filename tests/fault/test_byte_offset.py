"""Where the first element lies: a source's offset is added, a view's is kept, none is exported."""

import pytest
from helpers import SUPPORT, run

COMMON = f"""
sys.path.insert(0, {str(SUPPORT)!r})
import forge
from forge import Forge, Producer
values = np.arange(64, dtype=np.float32)
"""


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
@pytest.mark.parametrize("copy", [False, True], ids=["share", "copy"])
def test_a_source_with_an_offset_is_published_from_its_first_element(daemon, versioned, copy):
    code = f"""
forged = Forge(values.tobytes(), (56,), byte_offset=32, versioned={versioned})
tensor = cx.from_dlpack(Producer(forged), copy={copy})
assert np.array_equal(np.asarray(tensor), values[8:])
cx.put("cut", tensor)
cx.put("raw", Producer(Forge(values.tobytes(), (56,), byte_offset=32, versioned={versioned})))
"""
    reader = """
for name in "cut", "raw":
    assert np.array_equal(np.asarray(cx.get(name)), values[8:])
    cx.delete(name)
"""
    for text in code, reader:
        run(COMMON + text, socket=daemon.path)


def test_a_published_view_begins_where_it_began(daemon):
    writer = """
whole = cx.put("whole", values)
cx.put("part", whole[6:10])
cx.put("row", np.asarray(cx.put("matrix", values.reshape(8, 8)))[3])
assert cx.stats()["storages"] == 2
"""
    reader = """
part = cx.get("part")
assert np.asarray(part).tolist() == [6, 7, 8, 9]
managed = forge.contents(part.__dlpack__(max_version=(1, 0)))
assert managed.dl_tensor.byte_offset == 0 and managed.dl_tensor.data == part.data_ptr()
assert np.asarray(cx.get("row")).tolist() == list(range(24, 32))
np.asarray(part)[0] = -1
assert np.asarray(cx.get("whole"))[6] == -1
for name in cx.names():
    cx.delete(name)
assert np.asarray(part).tolist() == [-1, 7, 8, 9]
"""
    for text in writer, reader:
        run(COMMON + text, socket=daemon.path)


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_an_offset_inside_an_element_is_an_error(daemon, offset):
    code = f"""
forged = Forge(values.tobytes(), (8,), byte_offset={offset})
try:
    cx.from_dlpack(Producer(forged))
except BufferError as error:
    assert "align" in str(error), error
else:
    raise AssertionError("accepted")
assert forged.is_released_once()
"""
    run(COMMON + code, socket=daemon.path)
