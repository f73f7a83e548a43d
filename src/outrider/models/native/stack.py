"""What a compiled decoder and a compiled drafting head share: layers over a static cache, and passes through them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from ctypes import byref, pointer
from itertools import accumulate, count, repeat

import torch
from torch import Tensor

from outrider.core.model import Rows
from outrider.kvcache.slots import Span, StaticCache
from outrider.models.architecture import Architecture
from outrider.models.memory import Recycled, lazy_zeros
from outrider.models.native.library import (
    ALONE_ROWS,
    BF16_PRODUCTS,
    KERNELS,
    Expert,
    Layer,
    Matrix,
    Model,
    Pass,
    Routing,
    Screen,
    Shape,
    Strip,
    chosen_kernels,
    library,
)
from outrider.models.native.packing import PAIR, PackedLayer, PackedMatrix, PackedScreen, PackedStrip
from outrider.models.native.timing import Timer
from outrider.models.precision import FP8, Precision, blocks
from outrider.models.rotary import rotation_table
from outrider.models.stored import KINDS

MAX_ROWS = 128
"""Rows of one compiled pass; more are run in several, which changes nothing but the time."""

MATRICES = ("qkv", "o", "gate_up", "down")
"""Of a layer, by their names in the C structure."""

LANES = 16
_TOGETHER = 24
"""Queries that attention takes at once (decoder.h)."""
MAX_HEAD_DIM = 256
MAX_EXPERTS, MAX_USED = 512, 16
"""Of a layer, and of a row (decoder.h)."""


def unsupported_reason(architecture: Architecture, precision: Precision) -> str | None:
    """Why the compiled kernels cannot run a model of this shape here, in words; None where they can."""
    if library() is None:
        return "its kernels were not built; install a C compiler and install Outrider again"
    if precision is FP8 or precision.compute not in (torch.bfloat16, torch.float32):
        return f"it does not compute in {precision.name}"
    a = architecture
    if a.hidden % LANES or a.head_dim % LANES or a.head_dim > MAX_HEAD_DIM:
        return f"a width of {a.hidden} with heads of {a.head_dim} does not suit it"
    if a.experts > MAX_EXPERTS or a.experts_used > MAX_USED:
        return f"{a.experts_used} of {a.experts} experts are more than it does"
    return None


class NativeStack(StaticCache):
    """Layers and their cache in the C structure `Model`, whose beginning and end the heirs fill in.

    A row's results depend on its own path alone: not on other rows or requests, on chain or tree, nor on the cache
    layout.
    """

    supports_trees = measurable = True
    chunk = MAX_ROWS
    _given_width = 0
    """Of what a row is given besides its token."""

    def __init__(
        self,
        architecture: Architecture,
        layers: list[PackedLayer],
        precision: Precision,
        *,
        max_batch: int,
        max_context: int,
        threads: int,
        kernels: str | None,
        integers: bool = False,
    ) -> None:
        """`kernels`: the instruction set to use, one of `KERNELS` this CPU has; None: the best. `integers`: matrices
        are int8, and multiplied with int8."""
        super().__init__(max_batch, max_context)
        compiled = library()
        assert compiled is not None, "ask unsupported_reason() first"
        self._kernels = compiled
        self.architecture = a = architecture
        self.dtype = precision.compute
        self.device = torch.device("cpu")
        self._results, self._hidden = Recycled(), Recycled()
        self._timer: Timer | None = None
        self._weight_bytes = 0
        self._kept: list[Tensor] = []
        """Everything the C side points into."""
        capacity = -(-max_context // PAIR) * PAIR
        self._depth = -(-a.head_dim // PAIR) * PAIR
        """Of a head in the cache, padded."""
        self._layers = (Layer * len(a.layers))()
        self._fill_layers(layers, capacity)
        self._kept_layers = array("i")
        self._model = Model(
            shape=Shape(
                layers=len(a.layers),
                hidden=a.hidden,
                heads=a.heads,
                kv_heads=a.kv_heads,
                head_dim=a.head_dim,
                capacity=capacity,
                activation=0 if a.activation == "silu" else 1,
                bf16=self.dtype == torch.bfloat16,
                integers=integers,
                threads=threads,
                kernels=KERNELS.index(chosen_kernels(kernels)),
                norm_eps=a.norm_eps,
                attention_scale=a.attention_scale,
                embed_scale=a.embed_scale,
                qk_norm_wide=a.qk_norm_wide,
                residual_scale=a.residual_scale,
                logit_scale=a.logit_scale,
                logit_cap=a.logit_cap,
                attention_cap=a.attention_cap,
            ),
            layers=self._layers,
        )

    @property
    def kernels(self) -> str:
        """The instruction set in use."""
        return KERNELS[self._model.shape.kernels]

    @property
    def cost_key(self) -> str:
        return f"{self.dtype} {self._weight_bytes} {self.architecture}"

    def measure(self, rows: int, context: int) -> float:
        """Seconds of a pass of so many rows behind so many tokens, timed on a part of it."""
        if self._timer is None:
            self._timer = Timer(self, self._given_width)
        return self._timer.seconds(rows, context)

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        self._kept_layers = array("i", layers)
        self._model.taps, self._model.tap_count = self._kept_layers.buffer_info()

    @property
    def kept_hidden_layers(self) -> tuple[int, ...]:
        return tuple(self._kept_layers)

    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = array("i", sources), array("i", targets)
        addresses = source.buffer_info()[0], target.buffer_info()[0]
        self._kernels.outrider_move(byref(self._model), slot, len(source), *addresses)

    def _copy(self, source: int, target: int, length: int) -> None:
        # Keys lie in panels of LANES positions, values in panels of LANES dimensions (cache.h).
        keys, values = self._cache[:, 0], self._cache[:, 1]
        values = values.view(*values.shape[:3], self._depth // LANES, -1)
        positions = -(-length // PAIR) * PAIR  # attention reads so many, and what it does not see must be numbers
        keys[:, target, :, : positions * self._depth] = keys[:, source, :, : positions * self._depth]
        values[:, target, :, :, : positions * LANES] = values[:, source, :, :, : positions * LANES]

    def _run(self, batch: Sequence[Rows]) -> _Run:
        """Enter the batch's rows into the cache and prepare the passes through them."""
        rows = self._entered(batch)
        width = len(self._kept_layers) * self.architecture.hidden
        hidden = self._hidden.empty(len(rows), width) if width else torch.empty(0, 0)
        return _Run(self, rows, hidden)

    def _entered(self, batch: Sequence[Rows]) -> list[_Row]:
        """The batch's rows, with their places in the cache."""
        rows: list[_Row] = []
        for given in batch:
            span = self._slots.extend(given)
            wanted = repeat(True) if given.logits is None else map(set(given.logits).__contains__, count())
            rows.extend(zip(given.tokens, repeat(span), span.paths, wanted, strict=False))
        return rows

    def _room(self, run: _Run) -> Tensor:
        """For the logits of the rows wanted."""
        columns = self._model.head.columns
        return self._results.empty(run.wanted, columns) if run.wanted else torch.empty(0, columns)

    def _fill_layers(self, packed: list[PackedLayer], capacity: int) -> None:
        a = self.architecture
        tables = [rotation_table(rope, capacity, self.device) for rope in a.ropes]
        shape = (len(packed), 2, self.max_batch, a.kv_heads, capacity * self._depth)
        self._cache = lazy_zeros(shape, self.dtype, self.device)
        for i, (layer, weights, room) in enumerate(zip(self._layers, packed, self._cache, strict=True)):
            layer.qkv, layer.o = self._matrix(weights.qkv), self._matrix(weights.o)
            mlps = (Expert * len(weights.mlps))(
                *(Expert(self._matrix(mlp.gate_up), self._matrix(mlp.down)) for mlp in weights.mlps)
            )
            layer.gate_up, layer.down = mlps[0].gate_up, mlps[0].down
            if weights.router is not None:
                layer.router, layer.experts = self._matrix(weights.router), mlps
            for name, norm in weights.norms.items():
                setattr(layer, name, self._keep(norm))
            cosines, sines = tables[a.layers[i].rope]
            layer.cosines, layer.sines = self._keep(cosines), self._keep(sines)
            layer.keys, layer.values = self._keep(room[0]), self._keep(room[1])
            layer.window = a.layers[i].window

    def _make_workspace(self, others: Iterable[Matrix]) -> None:
        """Room for intermediate results; `others`: the matrices outside the layers."""
        a, m = self.architecture, self._model
        threads, capacity = m.shape.threads, m.shape.capacity
        first, others = self._layers[0], list(others)
        matrices = [*others, *(getattr(layer, name) for layer in self._layers for name in MATRICES)]
        wide = torch.float32
        widest = max(first.o.columns, first.down.columns)
        bf16_inputs = self.kernels in BF16_PRODUCTS and not m.shape.integers  # as input_form of gemm.h says
        narrow = self.dtype if bf16_inputs else wide
        rows = max(MAX_ROWS, threads * ALONE_ROWS)
        m.residual = self._keep(torch.zeros(rows, a.hidden, dtype=wide))
        m.normed = self._keep(torch.zeros(rows, first.qkv.depth, dtype=narrow))
        m.qkv = self._keep(torch.zeros(MAX_ROWS, first.qkv.columns, dtype=wide))
        m.attended = self._keep(torch.zeros(MAX_ROWS, first.o.depth, dtype=narrow))
        m.update = self._keep(torch.zeros(MAX_ROWS, widest, dtype=wide))
        places = MAX_ROWS * max(1, a.experts_used) + PAIR  # and so many may be read behind an expert's last row
        m.gated = self._keep(lazy_zeros((places, first.down.depth), narrow, self.device))
        if m.shape.integers:  # lines of inputs (gemm_int8.h), the screen's twice and a group of them widened
            deepest = max(matrix.depth for matrix in matrices)
            most = max(MAX_ROWS * _line(deepest), 2 * MAX_ROWS * _line(m.head.depth) + 4 * _GROUP * m.head.depth)
            if m.head.strips:
                most += 2 * MAX_ROWS * _INPUTS * blocks(deepest)
            m.scratch_size = -(-most // 64) * 64
        if a.experts:
            m.routing = pointer(self._routing(first, places, threads))
        m.scratch = self._keep(torch.zeros(threads * m.scratch_size, dtype=torch.int8))
        m.scores_size = (capacity + LANES) * _TOGETHER + capacity * self._depth
        m.scores = self._keep(lazy_zeros((threads * m.scores_size,), wide, self.device))

    def _routing(self, layer: Layer, places: int, threads: int) -> Routing:
        a = self.architecture
        each = MAX_ROWS, a.experts_used
        return Routing(
            count=a.experts,
            used=a.experts_used,
            normalised=a.experts_normalised,
            scores=self._keep(torch.zeros(MAX_ROWS, layer.router.columns)),
            chosen=self._keep(torch.zeros(each, dtype=torch.int32)),
            shares=self._keep(torch.zeros(each)),
            outputs=self._keep(lazy_zeros((places, layer.down.columns), torch.float32, self.device)),
            gathered=self._keep(lazy_zeros((threads, MAX_ROWS, layer.router.depth), torch.float32, self.device)),
        )

    def _matrix(self, matrix: PackedMatrix) -> Matrix:
        self._weight_bytes += sum([part.nbytes for part in (matrix.data, matrix.scales) if part is not None])
        return Matrix(
            data=self._keep(matrix.data),
            scales=self._keep(matrix.scales),
            bias=self._keep(matrix.bias),
            columns=matrix.columns,
            depth=matrix.depth,
            inputs=matrix.inputs,
            screen=None if matrix.screen is None else pointer(self._screen(matrix.screen)),
            strips=(Strip * len(matrix.strips))(*map(self._strip, matrix.strips)) if matrix.strips else None,
            strip_count=len(matrix.strips),
        )

    def _strip(self, strip: PackedStrip) -> Strip:
        return Strip(self._keep(strip.data), KINDS.index(strip.kind), strip.panels, strip.first, strip.step)

    def _screen(self, screen: PackedScreen) -> Screen:
        pairs = -(-screen.columns // PAIR)
        return Screen(
            codes=self._keep(screen.codes),
            scales=self._keep(screen.scales),
            levels=self._keep(screen.levels),
            stretch=self._keep(screen.stretch),
            mean=self._keep(screen.mean),
            largest=self._keep(torch.zeros(MAX_ROWS, pairs)),
            columns=screen.columns,
        )

    def _keep(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor)
        return tensor.data_ptr()


def _line(depth: int) -> int:
    """Bytes of a row of inputs as int8 (`LINE_BYTES` of gemm_int8.h)."""
    return 2 * (depth + 16 * blocks(depth))


_GROUP = 12
"""Rows that are narrowed together (`GROUP_ROWS` of gemm_int8.h)."""

_INPUTS = 256
"""Bytes of a block of a row's inputs, at most (`Inputs` of stored.h)."""

_Row = tuple[int, Span, Sequence[int], bool]
"""Token, where its slot stands, its path, whether its logits are wanted."""


class _Run:
    """The rows of one `forward`, and where their results go."""

    def __init__(self, stack: NativeStack, rows: list[_Row], hidden: Tensor) -> None:
        self.rows = len(rows)
        self.wanted = sum([want for _, _, _, want in rows])
        self.hidden = hidden
        """[rows, layers * hidden]"""
        self.given = rows
        self._stack = stack

    def passes(self, logits: int, pitch: int) -> Iterator[tuple[int, int, Pass]]:
        """One compiled pass after the other: (rows before it, wanted rows before it, its description). Each is run when
        the next is asked for, so that more can be added to the description. `logits`: the address of those of the first
        row wanted, `pitch` bytes before those of the next; 0: every pass may overwrite the one before's."""
        hidden, width = self.hidden.data_ptr(), 4 * self.hidden.shape[-1]
        model, forward = byref(self._stack._model), self._stack._kernels.outrider_forward
        wanted = 0
        for start in range(0, self.rows, MAX_ROWS):
            numbers, step = described(self.given[start : start + MAX_ROWS])
            step.logits, step.tapped = logits + pitch * wanted, hidden + width * start
            yield start, wanted, step
            forward(model, byref(step))
            wanted += step.wanted
            del numbers  # the step points into them


def described(rows: list[_Row]) -> tuple[array[int], Pass]:
    """A `Pass` without its results, and what it points into.

    One plain array, no NumPy or PyTorch: the weights have swept every cache, and what is not touched costs nothing.
    """
    numbers = [token for token, _, _, _ in rows]
    numbers += [span.slot for _, span, _, _ in rows]
    numbers += [span.base for _, span, _, _ in rows]
    numbers += accumulate([len(path) for _, _, path, _ in rows], initial=0)
    wanted = len(numbers)
    numbers += [i for i, (_, _, _, want) in enumerate(rows) if want]
    paths = len(numbers)
    for _, _, path, _ in rows:
        numbers += path
    held = array("i", numbers)
    at, count = held.buffer_info()[0], 4 * len(rows)
    starts = at + count, at + 2 * count, at + 3 * count, at + 4 * paths, at + 4 * wanted
    return held, Pass(len(rows), paths - wanted, at, *starts)
