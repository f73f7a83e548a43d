"""Any other `AutoModelForCausalLM`, as a `LanguageModel`: chains only, one sequence per forward call.

The fallback for architectures the fast decoder does not know. Everything about transformers' caches stays in this file:
a plain `DynamicCache` keeps all keys of every layer (sliding windows become masks), so it can be cropped at any length;
a model whose state cannot be cropped (recurrent or linear attention) is refused when it is loaded, not mid-text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outrider.core.draft import ROOT
from outrider.core.model import LanguageModel, Rows
from outrider.errors import ModelError
from outrider.kvcache.slots import Slots
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.faults import recovered

_CROPPABLE = {"full_attention", "sliding_attention", "chunked_attention"}


class HFModel(LanguageModel):
    """Invariant: `_caches[slot]` holds the slot's committed tokens, then its pending chain."""

    supports_trees = False
    chunk = 512

    def __init__(self, model: Any, *, max_batch: int, max_context: int) -> None:
        self._model = model.eval()
        self.device: torch.device = model.device
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.max_batch = max_batch
        self.max_context = max_context
        self._slots = Slots(max_batch, max_context)
        self._caches: dict[int, Any] = {}
        self._check_rollback()

    @staticmethod
    def load(
        checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, *, max_batch: int, max_context: int | None
    ) -> HFModel:
        from transformers import AutoModelForCausalLM

        try:
            if checkpoint.path.is_dir():
                model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=dtype).to(device)
            else:
                model = _from_gguf(checkpoint, dtype).to(device)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"transformers cannot load {checkpoint.path}: {error}") from error
        longest = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 4096)
        return HFModel(model, max_batch=max_batch, max_context=min(longest, max_context or 8192))

    def open(self) -> int:
        from transformers import DynamicCache

        slot = self._slots.open()
        self._caches[slot] = DynamicCache()
        return slot

    def close(self, slot: int) -> None:
        self._slots.close(slot)
        del self._caches[slot]

    @property
    def held(self) -> int:
        return self._slots.held

    def length(self, slot: int) -> int:
        return self._slots.length(slot)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> Tensor:
        return torch.cat([self._forward(rows) for rows in batch])

    def _forward(self, rows: Rows) -> Tensor:
        span = self._slots.extend(rows)
        if not all(isinstance(path, range) for path in span.paths):
            raise ValueError("this model verifies chains only; a draft tree was sent to it")
        ids = torch.tensor([list(rows.tokens)], device=self.device)
        logits = self._model(input_ids=ids, past_key_values=self._caches[rows.slot], use_cache=True).logits[0]
        wanted = range(len(rows.tokens)) if rows.logits is None else rows.logits
        chosen: Tensor = logits[torch.tensor(list(wanted), dtype=torch.long, device=self.device)]
        return chosen.float()

    def recovers(self, error: Exception) -> bool:
        return recovered(error, self.device)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self._slots.commit(slot, path)
        self._crop(slot)

    def rollback(self, slot: int, length: int) -> None:
        self._slots.rollback(slot, length)
        self._crop(slot)

    def _crop(self, slot: int) -> None:
        cache = self._caches[slot]
        surplus = int(cache.get_seq_length()) - self._slots.length(slot)
        if surplus:
            cache.crop(-surplus)

    def _check_rollback(self) -> None:
        """Refuse models that cannot forget: by what they declare, then by trying it."""
        config = self._model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or [])
        refusal = (
            f"{config.model_type} cannot roll its state back, which speculative decoding needs "
            "(recurrent or linear-attention layers); choose a model with attention caches throughout"
        )
        if getattr(self._model, "_is_stateful", False) or not kinds <= _CROPPABLE:
            raise ModelError(refusal)
        slot = self.open()
        try:
            first = self.forward([Rows(slot, [1, 2, 3], [ROOT, 0, 1])])[0]
            self.rollback(slot, 0)
            again = self.forward([Rows(slot, [1], [ROOT])])[0]
            if not torch.allclose(first, again, atol=0.05, rtol=0.05):
                raise ModelError(refusal)
        except (RuntimeError, AttributeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"{refusal} ({error})") from error
        finally:
            self.close(slot)


def _from_gguf(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """From what we read in the file: transformers' own GGUF reader drops rotary scaling, for one."""
    import transformers

    config = transformers.AutoConfig.for_model(**checkpoint.config)
    kind = getattr(transformers, checkpoint.config["architectures"][0])
    return kind.from_pretrained(None, config=config, state_dict=dict(checkpoint.tensors(dtype)), dtype=dtype)
