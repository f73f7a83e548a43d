"""`NativeDecoder`: the compiled pass as a `LanguageModel`. Bit-exact rows are not a mode here but how it computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_void_p, cast

import torch
from torch import Tensor

from outrider.core.model import LanguageModel, Rows, Runner
from outrider.models.architecture import Architecture
from outrider.models.memory import trim_malloc
from outrider.models.native.packing import PackedLayer, Packer
from outrider.models.native.readers import Readers
from outrider.models.native.stack import NativeStack
from outrider.models.precision import Precision
from outrider.models.stored import KINDS, Stored
from outrider.models.weights import DecoderWeights, load_weights, write


class NativeDecoder(NativeStack, LanguageModel):
    """On the CPU."""

    gives_features = bitwise = True

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
        super().__init__(
            architecture,
            weights.layers,
            precision,
            max_batch=max_batch,
            max_context=max_context,
            threads=threads,
            kernels=kernels,
            integers=precision.quantised,
        )
        self.vocab_size = architecture.vocab_size
        self.features = torch.empty(0, 0)
        m = self._model
        m.norm, m.norm_bias = self._keep(weights.norm), self._keep(weights.norm_bias)
        m.head = self._matrix(packer.linear(weights.head, None, weights.head_scales, weights.stored_head))
        if precision.stored:  # looked up in the file itself, where it is there as it should be
            stored = weights.stored_embedding.get(0)
            m.stored_embedding = 1 + KINDS.index("F32" if stored is None else stored.kind)
            m.embedding = self._keep(weights.embedding if stored is None else stored.mapped())
        elif not architecture.tied:  # else the kernel reads embeddings out of the packed head: no second copy of them
            write(weights.stored_embedding, weights.embedding, weights.embedding_scales)
            m.embedding = self._keep(weights.embedding)
            if weights.embedding_scales is not None:
                m.embedding_scales = self._keep(weights.embedding_scales.to(torch.bfloat16))
        self._make_workspace([m.head])
        address = cast(self._kernels.pool_run, c_void_p).value
        assert address is not None, "a function has an address"
        self.runner = Runner(address, threads)

    @staticmethod
    def load(
        architecture: Architecture,
        tensors: Iterable[tuple[str, Tensor | Stored]],
        precision: Precision,
        *,
        max_batch: int,
        max_context: int,
        threads: int,
        kernels: str | None = None,
    ) -> NativeDecoder:
        """From checkpoint tensors, packed layer by layer as they come; matrices that are `Stored` stay so."""
        with Readers() as readers:
            packer = Packer(precision.stored, readers)
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
        trim_malloc()
        return decoder

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        run = self._run(batch)
        logits = self._room(run)
        columns = logits.shape[1]
        for _ in run.passes(logits.data_ptr(), 4 * columns):
            pass
        self.features = run.hidden
        return logits if columns == self.vocab_size else logits[:, : self.vocab_size]
