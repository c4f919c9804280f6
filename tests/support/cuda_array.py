"""A framework in miniature with arrays on CUDA devices, where tests have no PyTorch for them.

An Array is C-contiguous and has a stream of its own, on which it is written and read; as a producer
and as a consumer of DLPack it orders streams as the standard says. from_dlpack() is its import.
"""

import ctypes

import cuda_driver as cuda
import forge
import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of DLPack, by NumPy's kind
KINDS = {code: kind for kind, code in CODES.items()}


class Array:
    """Memory of cuMemAlloc, freed with the last reference (an export is one)."""

    def __init__(self, shape, dtype="float32", device=0, *, stream=cuda.LEGACY):
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.device = device
        self.stream = stream
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.asked: list[dict] = []  # the keywords of each __dlpack__()
        self.address = 0
        with cuda.current(device):
            self.address = cuda.allocate(self.nbytes)

    @classmethod
    def of(cls, values, device=0, *, stream=cuda.LEGACY):
        """A copy of a NumPy array or list."""
        values = np.ascontiguousarray(values)
        array = cls(values.shape, values.dtype, device, stream=stream)
        array.write(values)
        return array

    def __del__(self):
        if self.address:
            try:
                with cuda.current(self.device):
                    cuda.free(self.address)
            except cuda.CudaError as error:
                if error.code not in (cuda.DEINITIALIZED, cuda.ILLEGAL_ADDRESS):
                    raise

    def write(self, values):
        with cuda.current(self.device):
            cuda.write(
                self.address, np.ascontiguousarray(values, self.dtype).tobytes(), self.stream
            )

    def numpy(self):
        """Its values after what its stream was given; other streams are not waited for."""
        with cuda.current(self.device):
            values = cuda.read(self.address, self.nbytes, self.stream)
        return np.frombuffer(values, self.dtype).reshape(self.shape)

    def fill_bytes(self, value: int):
        """Queued, not done."""
        with cuda.current(self.device):
            cuda.fill(self.address, value, self.nbytes, self.stream)

    def synchronize(self):
        with cuda.current(self.device):
            cuda.stream_synchronize(self.stream)

    # ------------------------------------------------------------------------------- as a producer

    def __dlpack_device__(self):
        return (forge.CUDA, self.device)

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        stream = keywords.get("stream")
        if stream == 0:
            raise ValueError("stream 0 is ambiguous")
        with cuda.current(self.device):
            if stream != -1:
                cuda.stream_wait_for(cuda.LEGACY if stream is None else stream, self.stream)
        versioned = (keywords.get("max_version") or (0, 0))[0] >= 1
        return Export(self, versioned).capsule()

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }


class Export(forge.Forge):
    """A managed tensor over an Array, which it keeps until it is deleted."""

    def __init__(self, array: Array, versioned: bool):
        self.array: Array | None = array
        super().__init__(
            b"",
            array.shape,
            (CODES[array.dtype.kind], array.dtype.itemsize * 8, 1),
            versioned=versioned,
            data=array.address if array.nbytes else None,
            device=(forge.CUDA, array.device),
        )

    @property
    def released(self) -> int:
        return self.count

    @released.setter
    def released(self, count: int):
        self.count = count
        if count:
            self.array = None


# --------------------------------------------------------------------------------- as a consumer


class View(Array):
    """Memory of another producer, given back by close() or with the last reference."""

    def __init__(self, managed, stream: int):
        tensor = managed.dl_tensor
        self.managed = managed
        self.shape = forge.dims(tensor.shape, tensor.ndim)
        kind = KINDS[tensor.dtype.code]
        self.dtype = np.dtype(f"{kind}{tensor.dtype.bits // 8}" if kind != "b" else "bool")
        self.device = tensor.device.device_id
        self.stream = stream
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.asked = []
        self.address = (tensor.data or 0) + tensor.byte_offset
        strides = forge.dims(tensor.strides, tensor.ndim)
        if self.nbytes and strides and list(strides) != forge.c_order(self.shape):
            raise ValueError(f"strides {strides} are not C order")

    def close(self):
        """As of a kernel library: without waiting for what its stream was given."""
        managed, self.managed = self.managed, None
        if managed is not None and managed.deleter:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(ctypes.addressof(managed))

    def __del__(self):
        self.close()


def from_dlpack(producer, *, stream=cuda.LEGACY) -> View:
    """Takes `producer`'s memory, to be used on `stream`; producer and stream are on its device."""
    kind, device = producer.__dlpack_device__()
    if kind != forge.CUDA:
        raise ValueError(f"device type {kind} is not CUDA")
    with cuda.current(device):
        capsule = producer.__dlpack__(stream=stream, max_version=(1, 3))
    managed = forge.contents(capsule)
    name = forge.capsule_name(capsule)
    if managed.dl_tensor.device.device_type != forge.CUDA:
        raise ValueError("a capsule of another device")
    del managed.capsule
    view = View(managed, cuda.LEGACY if stream in (None, -1) else stream)
    forge.python.PyCapsule_SetName(ctypes.py_object(capsule), forge.USED[name])
    return view


def seen(tensor):
    """The elements as another framework on the device sees them."""
    return from_dlpack(tensor).numpy()


def now(tensor):
    """The bytes at this moment, read on a stream that waits for none."""
    with cuda.current():
        stream = cuda.stream_create()
        try:
            return list(cuda.read(tensor.data_ptr(), tensor.nbytes, stream))
        finally:
            cuda.stream_destroy(stream)
