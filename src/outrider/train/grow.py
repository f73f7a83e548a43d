"""A trained head with more to read or more to say: it drafts as before until training makes use of the new parts."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.head.torch_head import as_module
from outrider.models.head.weights import target_ids
from outrider.models.weights import DecoderWeights, LayerWeights


def most_written(counts: Tensor, wanted: int, keep: Tensor | None = None) -> Tensor:
    """`wanted` ids, rising: those to `keep`, and of the others the ones counted most."""
    rank = counts.clone()
    if keep is not None:
        rank[keep] = counts.max() + 1
    return rank.argsort(descending=True, stable=True)[:wanted].sort().values


def grown(head: HeadCheckpoint, config: HeadConfig, ids: Tensor, target: DecoderWeights[LayerWeights]) -> HeadModule:
    """The head in the shape of `config`, which reads its layers and more, drafting `ids`, which contain the head's."""
    state = as_module(head).state_dict()
    width = config.target_hidden
    fc = torch.zeros(config.hidden, config.feature_width)
    for place, layer in enumerate(head.config.aux_hidden_layers):
        now = config.aux_hidden_layers.index(layer)
        fc[:, now * width : (now + 1) * width] = state["fc.weight"][:, place * width : (place + 1) * width]
    has = target_ids(head.tensors["d2t"])
    state |= {"fc.weight": fc, "lm_head.weight": _rows(state["lm_head.weight"], has, ids, target.head.float().cpu())}
    module = HeadModule(config)
    module.load_state_dict(state)
    return module


def _rows(rows: Tensor, has: Tensor, ids: Tensor, target: Tensor) -> Tensor:
    """Training moved the head's rows away from the target's, all of them in much the same way: by the linear map that
    fits best, new ids move along."""
    if len(ids) == len(has):
        return rows[has.argsort()]
    moved: Tensor = torch.linalg.lstsq(target[has], rows).solution  # [hidden, hidden]
    fresh: Tensor = target[ids] @ moved
    fresh[torch.searchsorted(ids, has)] = rows
    return fresh
