"""The ways to run models, fastest first. A model is loaded by the first that does not decline it."""

from __future__ import annotations

from outrider.core.model import LanguageModel
from outrider.models.backend import Backend
from outrider.models.cuda.backend import CudaBackend
from outrider.models.hf_backend import HFBackend
from outrider.models.native.backend import NativeBackend
from outrider.models.torch_backend import TorchBackend

NATIVE_BACKEND, CUDA_BACKEND = NativeBackend(), CudaBackend()
BACKENDS: tuple[Backend, ...] = (NATIVE_BACKEND, CUDA_BACKEND, TorchBackend(), HFBackend())


def backend_of(model: LanguageModel) -> Backend | None:
    """Who has loaded it; None: nobody here."""
    return next((backend for backend in BACKENDS if backend.runs(model)), None)
