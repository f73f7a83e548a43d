"""Attention of ragged rows over a static cache, in PyTorch, for any device.

Two forms with one contract: query row r attends to its slot's committed prefix plus its own ancestors.

`masked` hands whole spans to PyTorch's fused attention; fast, but rounding depends on how many rows go together.
`blocked` reduces keys in fixed blocks of absolute position along the row's own path, so a row's bits depend on that
path alone, not on where in the cache its ancestors lie; nor on other rows, if it is given a fixed number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider.kvcache.slots import Span

BLOCK = 64
"""Positions reduced together; part of what a bit-exact result means, so never tuned."""


def visibility(span: Span, window: int, device: torch.device) -> Tensor:
    """[rows, span.end] True where a row may look: prefix and ancestors, no further back than `window` (0: all)."""
    mask = torch.zeros(len(span.paths), span.end, dtype=torch.bool)
    for row, path in enumerate(span.paths):
        oldest = max(0, span.base + len(path) - window) if window else 0
        mask[row, oldest : span.base] = True
        mask[row, list(path[max(0, oldest - span.base) :])] = True
    return mask.to(device)


def capped(x: Tensor, cap: float) -> Tensor:
    """Bent so that nothing exceeds `cap`; 0: as it is."""
    return cap * (x / cap).tanh() if cap else x


def masked(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Sequence[Span],
    masks: Sequence[Tensor],
    scale: float,
    cap: float = 0.0,
) -> Tensor:
    """q [rows, heads, dim]; keys, values [slots, kv_heads, capacity, dim] → [rows, heads, dim]. `cap`: of scores."""
    out = torch.empty_like(q)
    start = 0
    for span, mask in zip(spans, masks, strict=True):
        stop = start + len(span.paths)
        some, k, v = q[start:stop].transpose(0, 1), keys[span.slot, :, : span.end], values[span.slot, :, : span.end]
        if cap:
            attended = _with_cap(some, k, v, mask, scale, cap)
        else:
            attended = scaled_dot_product_attention(
                some[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True
            )[0]
        out[start:stop] = attended.transpose(0, 1)
        start = stop
    return out


def _with_cap(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """What PyTorch's fused attention cannot do. q [heads, rows, dim], keys and values [kv_heads, positions, dim]."""
    keys, values = (x.repeat_interleave(len(q) // len(x), 0) for x in (keys, values))
    scores = capped((q @ keys.transpose(1, 2)).float() * scale, cap).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(q.dtype) @ values


def path_index(spans: Sequence[Span], window: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For `blocked`: the slot of each row [rows], the cache index of every position on its path [rows, positions]
    padded to whole blocks, and which of those it sees [rows, positions]."""
    rows = [(span, path) for span in spans for path in span.paths]
    longest = max(span.base + len(path) for span, path in rows)
    width = -(-longest // BLOCK) * BLOCK
    index = torch.arange(width).repeat(len(rows), 1)
    seen = torch.zeros(len(rows), width, dtype=torch.bool)
    for r, (span, path) in enumerate(rows):
        end = span.base + len(path)
        index[r, span.base : end] = torch.tensor(path)
        seen[r, max(0, end - window) if window else 0 : end] = True
    slots = torch.tensor([span.slot for span, _ in rows])
    return slots.to(device), index.where(seen, 0).to(device), seen.to(device)


def blocked(
    q: Tensor, keys: Tensor, values: Tensor, index: tuple[Tensor, ...], scale: float, cap: float = 0.0
) -> Tensor:
    """As `masked`, with the reduction order fixed. Sums run inside a block, then over blocks in order of position;
    a block that a row does not see adds exact zeros, so it does not matter how many such blocks there are."""
    slots, positions, seen = index
    rows, heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.float().view(rows, kv_heads, heads // kv_heads, 1, dim)
    scores = []
    for start in range(0, positions.shape[1], BLOCK):
        at = positions[:, start : start + BLOCK]
        block = keys[slots[:, None], :, at].float().transpose(1, 2)  # [rows, kv_heads, BLOCK, dim]
        scores.append((grouped * block[:, :, None]).sum(-1) * scale)
    # [rows, kv_heads, group, positions]
    score = capped(torch.cat(scores, -1), cap).masked_fill(~seen[:, None, None], float("-inf"))
    weight = (score - score.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(weight[..., :1])
    out = torch.zeros_like(grouped[..., 0, :])
    for start in range(0, positions.shape[1], BLOCK):
        at = positions[:, start : start + BLOCK]
        block = values[slots[:, None], :, at].float().transpose(1, 2)
        part = weight[..., start : start + BLOCK]
        total = total + part.sum(-1, keepdim=True)
        out = out + (part[..., None] * block[:, :, None]).sum(-2)
    return (out / total).reshape(rows, heads, dim).to(q.dtype)
