"""What NVIDIA's management library says of processes on a device."""

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p


class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("nbytes", c_ulonglong), ("gpu", c_uint), ("compute", c_uint)]


def process(uuid: str, pid: int) -> dict:
    """Whether it is listed as using the device, and with how many bytes."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {"nvml": "not installed"}
    device, count = c_void_p(), c_uint(1024)
    found = (Process * count.value)()
    code = (
        library.nvmlInit_v2()
        or library.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(device))
        or library.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(count), found)
    )
    if code:
        return {"nvml": f"error {code}"}
    listed = [p.nbytes for p in found[: count.value] if p.pid == pid]
    return {"nvml_listed": bool(listed), "nvml_bytes": listed[0] if listed else None}
