"""Passes of the target, with the drafter looking on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.core.drafter import Drafter, ReadsFeatures
from outrider.core.model import LanguageModel, Rows, TappedModel
from outrider.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor


class TargetPass:
    """Every pass over rows of requests goes through here: a drafter that reads what they compute sees all."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self._model = model
        self._tapped = model if isinstance(model, TappedModel) else None
        self._reader = drafter if isinstance(drafter, ReadsFeatures) else None

    def forward(self, requests: list[Request], batch: list[Rows], *, soon: bool) -> Tensor:
        """fp32 logits [rows wanted, V]; `batch[i]` belongs to `requests[i]`. `soon`: whether drafts are expected for
        them (`ReadsFeatures`)."""
        logits = self._model.forward(batch)
        if self._reader is not None and self._tapped is not None:
            self._reader.read(requests, batch, self._tapped.features, soon)
        return logits
