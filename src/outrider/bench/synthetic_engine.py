"""An engine that accepts by the die; see `synthetic.py`."""

from __future__ import annotations

from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.twin_model import CutVocabulary
from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor


def synthetic_engine(model: LanguageModel, drafter: Drafter, acceptance: SyntheticAcceptance) -> Engine:
    """Chains of the acceptance's draft length; on the device wherever the exact engine would step there."""
    controller = FixedLength(acceptance.draft_length, tree=False)
    host = HostExecutor(model, drafter, controller, acceptance.rules())
    part = drafter.device_part
    if model.steps_on_device and part is not None and part.drafter is not None and not drafter.continues:
        from outrider.bench.forced import ForcedStepper  # needs Triton, which is there if the model can step
        from outrider.models.cuda.decoder import CudaDecoder
        from outrider.models.cuda.head import CudaHead

        target = model.model if isinstance(model, CutVocabulary) else model
        if isinstance(target, CudaDecoder) and isinstance(part.network, CudaDecoder | CudaHead):
            stepper = ForcedStepper(target, part.network, acceptance, model.vocab_size)
            return Engine(model, drafter, controller, executor=DeviceExecutor(stepper, host, part))
    return Engine(model, drafter, controller, executor=host)
