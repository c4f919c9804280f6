"""The miniature framework and the looks at the fake driver: do they see what others look for?"""

import gc
import subprocess
import sys

import cuda_array
import cuda_driver as cuda
import fakecuda
import forge
import numpy as np
import pytest
from cuda_array import Array
from fakecuda import delays, fake_machine, faults  # noqa: F401  fixtures

pytestmark = pytest.mark.usefixtures("fake_machine")

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def side():
    """A stream that waits for no other."""
    with cuda.current():
        stream = cuda.stream_create()
        yield stream
        cuda.stream_destroy(stream)


def test_an_array_has_its_values_on_its_device():
    for device in 0, 1:
        array = Array.of(VALUES, device)
        assert array.numpy().tolist() == VALUES.tolist()
        assert array.__dlpack_device__() == (forge.CUDA, device)
        assert fakecuda.used(device) == fakecuda.BLOCK
        del array
        assert fakecuda.used(device) == 0


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "float16", "uint8", "int64"])
def test_an_export_is_the_same_memory_until_it_is_closed(dtype):
    array = Array.of(VALUES.astype(dtype))
    view = cuda_array.from_dlpack(array)
    assert view.dtype == dtype and view.shape == (2, 3)
    assert view.address == array.address
    del array
    gc.collect()
    assert view.numpy().tolist() == VALUES.astype(dtype).tolist()
    view.close()
    gc.collect()
    assert fakecuda.used() == 0


def test_a_capsule_that_nobody_takes_releases_its_array():
    capsule = Array.of(VALUES).__dlpack__(max_version=(1, 0))
    gc.collect()
    assert fakecuda.used() == fakecuda.BLOCK
    del capsule
    gc.collect()
    assert fakecuda.used() == 0


def test_a_producer_makes_the_consumer_s_stream_wait_and_no_other(side):
    array = Array.of(np.zeros(4, np.uint8), stream=side)
    fakecuda.launch(array, 7, 300)
    view = cuda_array.from_dlpack(array, stream=-1)
    assert view.numpy().tolist() == [0] * 4  # the legacy stream waits for blocking ones only
    view = cuda_array.from_dlpack(array, stream=cuda.LEGACY)
    assert view.numpy().tolist() == [7] * 4
    assert [asked["stream"] for asked in array.asked] == [-1, 1]
    with pytest.raises(ValueError, match="ambiguous"):
        array.__dlpack__(stream=0)


def test_a_slow_reader_sees_what_is_there_when_it_reads(side):
    array = Array.of(np.full(4, 1, np.uint8))
    seen = fakecuda.launch_read(array, 300, side)
    array.write([2, 2, 2, 2])
    with cuda.current():
        cuda.stream_synchronize(side)
    assert seen.raw == b"\2\2\2\2"


def test_delays_and_faults_end(delays, faults):  # noqa: F811
    array = Array.of(VALUES)
    delays(300)
    array.fill_bytes(0)
    with cuda.current(), pytest.raises(cuda.CudaError, match="NOT_READY"):
        cuda.call("cuStreamQuery", None)
    array.synchronize()
    faults("cuMemAlloc_v2:1:2")
    with pytest.raises(cuda.CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        Array.of(VALUES)
    assert Array.of(VALUES).numpy().tolist() == VALUES.tolist()


def test_a_disturbed_capture_is_seen(side):
    with cuda.current():
        with cuda.capture(side):
            pass
        with pytest.raises(cuda.CudaError, match="INVALIDATED"), cuda.capture(side):  # noqa: SIM117
            with pytest.raises(cuda.CudaError, match="UNSUPPORTED"):
                cuda.synchronize()
        cuda.synchronize()


def test_memory_that_a_process_keeps_is_told_with_who_has_it():
    array = Array((4,))
    (names,) = fakecuda.holders().values()
    assert len(names) == 1 and names[0].startswith("mapping of ")
    del array
    assert fakecuda.holders() == {}


def test_a_machine_ends_only_when_its_memory_is_given_back():
    with pytest.raises(AssertionError, match=r"memory left on a device.*mapping of"):  # noqa: SIM117
        with fakecuda.machine(patience=0):
            array = Array((4,))
    del array


PROGRAM = """
import cuda_driver as cuda
print(cuda.count_devices(), cuda.uuid(0))
"""


def test_a_program_has_devices_and_a_trace_of_its_own(tmp_path):
    trace = tmp_path / "trace"
    environment = fakecuda.environment(CUDA_VISIBLE_DEVICES="1", FAKECUDA_TRACE=str(trace))
    environment["PYTHONPATH"] += f":{fakecuda.d.ROOT / 'tests' / 'support'}"
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)
    assert said == "1 GPU-face0000-0000-0000-0000-000000000001\n"
    assert fakecuda.calls(trace) == {"cuInit": 1, "cuDeviceGetCount": 1, "cuDeviceGetUuid_v2": 1}
