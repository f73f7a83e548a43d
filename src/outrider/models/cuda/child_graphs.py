"""A recorded graph as one node of another that is being recorded, which PyTorch has no call for: the driver's own."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_SET = 1
"""CU_STREAM_SET_CAPTURE_DEPENDENCIES: what is recorded next comes after these alone."""


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def add_child(graph: int) -> bool:
    """A copy of the graph with this address, behind all that the current stream has recorded so far. False: the driver
    cannot, and nothing was added."""
    driver = _driver()
    if driver is None:
        return False
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    parent, before, count, child = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    told = [ctypes.byref(each) for each in (status, number, parent, before, count)]
    if driver.cuStreamGetCaptureInfo_v2(stream, *told) != 0:
        return False
    if driver.cuGraphAddChildGraphNode(ctypes.byref(child), parent, before, count, ctypes.c_void_p(graph)) != 0:
        return False
    failed = driver.cuStreamUpdateCaptureDependencies(stream, ctypes.byref(child), ctypes.c_size_t(1), _SET)
    if failed:  # it would run beside what follows
        raise RuntimeError(f"The CUDA driver could not order a child graph (error {failed}).")
    return True
