"""A head as a student: unrolled drafts over the target's texts, judged against its distributions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outrider.models.head.checkpoint import VOCABULARY, HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.rotary import rotation_table
from outrider.models.weights import DecoderWeights, LayerWeights
from outrider.train.acceptance import ReplayedAcceptance
from outrider.train.arithmetic import Mix, use
from outrider.train.batch import NARROWEST, Texts
from outrider.train.divergence import TargetDistribution, diverge
from outrider.train.quantize import narrowed, watching
from outrider.train.student import Evaluation
from outrider.train.teacher import Teacher
from outrider.train.unroll import UnrolledAttention


@dataclass(frozen=True, slots=True)
class Unroll:
    """`steps` drafts deep; step j counts `fading`**j: a draft that deep matters only if all before it were right."""

    steps: int = 5
    fading: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.steps < NARROWEST:
            raise ValueError(f"an unroll has 1 to {NARROWEST - 1} steps, not {self.steps}")


class HeadStudent:
    kind = "head"

    def __init__(
        self,
        module: HeadModule,
        ids: Tensor,
        teacher: Teacher,
        divergence: Mix,
        unroll: Unroll,
        max_length: int,
        vocabulary: str | None = None,
    ) -> None:
        """ids [draft vocabulary]: the target's tokens it may draft, rising. `vocabulary`: the fingerprint of the
        target's tokenizer, exported with the head."""
        self.module = module.to(teacher.device)
        use(self.module, teacher.arithmetic)
        self.ids = ids.to(teacher.device)
        self._teacher = teacher
        self._vocabulary = vocabulary
        self._divergence = divergence
        self._unroll = unroll
        a = module.config.architecture
        self._rotation = rotation_table(a.ropes[0], max_length, teacher.device)
        self._columns = torch.full((module.config.target_vocab,), -1, device=teacher.device)
        self._columns[self.ids] = torch.arange(len(self.ids), device=teacher.device)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()

    @property
    def vocabulary(self) -> Tensor:
        return self.module.lm_head.weight

    def loss(self, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean over answer tokens and steps; statistics are tensors, not yet waited for."""
        total = torch.zeros((), device=self._teacher.device)
        weights = [self._unroll.fading**j for j in range(self._unroll.steps)]
        right: list[Tensor] = []
        for j, (loss, chosen, token, counts) in enumerate(self._steps(texts)):
            seen = counts.sum().clamp(min=1)
            total = total + weights[j] * loss / seen
            right.append(((chosen == token) & counts).sum() / seen)
        return total / sum(weights), {f"right{j + 1}": share for j, share in enumerate(right)}

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Texts]) -> Evaluation:
        """Acceptance on texts the target wrote greedily, replayed as chains as deep as the unroll, at most 5."""
        acceptance = ReplayedAcceptance(min(5, self._unroll.steps))
        losses, seen = 0.0, 0
        for texts in batches:
            rights = []
            for j, (loss, chosen, token, counts) in enumerate(self._steps(texts)):
                rights.append((chosen == token).cpu().numpy())
                if j == 0:
                    losses, seen = losses + float(loss), seen + int(counts.sum())
            for text in range(len(texts.lengths)):
                at = texts.answer_slice(text)
                if texts.greedy[text] and at.stop > at.start:
                    acceptance.replay(np.stack([right[at] for right in rights[: acceptance.depth]]))
        return Evaluation(losses / max(seen, 1), acceptance.length, acceptance.per_position)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)

    def export(self, folder: Path, about: Mapping[str, Any], texts: Iterable[Texts]) -> None:
        """In bf16, and in `compact` in a few bits."""
        ids = self.ids.cpu()
        tensors = {name: tensor.detach().cpu() for name, tensor in self.module.state_dict().items()}
        tensors["d2t"] = ids - torch.arange(len(ids))
        known = {} if self._vocabulary is None else {VOCABULARY: self._vocabulary}
        checkpoint = HeadCheckpoint(self.module.config, tensors, {**about, **known})
        checkpoint.write(folder)
        checkpoint.write(folder / "compact", narrowed(tensors, self.grams(texts)))

    def grams(self, texts: Iterable[Texts]) -> Mapping[str, Tensor]:
        """How the inputs of each matrix go together, over such texts."""
        device, mixed = self._teacher.device.type, self._teacher.dtype == torch.bfloat16
        with watching(self.module) as grams, torch.autocast(device, torch.bfloat16, enabled=mixed):
            self.evaluate(texts)
        return grams.of

    def _steps(self, texts: Texts) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per step of the unroll, over answer tokens [N] in order: summed loss, chosen columns, the right columns, and
        which tokens count (those that a draft of this depth can reach)."""
        device, arithmetic = self._teacher.device, self._teacher.arithmetic
        tokens = texts.tokens.to(device, torch.long, non_blocking=True)
        taught = self._teacher.read(tokens, self.module.config.aux_hidden_layers)
        embeds = self._teacher.embed(tokens[:, 1:])
        states = self.module.fuse(taught.features[:, :-1])
        rows = texts.width - 1
        first = max(min(texts.first_answer - 2, rows - self._unroll.steps), 0)  # every step has a row
        attend = UnrolledAttention(
            len(self.module.layers),
            self._unroll.steps,
            (self._rotation[0][:rows], self._rotation[1][:rows]),
            self.module.config.architecture.attention_scale,
            arithmetic,
            first,
        )
        # Token x of a text is guessed by head row x - 2, and drawn by the target from its state x - 1.
        where, depth = (index.to(device, non_blocking=True) for index in texts.answers())
        logits = self._teacher.logits(taught.final.flatten(0, 1)[where - 1], self.ids)
        right = self._columns[tokens.flatten()[where]]
        target = TargetDistribution.of(logits, right, arithmetic)
        text, guess = where // texts.width, where % texts.width - 2
        guess_all, guess_later = text * rows + guess, text * (rows - first) + guess - first
        for j in range(self._unroll.steps):
            if j == 1:  # from here on without what lies in every prompt
                states, embeds = states[:, first:], embeds[:, first:].contiguous()
            if j > 0:
                # The first row gets a state that is not its own, and is never used: no draft begins before the answer.
                states = states.roll(1, dims=1)
            attend.step = j
            states = self.module(embeds, states, attend)
            counts = depth >= j
            guessed = self.module.norm(states.flatten(0, 1), guess_later if j else guess_all)
            loss, chosen = diverge(
                guessed, self.module.lm_head.weight, target, counts.float(), self._divergence, arithmetic
            )
            yield loss, chosen, right, counts


def start_from_target(module: HeadModule, target: DecoderWeights[LayerWeights], ids: Tensor) -> None:
    """Begin as the target's own last layers on top of the highest layer that is read: far nearer to a useful
    head than chance."""
    config: HeadConfig = module.config
    a = config.architecture
    state = module.state_dict()
    fresh: dict[str, Tensor] = {}
    fc = torch.zeros_like(state["fc.weight"])
    if config.target_hidden == a.hidden:
        fc[:, -config.target_hidden :] = torch.eye(a.hidden)
        fresh["fc.weight"] = fc
        fresh["norm.weight"] = target.norm
        fresh["lm_head.weight"] = target.head[ids.to(target.head.device)]
    count = len(a.layers)
    for i, layer in enumerate(target.layers[max(len(target.layers) - count, 0) :]):
        at = f"layers.{i}."
        q, k, v = torch.split(layer.qkv, [a.q_width, a.kv_width, a.kv_width])
        for name, part in (("q", q), ("k", k), ("v", v)):
            wide = torch.zeros_like(state[f"{at}self_attn.{name}_proj.weight"])
            wide[:, -a.hidden :] = part
            fresh[f"{at}self_attn.{name}_proj.weight"] = wide
        gate, up = layer.gate_up.chunk(2)
        fresh |= {
            f"{at}self_attn.o_proj.weight": layer.o,
            f"{at}mlp.gate_proj.weight": gate,
            f"{at}mlp.up_proj.weight": up,
            f"{at}mlp.down_proj.weight": layer.down,
            f"{at}input_layernorm.weight": layer.attention_norm,
            f"{at}post_attention_layernorm.weight": layer.mlp_norm,
        }
    if count:
        fresh["layers.0.hidden_norm.weight"] = target.layers[max(len(target.layers) - count, 0)].attention_norm
    module.load_state_dict({name: fresh.get(name, tensor).float() for name, tensor in state.items()})
