"""The kernels of one pass, in order, over buffers allocated once: what a CUDA graph records.

A pass is described by `Tables`, int32 arrays on the device. Nothing here reads a value back or allocates, so a pass
can be recorded and replayed with other tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.cuda.attending import Attention
from outrider.models.cuda.cache import BlockCache
from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.kernels.rows import embed_kernel, tap_kernel
from outrider.models.cuda.launches import dependent, is_shallow, power_of_two
from outrider.models.cuda.products import Matrix, Products
from outrider.models.cuda.tables import Tables
from outrider.models.cuda.tiling import Product, depth_split
from outrider.models.cuda.tuning import Launches, Site
from outrider.models.weights import DecoderWeights, LayerWeights

NARROW_ROWS = 512
"""Rows of one pass of any kind; more only where all are prompts (`tiled`)."""

HEAD_ROWS = 512
"""Rows whose logits one launch computes."""


class Network:
    """Weights, cache and buffers of one decoder on one GPU. The cache has no blocks before they are made."""

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[LayerWeights],
        slots: int,
        capacity: int,
        max_rows: int,
    ) -> None:
        self.architecture = a = architecture
        self._weights = weights
        self.max_rows = max_rows
        self.capacity = capacity
        self.device, self.dtype = weights.embedding.device, weights.embedding.dtype
        self.tokens = weights.embedding.shape[0]
        """Those that can be run."""
        gpu = GPU.of(self.device)
        self._launch = dependent(gpu)
        few = min(max_rows, NARROW_ROWS)
        splits = [(n, max(depth_split(n, k, size) for size in self._sizes())) for n, k in self._shapes()]
        self.products = Products(a, gpu, self.dtype, self.device, max_rows, few, splits)
        self._attention = Attention(a, gpu, self.dtype, self.device, slots, capacity, max_rows, few)

        def room(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.cache = BlockCache(a, self.dtype, self.device, slots, capacity)
        self.tables = Tables.over(room(Tables.size(max_rows), dtype=torch.int32))
        self.logits = room(HEAD_ROWS, a.vocab_size, dtype=torch.float32)
        self.kept_hidden_layers: tuple[int, ...] = ()
        self.features = room(max_rows, 0)
        self._retired: list[Tensor] = []
        self._x = room(max_rows, a.hidden)
        self._qkv = room(max_rows, a.q_width + 2 * a.kv_width)
        self._gated = room(max_rows, a.mlp)

    def _shapes(self) -> list[tuple[int, int]]:
        a = self.architecture
        return [
            (a.q_width + 2 * a.kv_width, a.hidden),
            (a.hidden, a.q_width),
            (a.hidden, a.mlp),
            (a.vocab_size, a.hidden),
        ]

    def _sizes(self) -> set[int]:
        """Bytes of a weight, of all matrices."""
        return {matrix.element_size() for matrix in (self._weights.layers[0].qkv, self._weights.head)}

    def _weights_of(self, rows: int) -> DecoderWeights[LayerWeights]:
        """Those that so many rows are multiplied with; all have the same norms."""
        return self._weights

    @property
    def tile_rows(self) -> int:
        """As `Attention.tile_rows`."""
        return self._attention.tile_rows

    @property
    def tiles(self) -> Tensor:
        """As `Attention.tiles`."""
        return self._attention.tiles

    def most_tiles(self, rows: int) -> int:
        """As `Attention.most_tiles`."""
        return self._attention.most_tiles(rows)

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        """Keep the residual stream after so many layers, for each of `layers`, in `features`
        [max_rows, layers * hidden] with every pass recorded from now on."""
        if self.kept_hidden_layers != (wanted := tuple(layers)):
            self._retired.append(self.features)  # recorded passes may still write there
            self.kept_hidden_layers = wanted
            width = len(wanted) * self.architecture.hidden
            self.features = torch.zeros(self.max_rows, width, dtype=self.dtype, device=self.device)

    def body(self, rows: int, together: bool, tiled: bool = False, chain: int = 0) -> None:
        """Run the first `rows` rows of the tables; fills the cache.

        `together`: neighbouring rows mostly belong to one slot, so attention takes several at once. `tiled`: they are
        all in `tiles`. `chain`: they come in chains of so many, each of one slot and in order, but for rows at its end
        that only fill it up (position 0 of the spare slot). None of that changes anything but the time.
        """
        a, w, t = self.architecture, self._weights, self.tables
        embed_kernel[(rows,)](
            t.tokens,
            t.positions,
            w.embedding,
            w.layers[0].attention_norm,
            self.products.residual,
            self._x,
            self.products.squares,
            self._attention.scratch,
            self._group(rows, together, tiled, chain),
            a.embed_scale,
            BLOCK=BLOCK,
            HIDDEN=a.hidden,
            WIDTH=power_of_two(a.hidden),
            TILES=self.products.tiles,
            **self._launch,
        )
        self._layers(rows, together, tiled, chain)

    def _group(self, rows: int, together: bool, tiled: bool, chain: int) -> int:
        """Rows of one group of attention; 0: its tiles need no scratch."""
        return 0 if tiled else self._attention.group(rows, together, chain)

    def _layers(self, rows: int, together: bool, tiled: bool, chain: int, first: Tensor | None = None) -> None:
        """All layers, from the residual on. `first`: what the first one reads, normalised, instead of the residual."""
        live = self.tiles[0] if tiled else None
        self._keep(0, rows)
        for i, layer in enumerate(self._weights.layers):
            if is_shallow() and i and i + 1 not in self.kept_hidden_layers:
                continue
            self._qkv_of(i, rows, first if i == 0 else None, live)
            self._attention.run(i, layer, self._qkv, self.cache, self.tables, rows, together, tiled, chain)
            self._o_of(i, rows, live)
            self._gate_up_of(i, rows, live)
            self._down_of(i, rows, live)
            self._keep(i + 1, rows)

    def _qkv_of(self, i: int, rows: int, source: Tensor | None = None, live: Tensor | None = None) -> None:
        layer = self._weights_of(rows).layers[i]
        qkv, normed = Matrix(layer.qkv, layer.qkv_scales), source is None
        x = self._x if source is None else source
        self.products.linear(x, qkv, layer.qkv_bias, rows, self._qkv, normed=normed, live=live)

    def _o_of(self, i: int, rows: int, live: Tensor | None = None) -> None:
        layer, scale = self._weights_of(rows).layers[i], self.architecture.residual_scale
        o, x = Matrix(layer.o, layer.o_scales), self._attention.attended
        self.products.linear(x, o, layer.o_bias, rows, self._x, gain=layer.mlp_norm, multiplier=scale, live=live)

    def _gate_up_of(self, i: int, rows: int, live: Tensor | None = None) -> None:
        layer = self._weights_of(rows).layers[i]
        both = Matrix(layer.gate_up, layer.gate_up_scales)
        self.products.linear(self._x, both, layer.gate_up_bias, rows, self._gated, normed=True, gated=True, live=live)

    def _down_of(self, i: int, rows: int, live: Tensor | None = None) -> None:
        w, scale = self._weights_of(rows), self.architecture.residual_scale
        layer = w.layers[i]
        following = w.layers[i + 1].attention_norm if i + 1 < len(w.layers) else w.norm
        down, x = Matrix(layer.down, layer.down_scales), self._gated
        self.products.linear(x, down, layer.down_bias, rows, self._x, gain=following, multiplier=scale, live=live)

    def _keep(self, layer: int, rows: int) -> None:
        if layer in self.kept_hidden_layers:
            hidden = self.architecture.hidden
            tap_kernel[(rows,)](
                self.products.residual,
                self.features[:, self.kept_hidden_layers.index(layer) * hidden :],
                self.features.stride(0),
                HIDDEN=hidden,
                WIDTH=power_of_two(hidden),
                **self._launch,
            )

    def head(self, count: int, first: int = 0, wanted: Tensor | None = None) -> None:
        """`logits[:count]`, fp32, of the rows named by `count` entries of `wanted` (None: of `tables.wanted`) from
        `first` on."""
        self._logits(count, (self.tables.wanted if wanted is None else wanted)[first:])

    def head_in_order(self, count: int) -> None:
        """As `head`, where `tables.wanted` names the first `count` rows, one after the other: if they are many, that
        is faster to compute."""
        whole = self.products.gpu.multiplies_apart and self._weights_of(count).head_scales is None
        self._logits(count, None if whole else self.tables.wanted)

    def _logits(self, count: int, index: Tensor | None) -> None:
        weights, scale = self._weights_of(count), self.architecture.logit_scale
        head = Matrix(weights.head, weights.head_scales)
        self.products.linear(self._x, head, None, count, self.logits, normed=True, index=index, multiplier=scale)

    def sites(self) -> list[Site]:
        """Where products are computed, for others to try other ways."""
        w, stream = self._weights, (self._x, self.products.residual, self.products.squares)
        layer = w.layers[0]

        def body(rows: int) -> None:
            self.body(rows, together=rows > 1)

        def site(matrix: Tensor, inside: Launches, alone: Launches, *written: Tensor, gated: bool = False) -> Site:
            columns = matrix.shape[0] // (2 if gated else 1)
            product = Product(columns, matrix.shape[1], gated, matrix.element_size())
            return Site(product, inside, alone, lambda rows: [tensor[:rows] for tensor in written], self._scatter)

        return [
            site(layer.qkv, body, partial(self._qkv_of, 0), self._qkv),
            site(layer.o, body, partial(self._o_of, 0), *stream),
            site(layer.gate_up, body, partial(self._gate_up_of, 0), self._gated, gated=True),
            site(layer.down, body, partial(self._down_of, 0), *stream),
            site(w.head, self.head, self.head, self.logits),
        ]

    def _scatter(self) -> None:
        """Some numbers wherever products read and write."""
        generator = torch.Generator(self.device).manual_seed(0)
        for buffer in (self._x, self._qkv, self._gated, self._attention.attended, self.products.residual):
            buffer.normal_(generator=generator)
        self.products.squares.uniform_(1, 2, generator=generator)
        self.tables.wanted.copy_(torch.arange(self.max_rows, dtype=torch.int32))
