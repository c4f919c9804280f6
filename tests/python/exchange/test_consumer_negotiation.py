"""from_dlpack as a consumer: what it asks of old and new producers."""

import numpy as np
import pytest
from forge import CPU, Forge, Producer

import tensorcx as cx

VALUES = np.arange(6, dtype=np.float32)


def given(**changes) -> Forge:
    return Forge(VALUES.tobytes(), **changes)


def values(tensor) -> list[float]:
    return np.asarray(tensor).ravel().tolist()


def test_the_first_call_names_the_version_we_know():
    source = Producer(given())
    cx.from_dlpack(source)
    version = source.calls[0]["max_version"]
    assert isinstance(version, tuple) and len(version) == 2
    assert version[0] == 1
    assert len(source.calls) == 1


@pytest.mark.parametrize(
    "accepts", [("stream",), (), ("stream", "max_version"), ("stream", "copy"), ("max_version",)]
)
@pytest.mark.parametrize("copy", [None, False, True])
def test_a_producer_that_knows_fewer_keywords_works(accepts, copy):
    forged = given(versioned="max_version" in accepts)
    tensor = cx.from_dlpack(Producer(forged, accepts=accepts), copy=copy)
    assert values(tensor) == VALUES.tolist()
    del tensor
    assert forged.is_released_once()


def test_a_producer_with_a_bare_method_works():
    class Bare:
        def __init__(self):
            self.forged = given(versioned=False)

        def __dlpack__(self):
            return self.forged.capsule()

        def __dlpack_device__(self):
            return (CPU, 0)

    assert values(cx.from_dlpack(Bare())) == VALUES.tolist()


def test_a_producer_may_answer_legacy_although_asked_for_a_version():
    forged = given(versioned=False)
    source = Producer(forged)
    assert values(cx.from_dlpack(source)) == VALUES.tolist()
    assert "max_version" in source.calls[0]


@pytest.mark.parametrize("accepts", [Producer.MODERN, ("stream",)], ids=["modern", "old"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_a_cpu_producer_is_never_given_a_stream(accepts, copy):
    source = Producer(given(versioned=accepts is Producer.MODERN), accepts=accepts)
    cx.from_dlpack(source, copy=copy)
    assert all(call.get("stream") is None for call in source.calls)


def test_a_producer_that_refuses_to_copy_is_copied_by_us():
    class Unwilling(Producer):
        def __dlpack__(self, **keywords):
            if keywords.get("copy"):
                raise BufferError("cannot copy")
            return super().__dlpack__(**keywords)

    forged = given()
    tensor = cx.from_dlpack(Unwilling(forged), copy=True)
    assert forged.is_released_once()
    forged.write(bytes(24))
    assert values(tensor) == VALUES.tolist()


def test_a_copy_is_ours_even_if_the_producer_claims_to_have_copied():
    """IS_COPIED is not reliable: torch leaves it out, others may set it without reason."""
    forged = given(flags=2)
    tensor = cx.from_dlpack(Producer(forged), copy=True)
    forged.write(bytes(24))
    assert values(tensor) == VALUES.tolist()


def test_a_type_error_from_inside_a_producer_is_not_hidden():
    error = TypeError("from inside")
    source = Producer(given(), raises=error)
    with pytest.raises(TypeError, match="from inside"):
        cx.from_dlpack(source)
    assert len(source.calls) <= 5, "asked again and again"


def test_a_producer_that_always_refuses_is_not_asked_for_ever():
    class Never(Producer):
        def __dlpack__(self, **keywords):
            self.calls.append(keywords)
            raise TypeError("no")

    source = Never(given())
    with pytest.raises(TypeError):
        cx.from_dlpack(source, copy=True)
    assert len(source.calls) <= 5


@pytest.mark.parametrize("device", [None, "cpu"])
def test_our_own_device_may_be_named(device):
    assert values(cx.from_dlpack(Producer(given()), device=device)) == VALUES.tolist()


@pytest.mark.parametrize("device", ["meta", "nonsense", 7])
def test_another_device_is_refused(device):
    forged = given()
    with pytest.raises((BufferError, ValueError, TypeError)):
        cx.from_dlpack(Producer(forged), device=device)
    assert forged.released <= 1


def test_device_and_copy_are_keywords_only():
    with pytest.raises(TypeError):
        cx.from_dlpack(Producer(given()), "cpu")
    with pytest.raises(TypeError):
        cx.from_dlpack(Producer(given()), unknown=1)
    with pytest.raises(TypeError):
        cx.from_dlpack()
    with pytest.raises(TypeError):
        cx.from_dlpack(x=Producer(given()))
