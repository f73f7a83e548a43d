"""A stand-alone draft model as a student: some of the target's own layers, retrained to speak like all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from outrider.errors import DrafterError
from outrider.models.architecture import LLAMA, Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.module import Attention, Mlp, Norm
from outrider.models.rotary import rotation_table
from outrider.models.weights import DecoderWeights, LayerWeights
from outrider.train.acceptance import ReplayedAcceptance
from outrider.train.arithmetic import Arithmetic, Mix, PlainArithmetic, use
from outrider.train.batch import Texts
from outrider.train.divergence import TargetDistribution, diverge
from outrider.train.student import Evaluation
from outrider.train.teacher import Teacher

DEPTH = 5
"""Drafts per chain when acceptance is replayed."""

_BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")


class DraftModule(nn.Module):
    """A Llama of a few layers with tied embeddings; parameters carry their Hugging Face names."""

    arithmetic: Arithmetic = PlainArithmetic()

    def __init__(self, a: Architecture, max_length: int) -> None:
        super().__init__()
        self.architecture = a
        self.embed_tokens = nn.Embedding(a.vocab_size, a.hidden)
        self.layers = nn.ModuleList([_Layer(a) for _ in a.layers])
        self.norm = Norm(a.hidden, a.norm_eps)
        cos, sin = rotation_table(a.ropes[0], max_length, torch.device("cpu"))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """[B, T] → normalised states [rows, hidden] of these of the flattened tokens (each at most once)."""
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            x = x + layer.self_attn(layer.input_layernorm(x), i, self._attend)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        out: Tensor = self.norm(x.flatten(0, 1), rows)
        return out

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert isinstance(self.cos, Tensor)
        assert isinstance(self.sin, Tensor)
        cos, sin, turn = self.cos[: q.shape[1]], self.sin[: q.shape[1]], self.arithmetic.rotated
        q, k, v = (x.transpose(1, 2) for x in (turn(q, cos, sin), turn(k, cos, sin), v))
        grouped = self.architecture.heads != self.architecture.kv_heads
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2).flatten(2)


class _Layer(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.input_layernorm = Norm(a.hidden, a.norm_eps)
        self.self_attn = Attention(a, a.hidden)
        self.post_attention_layernorm = Norm(a.hidden, a.norm_eps)
        self.mlp = Mlp(a)


class DraftStudent:
    kind = "draft-model"

    def __init__(self, module: DraftModule, teacher: Teacher, divergence: Mix, target: Checkpoint) -> None:
        self.module = module.to(teacher.device)
        use(self.module, teacher.arithmetic)
        self.module.arithmetic = teacher.arithmetic
        self._teacher = teacher
        self._divergence = divergence
        self._target = target

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()

    @property
    def vocabulary(self) -> Tensor:
        return self.module.embed_tokens.weight

    def loss(self, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        loss, right = self._judge(texts)
        return loss / max(len(right), 1), {"right1": right.float().mean()}

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Texts]) -> Evaluation:
        acceptance = ReplayedAcceptance(DEPTH)
        losses, seen = 0.0, 0
        for texts in batches:
            loss, right = self._judge(texts)
            losses, seen = losses + float(loss), seen + len(right)
            guessed = right.cpu().numpy()
            for text in range(len(texts.lengths)):
                at = texts.answer_slice(text)
                if texts.greedy[text] and at.stop > at.start:
                    # The guess of a token does not depend on where the draft began.
                    acceptance.replay(np.stack([guessed[at]] * DEPTH))
        return Evaluation(losses / max(seen, 1), acceptance.length, acceptance.per_position)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)

    def export(self, folder: Path, about: Mapping[str, Any], texts: Iterable[Texts]) -> None:
        """A Hugging Face folder with the target's tokenizer, for `--drafter model:FOLDER`."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"model.{name}": tensor.detach().to("cpu", torch.bfloat16).contiguous()
            for name, tensor in self.module.state_dict().items()
        }
        (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        config = {
            **self._target.config,
            "num_hidden_layers": len(self.module.layers),
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "outrider": dict(about),
        }
        for name in _BESIDE:
            if (self._target.path / name).is_file():
                shutil.copy(self._target.path / name, folder)
        if not (folder / _BESIDE[0]).is_file():  # the target is a GGUF file
            (folder / _BESIDE[0]).write_text(self._target.tokenizer.to_json(), encoding="utf-8")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def _judge(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Summed loss and whether each answer token was guessed right."""
        device = self._teacher.device
        tokens = texts.tokens.to(device, torch.long, non_blocking=True)
        where = texts.answers()[0].to(device, non_blocking=True)
        final = self._teacher.read(tokens, ()).final.flatten(0, 1)[where - 1]
        states = self.module(tokens, where - 1)
        right = tokens.flatten()[where]
        loss, chosen = diverge(
            states,
            self.module.embed_tokens.weight,
            TargetDistribution.of(self._teacher.logits(final), right, self._teacher.arithmetic),
            torch.ones(len(where), device=device),
            self._divergence,
            self._teacher.arithmetic,
        )
        return loss, chosen == right


def draft_from_target(
    architecture: Architecture, weights: DecoderWeights[LayerWeights], layers: int, max_length: int
) -> DraftModule:
    """`layers` of the target's layers, evenly spread, its embedding and its norm."""
    a = architecture
    if a.lacking(LLAMA) or not a.tied:
        raise DrafterError(
            f"a draft model can be cut from a plain Llama with tied embeddings only, not from this {a.family}; "
            "train a head instead (without --draft-model)"
        )
    if not 1 <= layers <= len(a.layers):
        raise DrafterError(f"layers must be from 1 to the target's {len(a.layers)}, got {layers}")
    module = DraftModule(replace(a, layers=a.layers[:layers]), max_length)
    state = {"embed_tokens.weight": weights.embedding, "norm.weight": weights.norm}
    last = len(a.layers) - 1
    chosen = [round(i * last / max(layers - 1, 1)) for i in range(layers)]
    for i, source in enumerate(chosen):
        w, at = weights.layers[source], f"layers.{i}."
        q, k, v = torch.split(w.qkv, [a.q_width, a.kv_width, a.kv_width])
        gate, up = w.gate_up.chunk(2)
        state |= {
            f"{at}self_attn.q_proj.weight": q,
            f"{at}self_attn.k_proj.weight": k,
            f"{at}self_attn.v_proj.weight": v,
            f"{at}self_attn.o_proj.weight": w.o,
            f"{at}mlp.gate_proj.weight": gate,
            f"{at}mlp.up_proj.weight": up,
            f"{at}mlp.down_proj.weight": w.down,
            f"{at}input_layernorm.weight": w.attention_norm,
            f"{at}post_attention_layernorm.weight": w.mlp_norm,
        }
    module.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return module
