"""The forge itself: it must see the leaks and double releases that the other tests look for."""

import gc

import forge
import numpy as np
import pytest
from forge import Forge, Producer


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
def test_an_unconsumed_capsule_is_released_once(versioned):
    forged = Forge(versioned=versioned)
    capsule = forged.capsule()
    assert forged.released == 0
    del capsule
    assert forged.is_released_once()


def test_numpy_takes_a_forged_capsule_and_releases_it_once():
    forged = Forge(np.arange(6, dtype=np.float32).tobytes(), versioned=False)
    array = np.from_dlpack(Producer(forged, accepts=("stream",)))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.ctypes.data == forged.address
    gc.collect()
    assert forged.released == 0
    del array
    assert forged.is_released_once()


def test_a_second_release_is_counted():
    forged = Forge()
    capsule = forged.capsule()
    forge.delete(forge.get_pointer(id(capsule), forge.VERSIONED))
    del capsule
    gc.collect()
    assert forged.released == 2


def test_an_older_producer_refuses_keywords_it_does_not_know():
    old = Producer(Forge(), accepts=("stream",))
    with pytest.raises(TypeError):
        old.__dlpack__(max_version=(1, 0))
    old.__dlpack__(stream=None)
    assert old.calls == [{"max_version": (1, 0)}, {"stream": None}]
