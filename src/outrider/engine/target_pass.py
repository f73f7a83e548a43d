"""Passes of the target, with the drafter looking on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel, Rows
from outrider.engine.request import NO_SLOT, Request


class _Unread(NamedTuple):
    requests: list[Request]
    batch: list[Rows]
    soon: Sequence[bool]


class TargetPass:
    """Every pass over rows of requests goes through here: a drafter that reads what they compute sees all."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        self._is_read = drafter.reads_features and model.gives_features
        self._unread: _Unread | None = None

    def forward(
        self, requests: list[Request], batch: list[Rows], *, soon: Sequence[bool], late: bool = False
    ) -> Tensor:
        """fp32 logits [rows wanted, V]; `batch[i]` belongs to `requests[i]`. `soon`: whether drafts are expected for
        each (`Drafter.read`). `late`: the drafter is not to read until `read_late`, which must come before the next
        pass: first tokens are waited for."""
        logits = self._model.forward(batch)
        if self._is_read:
            self._unread = _Unread(requests, batch, soon)
            if not late:
                self.read_late()
        return logits

    def read_late(self) -> None:
        """Let the drafter read what it has not of the last pass; those that have left since are of no interest."""
        if self._unread is None:
            return
        (requests, batch, soon), self._unread = self._unread, None
        features, staying = self._model.features, [request.slot != NO_SLOT for request in requests]
        for some in (True, False):
            wanted = [stays and some == it for stays, it in zip(staying, soon, strict=True)]
            if all(wanted):
                self._drafter.read(requests, batch, features, some)
            elif any(wanted):
                lengths = torch.tensor([len(rows.tokens) for rows in batch])
                own = features[torch.tensor(wanted).repeat_interleave(lengths)]
                self._drafter.read(list(compress(requests, wanted)), list(compress(batch, wanted)), own, some)
