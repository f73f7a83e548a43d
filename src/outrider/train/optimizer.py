"""One step of training: loss, gradients, optimiser, running mean of the weights. The host waits for none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from outrider.train.batch import Texts
from outrider.train.muon import Muon
from outrider.train.student import Student

_CLIP = 1.0
_AVERAGE = 0.999


class Optimizer:
    def __init__(self, student: Student, learning_rate: float, device: torch.device) -> None:
        self._student, self._learning_rate, self._device = student, learning_rate, device
        self._parameters = list(student.parameters())
        self._weights: list[Tensor] = [p.detach() for p in self._parameters]
        """The same memory, without gradients."""
        self.average = [w.clone() for w in self._weights]
        inner = [p.dim() == 2 and p is not student.vocabulary for p in self._parameters]
        self._matrices = [p for p, is_inner in zip(self._parameters, inner, strict=True) if is_inner]
        self._muon = Muon([p.detach() for p in self._matrices])
        self._adam = torch.optim.AdamW(
            [p for p, is_inner in zip(self._parameters, inner, strict=True) if not is_inner],
            lr=learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )

    def gradients(self, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        """Left at the parameters; the loss and the student's statistics."""
        with self.mixed():
            loss, numbers = self._student.loss(texts)
        torch.autograd.backward(loss)
        return loss.detach(), numbers

    def update(self, loss: Tensor, factor: float, step: int) -> Tensor:
        """Use the gradients, at the learning rate times `factor`. Whether loss or gradients were not finite: then
        nothing has changed."""
        rate = self._learning_rate * factor
        for group in self._adam.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        bad = ~(loss.isfinite() & norm.isfinite())
        # As torch.amp.GradScaler tells a fused optimiser: not 0 makes it leave everything as it is.
        self._adam.found_inf = bad.float()  # type: ignore[attr-defined]
        self._adam.step()
        self._muon.step([p.grad for p in self._matrices if p.grad is not None], rate, (~bad).float())
        for parameter in self._parameters:
            parameter.grad = None
        keep = min(_AVERAGE, (1 + step) / (10 + step))  # a short run's average must not start in the past
        torch._foreach_lerp_(self.average, self._weights, 1 - keep)
        return bad

    def state_dict(self) -> dict[str, Any]:
        """Of the optimisers."""
        return {"adam": self._adam.state_dict(), "muon": self._muon.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        self._muon.load_state_dict(state["muon"])

    def mixed(self) -> torch.autocast:
        """Matrix products in bf16 on a GPU; weights, sums and the optimiser stay fp32. Weights are cast once within."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """With the running mean as weights."""
        own = [w.clone() for w in self._weights]
        torch._foreach_copy_(self._weights, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)
