"""An engine that accepts by the die; see `synthetic.py`."""

from __future__ import annotations

from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.twin_model import CutVocabulary
from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.drafters.head import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor


def synthetic_engine(model: LanguageModel, drafter: Drafter, acceptance: SyntheticAcceptance) -> Engine:
    """Chains of the acceptance's draft length; on the device wherever the exact engine would step there."""
    controller = FixedLength(acceptance.draft_length)
    host = HostExecutor(model, drafter, controller, acceptance.rules())
    if model.steps_on_device and isinstance(drafter, ModelDrafter | HeadDrafter) and drafter.chains:
        from outrider.bench.forced import ForcedStepper  # needs Triton, which is there if the model can step
        from outrider.models.cuda.decoder import CudaDecoder
        from outrider.models.cuda.head import CudaHead

        target = model.model if isinstance(model, CutVocabulary) else model
        draft = drafter.head if isinstance(drafter, HeadDrafter) else drafter.model
        if isinstance(target, CudaDecoder) and isinstance(draft, CudaDecoder | CudaHead):
            stepper = ForcedStepper(target, draft, acceptance, model.vocab_size)
            return Engine(model, drafter, controller, executor=DeviceExecutor(model, stepper, host, drafter))
    return Engine(model, drafter, controller, executor=host)
