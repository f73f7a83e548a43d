"""Passes of the target, with the drafter looking on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel, Rows
from outrider.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor


class TargetPass:
    """Every pass over rows of requests goes through here: a drafter that reads what they compute sees all."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        self._is_read = drafter.reads_features and model.gives_features

    def forward(self, requests: list[Request], batch: list[Rows], *, soon: bool) -> Tensor:
        """fp32 logits [rows wanted, V]; `batch[i]` belongs to `requests[i]`. `soon`: whether drafts are expected for
        them (`Drafter.read`)."""
        logits = self._model.forward(batch)
        if self._is_read:
            self._drafter.read(requests, batch, self._model.features, soon)
        return logits
