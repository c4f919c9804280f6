"""from_dlpack as a consumer: who owns a capsule, and that it is released once, whatever happens."""

import gc
import threading

import forge
import numpy as np
import pytest
from forge import Forge, Producer

import tensorcx as cx

VALUES = np.arange(6, dtype=np.float32)
KINDS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


def given(**changes) -> Forge:
    return Forge(VALUES.tobytes(), **changes)


@KINDS
def test_the_tensor_keeps_the_memory_after_its_source_is_gone(versioned):
    forged = given(versioned=versioned)
    source = Producer(forged)
    tensor = cx.from_dlpack(source)
    del source
    gc.collect()
    assert np.asarray(tensor).ravel().tolist() == VALUES.tolist()
    assert forged.released == 0
    del tensor
    assert forged.is_released_once()


@KINDS
def test_a_capsule_that_was_taken_says_so(versioned):
    forged = given(versioned=versioned)
    capsule = forged.capsule()
    tensor = cx.from_dlpack(Producer(forged, capsule=capsule))
    assert forge.capsule_name(capsule) == forge.USED[forged.name]
    del tensor, capsule
    assert forged.is_released_once()


@KINDS
@pytest.mark.parametrize("copy", [None, False, True])
def test_a_capsule_is_taken_once(versioned, copy):
    forged = given(versioned=versioned)
    source = Producer(forged, capsule=forged.capsule())
    tensor = cx.from_dlpack(source)
    with pytest.raises(BufferError):
        cx.from_dlpack(source, copy=copy)
    assert forged.released == 0
    assert np.asarray(tensor).ravel().tolist() == VALUES.tolist()
    del tensor, source
    assert forged.is_released_once()


@KINDS
def test_a_capsule_named_as_used_is_refused_and_left_alone(versioned):
    forged = given(versioned=versioned)
    used = forged.named(forge.USED[forged.name])
    with pytest.raises(BufferError):
        cx.from_dlpack(Producer(forged, capsule=used))
    gc.collect()
    assert forged.released == 0


@KINDS
def test_a_tensor_without_deleter_is_fine(versioned):
    forged = given(versioned=versioned, deleter=False)
    tensor = cx.from_dlpack(Producer(forged))
    assert np.asarray(tensor).ravel().tolist() == VALUES.tolist()
    del tensor
    gc.collect()
    assert forged.released == 0


@pytest.mark.parametrize("version", [(2, 0), (0, 8), (2**32 - 1, 0)])
def test_of_another_major_version_only_the_deleter_is_used(version):
    """The tensor in it is poison: reading any of it would crash."""
    forged = given(version=version, data=8, shape_pointer=16, strides_pointer=24, ndim=2**31 - 1)
    with pytest.raises(BufferError, match=rf"{version[0]}\.{version[1]}|version"):
        cx.from_dlpack(Producer(forged, device=(1, 0)))
    assert forged.is_released_once()


def test_a_later_minor_version_is_accepted():
    forged = given(version=(1, 99))
    assert np.asarray(cx.from_dlpack(Producer(forged))).ravel().tolist() == VALUES.tolist()
    assert forged.is_released_once()


@pytest.mark.parametrize("name", [b"", b"dltensor_", b"DLTENSOR", b"arrow_array", None])
def test_a_capsule_of_another_kind_is_refused(name):
    forged = given()
    with pytest.raises((BufferError, TypeError, ValueError)):
        cx.from_dlpack(Producer(forged, capsule=forged.named(name)))
    assert forged.released == 0


@pytest.mark.parametrize("answer", [0, "dltensor", [], b"dltensor", object()])
def test_an_answer_that_is_no_capsule_is_refused(answer):
    with pytest.raises((BufferError, TypeError, ValueError)):
        cx.from_dlpack(Producer(given(), capsule=answer))


@pytest.mark.parametrize("source", [None, 3, "text", [1.0], object()])
def test_what_has_no_dlpack_is_refused(source):
    with pytest.raises((AttributeError, TypeError)):
        cx.from_dlpack(source)


@KINDS
@pytest.mark.parametrize("copy", [None, False, True])
def test_a_tensor_refused_after_it_was_taken_is_released_once(versioned, copy):
    forged = given(versioned=versioned, dtype=(3, 64, 1), shape=(3,))
    with pytest.raises(BufferError):
        cx.from_dlpack(Producer(forged), copy=copy)
    assert forged.is_released_once()


@KINDS
def test_ten_thousand_refusals_leak_nothing(versioned):
    bad = [given(versioned=versioned, strides=(1, 2)) for _ in range(100)]
    for _ in range(100):
        for forged in bad:
            forged.released = 0
            with pytest.raises(BufferError):
                cx.from_dlpack(Producer(forged))
        assert {forged.released for forged in bad} == {1}


def test_our_error_survives_a_destructor_that_runs_python():
    """The forge's destructor and deleter are Python code. They run while our error is on its way,
    and must neither hide it nor be disturbed by it."""
    forged = given(device=(99, 0))
    with pytest.raises(BufferError, match="device"):
        cx.from_dlpack(Producer(forged, device=(1, 0)))
    assert forged.is_released_once()


@KINDS
def test_the_last_reference_may_go_on_another_thread(versioned):
    forged = given(versioned=versioned)
    box = [cx.from_dlpack(Producer(forged))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert forged.is_released_once()


@pytest.mark.parametrize(
    "error",
    [BufferError("in use"), MemoryError("no"), RuntimeError("odd"), KeyboardInterrupt()],
    ids=lambda e: type(e).__name__,
)
def test_an_error_of_the_producer_arrives_unchanged(error):
    with pytest.raises(type(error)) as caught:
        cx.from_dlpack(Producer(given(), raises=error))
    assert caught.value is error


@KINDS
def test_a_copy_lets_go_of_its_source_at_once(versioned):
    forged = given(versioned=versioned)
    tensor = cx.from_dlpack(Producer(forged), copy=True)
    assert forged.is_released_once()
    assert np.asarray(tensor).ravel().tolist() == VALUES.tolist()


@KINDS
def test_views_keep_the_memory_when_the_tensor_is_closed_or_gone(versioned):
    forged = given(versioned=versioned)
    tensor = cx.from_dlpack(Producer(forged))
    views = [np.asarray(tensor), memoryview(tensor), tensor[1], np.from_dlpack(tensor)]
    tensor.close()
    del tensor
    while views:
        gc.collect()
        assert forged.released == 0
        views.pop()
    assert forged.is_released_once()
