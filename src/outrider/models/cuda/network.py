"""The kernels of one pass, in order, over buffers allocated once: what a CUDA graph records.

A pass is described by `Tables`, int32 arrays on the device. Nothing here reads a value back or allocates, so a pass
can be recorded and replayed with other tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.models.architecture import Architecture
from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.attention import BLOCK, TILE, attend_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, BLOCK_N, GATED, STORE, linear_kernel
from outrider.models.cuda.kernels.prompt import prompt_kernel
from outrider.models.cuda.kernels.rows import embed_kernel, rotate_kernel, tap_kernel
from outrider.models.cuda.kernels.wide import wide_kernel
from outrider.models.cuda.tables import PATH, Tables
from outrider.models.cuda.tiling import FEW_ROWS, depth_split, prompt_tiling, tiling, wide_tiling
from outrider.models.rotary import rotation_table
from outrider.models.weights import DecoderWeights, LayerWeights

NARROW_ROWS = 512
"""Rows of one pass of any kind; more only where all are prompts (`tiled`)."""

HEAD_ROWS = 256
"""Rows whose logits one launch computes."""

ROTATED = 8
"""Heads a program rotates."""

SCRATCH = 1 << 26
"""Attention's scratch, in floats: longer contexts are attended to in several launches."""

PROGRAMS = 1024
"""Programs of attention that fill a GPU; more would mostly find nothing to do where contexts are short."""

LOG2E = 1 / math.log(2)


_SHALLOW = ContextVar("shallow", default=False)


@contextmanager
def shallow() -> Iterator[None]:
    """Passes launch every kernel, but leave out layers that launch the same ones again."""
    before = _SHALLOW.set(True)
    try:
        yield
    finally:
        _SHALLOW.reset(before)


class Matrix(NamedTuple):
    """[out, in] as it is, or of 8 bits (e4m3 or int8) with a scale per output, in words (`kernels/eighth.py`)."""

    values: Tensor
    scales: Tensor | None = None

    @property
    def numbers(self) -> Tensor:
        """As kernels take them."""
        return self.values.view(torch.int32) if self.words else self.values

    @property
    def words(self) -> bool:
        return self.scales is not None


class Network:
    """Weights, cache and buffers of one decoder on one GPU.

    The cache is [2, layers, slots, kv_heads, capacity, head_dim], keys then values.
    """

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
        self._gpu = gpu = GPU.of(self.device)
        self._widens = gpu.widens(self.dtype)
        known = gpu.interpreted or a.head_dim in (64, 128)
        self._prompt = prompt_tiling(a.head_dim, gpu.shared) if self._widens and known else None

        def room(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.cache = room(2, len(a.layers), slots, a.kv_heads, capacity, a.head_dim)
        self.tables = Tables.over(room(Tables.size(max_rows), dtype=torch.int32))
        self.tiles = room(max_rows // self.tile_rows + slots if self.tile_rows else 0, 2, dtype=torch.int32)
        """Of a tiled pass: the first row of each tile and how many it has, 0 for none."""
        self.logits = room(HEAD_ROWS, a.vocab_size, dtype=torch.float32)
        self.kept_hidden_layers: tuple[int, ...] = ()
        self.features = room(max_rows, 0)
        self._retired: list[Tensor] = []
        self._tiles = -(-a.hidden // BLOCK_N)
        self._residual = room(max_rows, a.hidden)
        self._x = room(max_rows, a.hidden)
        self._squares = room(max_rows, self._tiles, dtype=torch.float32)
        self._qkv = room(max_rows, a.q_width + 2 * a.kv_width)
        self._attended = room(max_rows, a.q_width)
        self._gated = room(max_rows, a.mlp)
        self._rotations = [rotation_table(rope, capacity, self.device) for rope in a.ropes]
        few = min(max_rows, NARROW_ROWS)
        row_tiles = -(-few // 64)
        sizes = {matrix.element_size() for matrix in (weights.layers[0].qkv, weights.head)}
        splits = [(n, max(depth_split(n, k, size) for size in sizes)) for n, k in self._shapes()]
        self._partial = room(
            max(-(-n // BLOCK_N) * s for n, s in splits) * row_tiles * BLOCK_N * 64, dtype=torch.float32
        )
        self._counter = room(max(-(-n // BLOCK_N) for n, _ in splits) * row_tiles, dtype=torch.int32)
        self._blocks = blocks = -(-capacity // BLOCK)
        self._attention_rows = max(1, min(few, SCRATCH // (a.kv_heads * blocks * TILE * a.head_dim)))
        cells = self._attention_rows * a.kv_heads * blocks * TILE
        self._attention_partial = room(cells * a.head_dim, dtype=torch.float32)
        self._attention_stats = room(cells * 2, dtype=torch.float32)
        self._attention_counter = room(self._attention_rows * a.kv_heads, dtype=torch.int32)

    def _shapes(self) -> list[tuple[int, int]]:
        a = self.architecture
        return [
            (a.q_width + 2 * a.kv_width, a.hidden),
            (a.hidden, a.q_width),
            (a.hidden, a.mlp),
            (a.vocab_size, a.hidden),
        ]

    @property
    def tile_rows(self) -> int:
        """Rows of one request, next to each other and in order, that a tiled pass attends to together; 0: there are no
        such passes."""
        return self._prompt.rows if self._prompt else 0

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        """Keep the residual stream after so many layers, for each of `layers`, in `features`
        [max_rows, layers * hidden] with every pass recorded from now on."""
        if self.kept_hidden_layers != (wanted := tuple(layers)):
            self._retired.append(self.features)  # recorded passes may still write there
            self.kept_hidden_layers = wanted
            width = len(wanted) * self.architecture.hidden
            self.features = torch.zeros(self.max_rows, width, dtype=self.dtype, device=self.device)

    def body(self, rows: int, together: bool, tiled: bool = False) -> None:
        """Run the first `rows` rows of the tables; fills the cache.

        `together`: neighbouring rows mostly belong to one slot, so attention takes several at once. `tiled`: they are
        all in `tiles`. Either changes nothing but the time.
        """
        a, w, t = self.architecture, self._weights, self.tables
        embed_kernel[(rows,)](
            t.tokens,
            w.embedding,
            w.layers[0].attention_norm,
            self._residual,
            self._x,
            self._squares,
            a.embed_scale,
            HIDDEN=a.hidden,
            WIDTH=power_of_two(a.hidden),
            TILES=self._tiles,
            **self._launch(),
        )
        self._layers(rows, together, tiled)

    def _layers(self, rows: int, together: bool, tiled: bool, first: Tensor | None = None) -> None:
        """All layers, from the residual on. `first`: what the first one reads, normalised, instead of the residual."""
        w, scale = self._weights, self.architecture.residual_scale
        self._keep(0, rows)
        for i, layer in enumerate(w.layers):
            if _SHALLOW.get() and i and i + 1 not in self.kept_hidden_layers:
                continue
            following = w.layers[i + 1].attention_norm if i + 1 < len(w.layers) else w.norm
            source = first if i == 0 else None
            qkv, o = Matrix(layer.qkv, layer.qkv_scales), Matrix(layer.o, layer.o_scales)
            gate_up, down = Matrix(layer.gate_up, layer.gate_up_scales), Matrix(layer.down, layer.down_scales)
            if source is None:
                self._linear(self._x, qkv, layer.qkv_bias, rows, self._qkv, normed=True)
            else:
                self._linear(source, qkv, layer.qkv_bias, rows, self._qkv)
            self._attention(i, layer, rows, together, tiled)
            self._linear(self._attended, o, layer.o_bias, rows, self._x, gain=layer.mlp_norm, multiplier=scale)
            self._linear(self._x, gate_up, layer.gate_up_bias, rows, self._gated, normed=True, gated=True)
            self._linear(self._gated, down, layer.down_bias, rows, self._x, gain=following, multiplier=scale)
            self._keep(i + 1, rows)

    def _keep(self, layer: int, rows: int) -> None:
        if layer in self.kept_hidden_layers:
            hidden = self.architecture.hidden
            tap_kernel[(rows,)](
                self._residual,
                self.features[:, self.kept_hidden_layers.index(layer) * hidden :],
                self.features.stride(0),
                HIDDEN=hidden,
                WIDTH=power_of_two(hidden),
                **self._launch(),
            )

    def head(self, count: int) -> None:
        """`logits[:count]`, fp32, of the rows named by the first `count` entries of `tables.wanted`."""
        scale = self.architecture.logit_scale
        head, wanted = Matrix(self._weights.head, self._weights.head_scales), self.tables.wanted
        self._linear(self._x, head, None, count, self.logits, normed=True, index=wanted, multiplier=scale)

    def _attention(self, i: int, layer: LayerWeights, rows: int, together: bool, tiled: bool) -> None:
        a, t = self.architecture, self.tables
        heads = {"HEADS": a.heads, "KV_HEADS": a.kv_heads, "DIM": a.head_dim}
        keys, values = self.cache[0, i], self.cache[1, i]
        rotate_kernel[(rows, -(-(a.heads + 2 * a.kv_heads) // ROTATED))](
            self._qkv,
            *self._rotations[a.layers[i].rope],
            layer.q_norm,
            layer.k_norm,
            keys,
            values,
            t.slots,
            t.positions,
            t.indices,
            self.capacity,
            a.norm_eps,
            TOGETHER=ROTATED,
            **heads,
            **self._launch(),
        )
        if tiled:
            self._attend_tiles(i, rows)
        else:
            self._attend_rows(i, rows, together)

    def _attend_tiles(self, i: int, rows: int) -> None:
        """Rows that only fill up the pass are in no tile: they keep what they had."""
        a, t, cut = self.architecture, self.tables, self._prompt
        assert cut is not None, "heads too large for tiled passes"
        prompt_kernel[(a.heads, min(len(self.tiles), self.most_tiles(rows)))](
            self._qkv,
            self.cache[0, i],
            self.cache[1, i],
            self._attended,
            t.slots,
            t.positions,
            self.tiles,
            self.capacity,
            a.layers[i].window,
            a.attention_scale * LOG2E,
            HEADS=a.heads,
            KV_HEADS=a.kv_heads,
            DIM=a.head_dim,
            M=cut.rows,
            BLOCK=BLOCK,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **UNFUSED,
        )

    def most_tiles(self, rows: int) -> int:
        """Those that a tiled pass of so many rows has room for: enough where each slot has its rows in one place."""
        return rows // self.tile_rows + self.cache.shape[2]

    def _attend_rows(self, i: int, rows: int, together: bool) -> None:
        a, t = self.architecture, self.tables
        keys, values = self.cache[0, i], self.cache[1, i]
        group = TILE // power_of_two(a.heads // a.kv_heads) if together else 1
        for start in range(0, rows, self._attention_rows):
            some = slice(start, min(rows, start + self._attention_rows))
            count = some.stop - start
            groups = -(-count // group)
            spread = min(self._blocks, max(4, PROGRAMS // (groups * a.kv_heads * group)))
            attend_kernel[(groups, a.kv_heads, spread * group)](
                self._qkv[some],
                keys,
                values,
                self._attended[some],
                t.slots[some],
                t.positions[some],
                t.bases[some],
                t.paths[some],
                self._attention_partial,
                self._attention_stats,
                self._attention_counter,
                count,
                self.capacity,
                self._blocks,
                a.layers[i].window,
                a.attention_scale * LOG2E,
                PATH=PATH,
                TOGETHER=group,
                TILE=TILE,
                BLOCK=BLOCK,
                HEADS=a.heads,
                KV_HEADS=a.kv_heads,
                DIM=a.head_dim,
                **self._launch(),
            )

    def _linear(
        self,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        rows: int,
        y: Tensor,
        *,
        normed: bool = False,
        gated: bool = False,
        gain: Tensor | None = None,
        index: Tensor | None = None,
        multiplier: float = 1.0,
    ) -> None:
        """y = multiplier * x · weightᵀ. `normed`: x is to be divided by its source's rms. `gain`: add to the residual
        instead, and let y be that times the gain."""
        columns, depth = weight.values.shape
        columns = columns // 2 if gated else columns
        size = weight.values.element_size()
        split = 1 if gated else depth_split(columns, depth, size)
        ends = (
            y,
            None if gain is None else self._residual,
            gain,
            None if gain is None else self._squares,
        )
        squares = self._squares if normed else None
        common = {
            "N": columns,
            "K": depth,
            "EPILOGUE": GATED if gated else STORE if gain is None else ADD,
            "GELU": self.architecture.activation != "silu",
            "TILES": self._tiles,
            "LEVELS": (self._tiles - 1).bit_length(),
            "SPLIT": split,
            "INTEGERS": weight.values.dtype == torch.int8,
            "PACKED": not self._gpu.interpreted,
            "MULTIPLIER": multiplier,
        }
        if rows > FEW_ROWS and index is None and self._widens:
            self._wide(x, weight, bias, squares, ends, rows, common)
            return
        cut = tiling(columns, depth, rows, self._gpu, gated=gated, split=split, size=size)
        linear_kernel[(-(-rows // cut.rows), -(-columns // cut.block_n), cut.split)](
            x,
            weight.numbers,
            weight.scales,
            bias,
            index,
            squares,
            *ends,
            self._partial,
            self._counter,
            rows,
            self.architecture.norm_eps,
            M=cut.rows,
            BLOCK_N=cut.block_n,
            BLOCK_K=cut.block_k,
            UNROLLED=cut.unrolled,
            PREFETCH=2,
            num_stages=cut.stages,
            **common,
            **self._launch(),
        )

    def _wide(
        self,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `_linear`, for many rows of x as they come."""
        columns, gated = common["N"], common["EPILOGUE"] == GATED
        size = weight.values.element_size()
        cut = wide_tiling(common["K"], self._gpu.shared, gated=gated, split=common["SPLIT"], size=size)
        copied, parts = self._gpu.copies, 4 if weight.words else 1
        sources = (x, weight.numbers)
        if copied:
            sources = (
                TensorDescriptor.from_tensor(x, [cut.rows, cut.block_k // parts]),
                TensorDescriptor.from_tensor(weight.numbers, [cut.block_n, cut.block_k // parts]),
            )
        wide_kernel[(-(-rows // cut.rows) * -(-columns // cut.block_n),)](
            *sources,
            weight.scales,
            bias,
            squares,
            *ends,
            rows,
            self.architecture.norm_eps,
            M=cut.rows,
            BLOCK_N=cut.block_n,
            BLOCK_K=cut.block_k,
            PAIRED=cut.paired,
            GROUP=cut.group,
            COPIED=copied,
            PARTS=parts,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **common,
            **UNFUSED,
        )

    def _launch(self) -> dict[str, Any]:
        return {**UNFUSED, **({"DEPENDENT": True, "launch_pdl": True} if self._gpu.copies else {"DEPENDENT": False})}


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
