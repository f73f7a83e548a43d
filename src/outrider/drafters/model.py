"""Drafting with a smaller language model that shares the target's tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.core.draft import ROOT, Budget
from outrider.core.model import LanguageModel, Rows
from outrider.core.request import RequestView
from outrider.core.step import HandedOver, PendingFeatures
from outrider.drafters.cached import CachedDrafter, Chance, Held, Plan, growing
from outrider.drafters.candidates import Candidates, ranked_candidates, sampled_candidates, samples
from outrider.drafters.tree_builder import TreeBuilder
from outrider.errors import DrafterError
from outrider.sampling.history import History
from outrider.sampling.random_source import KeyedRandom

_HOPED = (0.75,) * 4
"""How often its levels are taken to be right before any was seen: who drafts with a model chose one that is often."""


@dataclass(frozen=True, slots=True)
class ModelDrafterConfig:
    """`branching`: most children per node; 1 drafts chains. Trees need a budget and model that allow them."""

    branching: int = 1

    def __post_init__(self) -> None:
        if self.branching < 1:
            raise DrafterError(f"branching of the draft model must be at least 1, not {self.branching}")


@dataclass(slots=True)
class _Held(Held):
    """What the draft model's cache holds of it: `committed` tokens, then rows of its draft."""

    committed: int = 0
    pending: list[tuple[int, int]] = field(default_factory=list)  # (token, parent row)


class ModelDrafter(CachedDrafter[_Held]):
    """Draws from the draft model what it, sampled like the target, would say next.

    Coupled: children are the Gumbel top-k under the target's own noise (temperature 0: the top-k). Rejection:
    drawn one after the other without replacement from keyed chance, and `q` says from what. One forward per
    level for all requests together.
    """

    name = "model"

    def __init__(
        self,
        model: LanguageModel,
        config: ModelDrafterConfig | None = None,
        *,
        vocab_size: int | None = None,
        chance: Chance = KeyedRandom,
    ) -> None:
        """`vocab_size`: the width of the target's logits, where it differs (padding of a shared vocabulary)."""
        super().__init__(model, (config or ModelDrafterConfig()).branching, chance)
        self._model = model
        self._vocab = vocab_size or model.vocab_size

    def reach(self, request: RequestView, source: int, common: int) -> int:
        """All of it: what its cache lacks, the draft model runs by itself."""
        return common

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        found = self._prefixes.find(source)
        self._hold(request, self._prefixes.open_from(request, found, min(length, self._prefixes.length(found)), keep))

    def _hold(self, request: RequestView, slot: int) -> _Held:
        prompt = request.tokens[: request.prompt_length]
        held = self._held[request.id] = _Held(slot, len(prompt), History(prompt), self._model.length(slot))
        return held

    def _grow(self, plans: list[Plan[_Held]]) -> None:
        logits = self._catch_up(plans)
        while True:
            for plan, rows in zip(plans, logits, strict=True):
                plan.growth.grow(self._candidates(plan, self._fit(rows)))
            plans = growing(plans)
            if not plans:
                return
            logits = self._run_level(plans)

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        return {self.name: _HOPED}

    def lacks(self, request: RequestView) -> int:
        return len(request.tokens) - self._held[request.id].committed

    @property
    def model(self) -> LanguageModel:
        return self._model

    def hand_over(self, requests: Sequence[RequestView], soon: bool) -> list[HandedOver]:
        """Bring the caches up to all tokens but the last, for steps on the device."""
        for request in requests:
            held = self._held[request.id]
            self._settle(held, request.tokens)
            while piece := request.tokens[held.committed : len(request.tokens) - 1][: self._model.chunk]:
                self._model.forward([Rows.chain(held.slot, piece, logits=())])
                self._model.commit(held.slot, range(len(piece)))
                held.committed += len(piece)
        return [HandedOver(self._held[request.id].slot) for request in requests]

    def take_back(self, request: RequestView, left: PendingFeatures) -> None:
        """Go on where steps on the device have ended: all tokens but the last were run there."""
        self.leave(request, len(request.tokens) - 1)

    def leave(self, request: RequestView, seen: int) -> None:
        """So many of its tokens were run on the device."""
        held = self._held[request.id]
        if seen > held.committed and self._model.steps_on_device:
            self._model.advance({held.slot: seen - held.committed})
            held.committed = seen

    def _plan(self, request: RequestView, budget: Budget) -> Plan[_Held]:
        held = self._held[request.id]
        room = self._model.max_context - len(request.tokens)
        known = max(request.tokens[held.committed :], default=0) < self._model.vocab_size
        # All nodes but the last level's are run, so one more than fits may be drafted.
        nodes = min(budget.nodes, room + 1) if room >= 0 and known else 0
        growth = TreeBuilder(dataclasses.replace(budget, nodes=nodes), self._branching)
        return Plan(request, held, growth, self._chance)

    def _catch_up(self, plans: Sequence[Plan[_Held]]) -> list[Tensor]:
        """Bring the cache up to each request's last token; its logits [1, V] per plan."""
        logits: dict[int, Tensor] = {}
        for plan in plans:
            self._settle(plan.held, plan.request.tokens)
        while waiting := [plan for plan in plans if plan.request.id not in logits]:
            batch: list[Rows] = []
            ready: list[int] = []
            room = self._model.chunk
            for plan in waiting:
                held, tokens = plan.held, plan.request.tokens
                piece = tokens[held.committed : held.committed + room]
                if not piece:
                    break
                room -= len(piece)
                last = held.committed + len(piece) == len(tokens)
                batch.append(Rows.chain(held.slot, piece, logits=[len(piece) - 1] if last else []))
                ready += [plan.request.id] if last else []
            out = self._model.forward(batch)
            for rows, plan in zip(batch, waiting, strict=False):
                self._model.commit(rows.slot, range(len(rows.tokens)))
                plan.held.committed += len(rows.tokens)
            logits |= {request: out[i : i + 1] for i, request in enumerate(ready)}
        return [logits[plan.request.id] for plan in plans]

    def _settle(self, held: _Held, tokens: Sequence[int]) -> None:
        """Keep of the last draft's rows those the request took, drop the others, and count its new tokens.

        The last token is always left to be run again: its logits are where a draft begins.
        """
        held.count(tokens)
        wanted = len(tokens) - 1
        path: list[int] = []
        row = ROOT
        while held.committed + len(path) < wanted:
            follows = (tokens[held.committed + len(path)], row)
            if follows not in held.pending:
                break
            row = held.pending.index(follows)
            path.append(row)
        if held.pending:
            self._model.commit(held.slot, path)
            held.committed += len(path)
            held.pending.clear()
        if held.committed > wanted:
            self._model.rollback(held.slot, wanted)
            held.committed = wanted

    def _run_level(self, plans: Sequence[Plan[_Held]]) -> list[Tensor]:
        """Run the level each tree grew last; its logits [nodes of the level, V] per plan."""
        batch = []
        for plan in plans:
            tokens, parents, _ = plan.growth.run_level()
            batch.append(Rows(plan.held.slot, tokens, parents))
            plan.held.pending += zip(tokens, parents, strict=True)
        rest = self._model.forward(batch)
        logits = []
        for rows in batch:
            logits.append(rest[: len(rows.tokens)])
            rest = rest[len(rows.tokens) :]
        return logits

    def _fit(self, logits: Tensor) -> Tensor:
        """Logits as wide as the target's: padding is cut off, or added as impossible tokens."""
        extra = self._vocab - logits.shape[-1]
        return logits if extra == 0 else torch.nn.functional.pad(logits, (0, extra), value=-torch.inf)

    def _candidates(self, plan: Plan[_Held], logits: Tensor) -> list[Candidates]:
        """What may follow the last level's nodes, given their logits [R, V]."""
        params, history, paths = plan.request.params, plan.held.history, plan.paths()
        if samples(params):
            return sampled_candidates(logits, params, history, paths, self._branching, plan.chance, plan.q)
        return ranked_candidates(logits, params, history, paths, self._branching)


def check_vocabularies(target_vocab: Mapping[str, int], draft_vocab: Mapping[str, int]) -> None:
    """Raise `DrafterError`, saying how they differ, unless both models give every token the same id."""
    if target_vocab == draft_vocab:
        return
    missing = sorted(target_vocab.keys() - draft_vocab.keys(), key=target_vocab.__getitem__)
    added = sorted(draft_vocab.keys() - target_vocab.keys(), key=draft_vocab.__getitem__)
    shared = target_vocab.keys() & draft_vocab.keys()
    moved = sorted((t for t in shared if target_vocab[t] != draft_vocab[t]), key=target_vocab.__getitem__)
    differences = [f"the target has {len(target_vocab)} tokens and the draft model {len(draft_vocab)}"]
    if missing:
        differences.append(f"{len(missing)} of the target's are missing (first: {missing[0]!r})")
    if added:
        differences.append(f"{len(added)} are the draft model's alone (first: {added[0]!r})")
    if moved:
        token = moved[0]
        ids = f"{token!r} is {target_vocab[token]} in the target and {draft_vocab[token]} in the draft model"
        differences.append(f"{len(moved)} have other ids (first: {ids})")
    raise DrafterError(
        f"the draft model's vocabulary differs from the target's: {', '.join(differences)}; "
        "choose a draft model that shares the target's tokenizer"
    )
