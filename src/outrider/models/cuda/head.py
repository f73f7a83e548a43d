"""`CudaHead`: a drafting head on a GPU, on the decoder's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.core.model import DraftHead, HeadOutput, Rows
from outrider.models.cuda.cache import SLACK
from outrider.models.cuda.head_network import HeadNetwork
from outrider.models.cuda.memory import CacheMemory
from outrider.models.cuda.passes import MAX_ROWS, Launched, Passes
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights


class CudaHead(Passes[HeadNetwork], DraftHead):
    """On a GPU."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        eighth: HeadWeights | None,
        embedding: Tensor,
        embed_scale: float,
        *,
        max_batch: int,
        max_context: int,
        memory: CacheMemory | None,
    ) -> None:
        """`eighth`: as of a `HeadNetwork`. `memory`: as of a `CudaDecoder`."""
        self.config = config
        self.aux_hidden_layers = config.aux_hidden_layers
        self.acceptance = config.acceptance
        self.ids = weights.ids
        slots, capacity = max_batch + 1, max_context + SLACK
        network = HeadNetwork(config, weights, eighth, embedding, embed_scale, slots, capacity, MAX_ROWS)
        super().__init__(network, max_batch, max_context, memory)

    def _kinds(self) -> Mapping[str, Launched]:
        return {"fused": self._fused, "own": self._own}

    @torch.inference_mode()
    def forward(
        self, batch: Sequence[Rows], *, features: Tensor | None = None, states: Tensor | None = None
    ) -> HeadOutput:
        parts: list[HeadOutput] = []
        start = 0
        for part, _ in self._described(batch):
            stop = start + len(part)
            if features is not None:
                self.network.inbox[: len(part)] = features[start:stop]
            else:
                assert states is not None, "features or states"
                self.network.given[: len(part)] = states[start:stop]
            logits = self._run(part, "own" if features is None else "fused")
            parts.append(HeadOutput(logits, self.network.states[: len(part)].clone()))
            start = stop
        if len(parts) == 1:
            return parts[0]
        return HeadOutput(torch.cat([part.logits for part in parts]), torch.cat([part.states for part in parts]))

    def _fused(self, rows: int, together: bool, tiled: bool) -> None:
        self.network.fuse(rows)
        self._own(rows, together, tiled)

    def _own(self, rows: int, together: bool, tiled: bool) -> None:
        self.network.run(rows, together, self.network.given, tiled=tiled)
