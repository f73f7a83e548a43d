"""A drafting head's pass: the decoder's kernels with another beginning, and states as what comes out."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.kernels.rows import pair_kernel
from outrider.models.cuda.launches import power_of_two
from outrider.models.cuda.network import Network
from outrider.models.cuda.products import Matrix
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights
from outrider.models.weights import DecoderWeights, LayerWeights

FEW_ROWS = 64
"""Up to so many rows take as long as reading the weights."""


class HeadNetwork(Network):
    """`states[r]` is the state after row r of the last pass: the residual stream after all layers."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        eighth: HeadWeights | None,
        embedding: Tensor,
        embed_scale: float,
        slots: int,
        capacity: int,
        max_rows: int,
    ) -> None:
        """`eighth`: the same in 8 bits (`eighth_head.py`), for few rows. `embedding`: the target's."""
        self._config = config
        self._fc, self._hidden_norm = Matrix(weights.fc.values), weights.hidden_norm
        self._few_fc = self._fc if eighth is None else Matrix(eighth.fc.values, eighth.fc.scales)
        self._embed_scale = embed_scale
        own = _decoder(weights, embedding)
        self._few = own if eighth is None else _decoder(eighth, embedding)
        super().__init__(config.architecture, own, slots, capacity, max_rows)
        self.keep_hidden_layers((len(weights.layers),))

        def room(width: int) -> Tensor:
            return torch.zeros(max_rows, width, dtype=self.dtype, device=self.device)

        self.inbox = room(config.feature_width)
        """Features to be fused."""
        self.given = room(config.hidden)
        """States to start from: fused ones, or written here."""
        self._pair = room(2 * config.hidden)

    @property
    def states(self) -> Tensor:
        return self.features

    def _sizes(self) -> set[int]:
        return super()._sizes() | {self._few.layers[0].qkv.element_size()}

    def _weights_of(self, rows: int) -> DecoderWeights[LayerWeights]:
        return self._few if rows <= FEW_ROWS else self._weights

    def _shapes(self) -> list[tuple[int, int]]:
        a = self.architecture
        return [*super()._shapes(), (a.q_width + 2 * a.kv_width, 2 * a.hidden), (a.hidden, self._config.feature_width)]

    def fuse(self, rows: int, features: Tensor | None = None, index: Tensor | None = None) -> None:
        """`features[index[:rows]]` (None: those in `inbox`, in order) as states in `given`."""
        source = self.inbox if features is None else features
        fc = self._few_fc if rows <= FEW_ROWS else self._fc
        self.products.linear(source, fc, None, rows, self.given, index=index)

    def run(
        self,
        rows: int,
        together: bool,
        states: Tensor,
        index: Tensor | None = None,
        tiled: bool = False,
        chain: int = 0,
    ) -> None:
        """As `body`; row r starts from `states[index[r]]` (None: `states[r]`)."""
        pair_kernel[(rows,)](
            self.tables.tokens,
            self.tables.positions,
            self._weights.embedding,
            states,
            index,
            self._weights.layers[0].attention_norm,
            self._hidden_norm,
            self.products.residual,
            self._pair,
            self._attention.scratch,
            self._group(rows, together, tiled, chain),
            self._embed_scale,
            self.architecture.norm_eps,
            BLOCK=BLOCK,
            HIDDEN=self.architecture.hidden,
            WIDTH=power_of_two(self.architecture.hidden),
            NORMED=self._config.norm_before_residual,
            **self._launch,
        )
        self._layers(rows, together, tiled, chain, first=self._pair)


def _decoder(weights: HeadWeights, embedding: Tensor) -> DecoderWeights[LayerWeights]:
    return DecoderWeights(
        embedding, weights.lm_head.values, weights.norm, weights.layers, head_scales=weights.lm_head.scales
    )
