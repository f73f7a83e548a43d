"""`NativeDecoder`: the compiled pass as a `LanguageModel`. Bit-exact rows are not a mode here but how it computes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref, c_void_p, cast
from itertools import accumulate, chain, count, repeat

import torch
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.memory import Recycled, give_back, lazy_zeros
from outrider.models.native.library import KERNELS, Layer, Matrix, Model, Pass, Shape, library
from outrider.models.native.packing import DEPTH, PAIR, PackedLayer, PackedMatrix, Packer
from outrider.models.precision import Precision
from outrider.models.rotary import rotation_table
from outrider.models.slots import Span, StaticCache
from outrider.models.weights import DecoderWeights, load_weights
from outrider.sampling.native.sampler import Runner
from outrider.types import Rows

MAX_ROWS = 128
"""Rows of one compiled pass; more are run in several, which changes nothing but the time."""

MATRICES = ("qkv", "o", "gate_up", "down")
"""Of a layer, by their names in the C structure."""

LANES = 16
MAX_HEAD_DIM = 256


def obstacle(architecture: Architecture, precision: Precision) -> str | None:
    """Why the compiled kernels cannot run this model here, or None."""
    if library() is None:
        return "its kernels were not built; install a C compiler and install Outrider again"
    if precision.compute not in (torch.bfloat16, torch.float32):
        return f"it does not compute in {precision.name}"
    a = architecture
    if a.hidden % LANES or a.head_dim % LANES or a.head_dim > MAX_HEAD_DIM:
        return f"a width of {a.hidden} with heads of {a.head_dim} does not suit it"
    return None


class NativeDecoder(StaticCache):
    """A `LanguageModel` on the CPU.

    A row's logits depend on its own path alone: not on other rows or sequences, on chain or tree, nor on the cache
    layout.
    """

    supports_trees = True
    bitwise = True

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[PackedLayer],
        packer: Packer,
        precision: Precision,
        *,
        max_batch: int,
        max_context: int,
        threads: int,
        kernels: str | None = None,
    ) -> None:
        """`kernels`: the instruction set to use, one of `KERNELS` this CPU has; None: the best."""
        compiled = library()
        assert compiled is not None, "ask obstacle() first"
        self._kernels = compiled
        best = compiled.outrider_kernels()
        chosen = best if kernels is None else min(KERNELS.index(kernels), best)
        self.architecture = a = architecture
        self.dtype = precision.compute
        self.device = torch.device("cpu")
        self.vocab_size = a.vocab_size
        super().__init__(max_batch, max_context)
        self.chunk = MAX_ROWS
        self._results = Recycled()
        self._kept: list[Tensor] = []
        """Everything the C side points into."""
        capacity = -(-max_context // LANES) * LANES
        self._layers = (Layer * len(a.layers))()
        self._fill_layers(weights.layers, capacity)
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
                threads=threads,
                kernels=chosen,
                norm_eps=a.norm_eps,
                attention_scale=a.attention_scale,
                embed_scale=a.embed_scale,
            ),
            layers=self._layers,
            # Tied: the kernel reads embeddings out of the packed head, so there is no second copy of them.
            embedding=None if a.tied else self._keep(weights.embedding),
            embedding_scales=None if a.tied else self._keep(weights.embedding_scales),
            norm=self._keep(weights.norm),
            head=self._matrix(packer.matrix(weights.head, None, weights.head_scales)),
        )
        self._make_workspace(threads, capacity)
        address = cast(compiled.pool_run, c_void_p).value
        assert address is not None, "a function has an address"
        self.runner = Runner(address, threads)

    @staticmethod
    def load(
        architecture: Architecture,
        tensors: Iterable[tuple[str, Tensor]],
        precision: Precision,
        *,
        max_batch: int,
        max_context: int,
        threads: int,
        kernels: str | None = None,
    ) -> NativeDecoder:
        """From checkpoint tensors, packed layer by layer as they come."""
        packer = Packer()
        weights = load_weights(architecture, tensors, precision.weights, torch.device("cpu"), packer.layer)
        decoder = NativeDecoder(
            architecture,
            weights,
            packer,
            precision,
            max_batch=max_batch,
            max_context=max_context,
            threads=threads,
            kernels=kernels,
        )
        give_back()
        return decoder

    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = array("i", sources), array("i", targets)
        addresses = source.buffer_info()[0], target.buffer_info()[0]
        self._kernels.outrider_move(byref(self._model), slot, len(source), *addresses)

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        rows: list[_Row] = []
        for given in batch:
            span = self._slots.extend(given)
            wanted = repeat(True) if given.logits is None else map(set(given.logits).__contains__, count())
            rows.extend(zip(given.tokens, repeat(span), span.paths, wanted, strict=False))
        columns = self._model.head.columns
        total = sum([want for _, _, _, want in rows])
        logits = self._results.empty(total, columns) if total else torch.empty(0, columns)
        address = logits.data_ptr()
        for start in range(0, len(rows), MAX_ROWS):
            address += 4 * columns * self._run(rows[start : start + MAX_ROWS], address)
        return logits if columns == self.vocab_size else logits[:, : self.vocab_size]

    def _run(self, rows: list[_Row], logits: int) -> int:
        """One compiled pass, its logits written to the address `logits`; returns how many rows of them.

        Plain arrays, no NumPy or PyTorch: the weights have swept every cache, and what is not touched costs nothing.
        """
        wanted = [i for i, (_, _, _, want) in enumerate(rows) if want]
        lists = (
            [token for token, _, _, _ in rows],
            [span.slot for _, span, _, _ in rows],
            [span.base for _, span, _, _ in rows],
            list(accumulate([len(path) for _, _, path, _ in rows], initial=0)),
            list(chain.from_iterable([path for _, _, path, _ in rows])),
            wanted,
        )
        arrays = [array("i", values) for values in lists]
        step = Pass(len(rows), len(wanted), *[values.buffer_info()[0] for values in arrays], logits)
        self._kernels.outrider_forward(byref(self._model), byref(step))
        return len(wanted)

    def _fill_layers(self, packed: list[PackedLayer], capacity: int) -> None:
        a = self.architecture
        tables = [rotation_table(rope, capacity, self.device) for rope in a.ropes]
        cache = (len(packed), 2, self.max_batch * a.kv_heads * capacity * a.head_dim)
        for i, (layer, weights, room) in enumerate(
            zip(self._layers, packed, lazy_zeros(cache, self.dtype, self.device), strict=True)
        ):
            for name in MATRICES:
                setattr(layer, name, self._matrix(getattr(weights, name)))
            for name, norm in weights.norms.items():
                setattr(layer, name, self._keep(norm))
            cosines, sines = tables[a.layers[i].rope]
            layer.cosines, layer.sines = self._keep(cosines), self._keep(sines)
            layer.keys, layer.values = self._keep(room[0]), self._keep(room[1])
            layer.window = a.layers[i].window

    def _make_workspace(self, threads: int, capacity: int) -> None:
        a, m = self.architecture, self._model
        wide = torch.float32
        widest = max(self._layers[0].o.columns, self._layers[0].down.columns)
        m.residual = self._keep(torch.zeros(MAX_ROWS, a.hidden, dtype=wide))
        m.normed = self._keep(torch.zeros(MAX_ROWS, -(-a.hidden // DEPTH) * DEPTH, dtype=self.dtype))
        m.qkv = self._keep(torch.zeros(MAX_ROWS, self._layers[0].qkv.columns, dtype=wide))
        m.attended = self._keep(torch.zeros(MAX_ROWS, self._layers[0].o.depth, dtype=self.dtype))
        m.update = self._keep(torch.zeros(MAX_ROWS, widest, dtype=wide))
        m.gated = self._keep(torch.zeros(MAX_ROWS, self._layers[0].down.depth, dtype=self.dtype))
        matrices = [m.head, *(getattr(layer, name) for layer in self._layers for name in MATRICES)]
        m.widened_size = max((matrix.depth * PAIR for matrix in matrices if matrix.scales), default=0)
        m.widened = self._keep(torch.zeros(threads * m.widened_size, dtype=torch.bfloat16))
        m.scores = self._keep(torch.zeros(threads * 4 * capacity, dtype=wide))

    def _matrix(self, matrix: PackedMatrix) -> Matrix:
        return Matrix(
            data=self._keep(matrix.data),
            scales=self._keep(matrix.scales),
            bias=self._keep(matrix.bias),
            columns=matrix.columns,
            depth=matrix.depth,
        )

    def _keep(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor)
        return tensor.data_ptr()


_Row = tuple[int, Span, list[int], bool]
"""Token, where its slot stands, its path, whether its logits are wanted."""
