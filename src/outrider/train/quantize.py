"""A trained head's matrices in few bits, rounded so that what they give out changes least.

Rounding to the nearest would treat all inputs alike. But inputs go together: what rounding one weight does wrong, the
weights not yet rounded can make good (Frantar et al., GPTQ), if it is known how inputs go together: their Gram matrix
over texts the head reads. In 4 bits that decides whether a vocabulary's matrix is any good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from outrider.models.head.module import HeadModule
from outrider.models.head.packed import Packed

_BITS = {"lm_head": 5, "fc": 7, "down_proj": 7}
"""By the last part of a matrix's name; six for all others. Measured on the default model's head (docs/training.md)."""
_OTHERS = 6
_CLIPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Of a row's largest weight: what lies beyond is cut off, where that makes the whole more precise."""
_DAMPING = 0.01
_BLOCK = 64
_VOCABULARY = "lm_head"


class Grams:
    """x^T x of the inputs of every matrix, summed while the head runs under `watching`."""

    def __init__(self) -> None:
        self.of: dict[str, Tensor] = {}

    def add(self, name: str, inputs: Tensor) -> None:
        x = inputs.detach().flatten(0, -2).float()
        with torch.autocast(x.device.type, enabled=False):
            gram = x.T @ x
        self.of[name] = gram.double() if name not in self.of else self.of[name] + gram


@contextmanager
def watching(module: HeadModule) -> Iterator[Grams]:
    """The vocabulary's rows are multiplied elsewhere in training, so its inputs are taken from the norm before."""
    grams, hooks = Grams(), []
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and name != _VOCABULARY:
            hooks.append(part.register_forward_pre_hook(lambda _, given, name=name: grams.add(name, given[0])))
    hooks.append(module.norm.register_forward_hook(lambda _, __, given: grams.add(_VOCABULARY, given)))
    try:
        yield grams
    finally:
        for hook in hooks:
            hook.remove()


def narrowed(tensors: Mapping[str, Tensor], grams: Mapping[str, Tensor]) -> dict[str, Packed]:
    """Every matrix of a head, by its name without `.weight`. Where no Gram matrix is known weights are rounded each for
    itself."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dim() == 2:
            name = name.removesuffix(".weight")
            weight = tensor.detach().float().cpu()
            gram = grams[name].float().cpu() if name in grams else torch.eye(weight.shape[1])
            found[name] = narrow(weight, gram, _BITS.get(name.rpartition(".")[2], _OTHERS))
    return found


def narrow(weight: Tensor, gram: Tensor, bits: int) -> Packed:
    """weight fp32 [rows, columns], gram fp32 [columns, columns]"""
    centre = weight.mean(0)
    spread = (weight - centre).square().mean(0).sqrt().clamp(min=1e-12)
    rest = (weight - centre) / spread
    scales = _scales(rest, bits)
    codes = _compensated(rest, gram * spread * spread[:, None], scales, bits)
    return Packed.of(codes, bits, scales, spread, centre)


def _round(x: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Codes, as floats."""
    codes: Tensor = (x / scales + (2**bits - 1) / 2).round_().clamp_(0, 2**bits - 1)
    return codes


def _scales(rest: Tensor, bits: int) -> Tensor:
    """Per row, those that lose least."""
    most = rest.abs().amax(1).clamp(min=1e-12)
    best, least = most, torch.full_like(most, torch.inf)
    for clip in _CLIPS:
        scales = most * clip / ((2**bits - 1) / 2)
        wide = (_round(rest, scales[:, None], bits) - (2**bits - 1) / 2) * scales[:, None]
        lost = (wide - rest).square().sum(1)
        best, least = torch.where(lost < least, scales, best), torch.minimum(lost, least)
    return best


def _compensated(rest: Tensor, gram: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Codes [rows, columns]: column after column, those with the largest inputs first."""
    columns = rest.shape[1]
    order = gram.diag().argsort(descending=True)
    gram = gram[order][:, order].double()  # some inputs are a thousand times larger than others
    damping = torch.eye(columns, dtype=torch.float64) * gram.diag().mean().clamp(min=1e-12) * _DAMPING
    lower, failed = torch.linalg.cholesky_ex(gram + damping)
    while failed:  # inputs that hardly differ from one another
        damping *= 10
        lower, failed = torch.linalg.cholesky_ex(gram + damping)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float()
    rest, scale = rest[:, order], scales[:, None]
    codes = torch.empty_like(rest)
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        block, wrong = rest[:, start:end].clone(), torch.empty(len(rest), end - start)
        for i in range(end - start):
            own = factor[start + i]
            code = _round(block[:, i : i + 1], scale, bits)
            codes[:, start + i] = code[:, 0]
            error = (block[:, i : i + 1] - (code - (2**bits - 1) / 2) * scale) / own[start + i]
            block[:, i + 1 :] -= error * own[start + i + 1 : end]
            wrong[:, i] = error[:, 0]
        rest[:, end:] -= wrong @ factor[start:end, end:]
    return codes[:, order.argsort()]
