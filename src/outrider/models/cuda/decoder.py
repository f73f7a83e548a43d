"""`CudaDecoder`: our kernels as a `LanguageModel`, recorded once per size as CUDA graphs; bit-exact rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from outrider.core.model import CachedNetwork, LanguageModel, Rows
from outrider.models.architecture import Architecture
from outrider.models.cuda.cache import SLACK
from outrider.models.cuda.graphs import Graphs
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.memory import CacheMemory
from outrider.models.cuda.network import Network
from outrider.models.cuda.passes import MAX_ROWS, Launched, Passes
from outrider.models.cuda.stepper import DeviceStepper
from outrider.models.cuda.tiling import word_group
from outrider.models.cuda.tuning import Stored, replayed, tune
from outrider.models.cuda.words import arranged
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights
from outrider.models.weights import AnyTensor, DecoderWeights, LayerWeights, load_weights


def in_words(a: Architecture, layer: LayerWeights) -> LayerWeights:
    """Weights of 8 bits as kernels read them, in place."""
    if layer.qkv_scales is not None:
        for matrix in (layer.qkv, layer.o, layer.down):
            arranged(matrix, word_group(*matrix.shape))
        arranged(layer.gate_up, word_group(a.mlp, a.hidden, gated=True))
    return layer


class CudaDecoder(Passes[Network], LanguageModel):
    """On a GPU.

    A row's logits depend on its own path alone: not on other rows or requests, on chain or tree, nor on the cache
    layout.
    """

    gives_features = bitwise = True

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[LayerWeights],
        *,
        max_batch: int,
        max_context: int,
        memory: CacheMemory | None = None,
        tilings: Path | None = None,
    ) -> None:
        """`memory`: what the cache may take, once it is asked for; None: as much as all slots could fill. `tilings`:
        where it is kept which are fastest on this GPU; None: nobody is to find out."""
        self.architecture = architecture
        self.vocab_size = architecture.vocab_size
        self._embedding = weights.embedding
        network = Network(architecture, weights, max_batch + 1, max_context + SLACK, MAX_ROWS)
        super().__init__(network, max_batch, max_context, memory)
        self.features = network.features
        self._tilings = tilings

    @staticmethod
    def load(
        architecture: Architecture,
        tensors: Iterable[tuple[str, AnyTensor]],
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_batch: int,
        max_context: int,
        memory: CacheMemory | None = None,
        matrices: torch.dtype | None = None,
        head: torch.dtype | None = None,
        tilings: Path | None = None,
    ) -> CudaDecoder:
        """In `dtype`; `matrices` and the output layer, `head`, where given in a format of their own, fp8 or int8 with
        a scale per output channel: they are rounded as they come."""
        weights = load_weights(
            architecture,
            tensors,
            matrices or dtype,
            device,
            partial(in_words, architecture),
            embedding=dtype,
            head=head or dtype,
        )
        if weights.head_scales is not None:
            arranged(weights.head, word_group(*weights.head.shape))
        return CudaDecoder(
            architecture, weights, max_batch=max_batch, max_context=max_context, memory=memory, tilings=tilings
        )

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> Tensor:
        logits, features = [], []
        for part, last in self._described(batch):
            logits.append(self._run(part, "body"))
            kept = self.network.features[: len(part)]
            features.append(kept if last else kept.clone())  # the next pass would overwrite it
        self.features = features[0] if len(features) == 1 else torch.cat(features)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def tune(self, note: Callable[[str], None]) -> Iterator[None]:
        """Compute capability 9.0 is what tilings were measured for, and has kernels of its own."""
        network, products = self.network, self.network.products
        if self._tilings is None or products.gpu.multiplies_apart:
            return iter(())
        self._pad()
        stored = Stored(self._tilings, torch.cuda.get_device_name(self.device), products, network.sites())
        return tune(network, stored, partial(replayed, self.device), note)

    def _kinds(self) -> Mapping[str, Launched]:
        return {"body": self.network.body}

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        if self.network.kept_hidden_layers != tuple(layers):
            self.network.keep_hidden_layers(layers)
            self.graphs = Graphs(self.device)

    def head(self, config: HeadConfig, weights: HeadWeights, eighth: HeadWeights | None = None) -> CudaHead:
        """A head beside this model, on its device and as large; `keep_hidden_layers` is for the caller."""
        return CudaHead(
            config,
            weights,
            eighth,
            self._embedding,
            self.architecture.embed_scale,
            max_batch=self.max_batch,
            max_context=self.max_context,
            memory=None if self.memory is None else self.memory._replace(context=None),
        )

    def stepper(self, draft: CachedNetwork | None, vocab_size: int | None = None) -> DeviceStepper | None:
        if draft is not None and not (isinstance(draft, CudaDecoder | CudaHead) and draft.device == self.device):
            return None
        self.make_room([draft] if draft else [])
        return DeviceStepper(self, draft, vocab_size or self.vocab_size)
