"""What may follow the nodes of a draft, by passes of a head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from outrider.core.model import DraftHead, NoiseKey, Rows, WantedTree
from outrider.drafters.backlog import Backlog
from outrider.drafters.cached import Plan
from outrider.drafters.candidates import Candidates, in_turn, ranked_candidates, sampled_candidates, samples
from outrider.drafters.draft_vocab import IMPRECISELY, ReducedVocabulary, fp32_temperature, plainly_ranked
from outrider.sampling.noise import row_key


class HeadCandidates:
    """At most `count` per node."""

    def __init__(self, head: DraftHead, vocab_size: int, count: int) -> None:
        """`vocab_size`: the width of the target's logits."""
        self._head = head
        self._count = count
        # One that may name tokens the target cannot choose ranks those, too.
        self._ranks = count <= head.most_ranked and int(head.ids.max()) < vocab_size
        self._vocabulary = ReducedVocabulary(head.ids, vocab_size)

    def after(
        self,
        plans: Sequence[Plan[Backlog]],
        batch: Sequence[Rows],
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[Iterator[Candidates], Tensor]:
        """One head pass: what may follow each row wanted, which are the last levels of `plans`; the states of all rows.

        A head that ranks tokens itself does, unless the sampling parameters ask for more than it knows.
        """
        if self._ranks and all(map(_plainly_ranked, plans)):
            keys = [key for plan in plans for key in _noise_keys(plan)]
            ranked, after = self._head.rank(batch, keys, self._count, features=features, states=states)
            each = zip(ranked, keys, strict=True)
            return (Candidates(found.likely, in_turn(found.drawn), key is not None) for found, key in each), after
        output = self._head.forward(batch, features=features, states=states)
        candidates: list[Candidates] = []
        for plan in plans:
            logits = output.logits[len(candidates) : len(candidates) + len(plan.growth.level)]
            candidates += self._from_logits(plan, logits)
        return iter(candidates), output.states

    def whole(self, plans: Sequence[Plan[Backlog]]) -> list[WantedTree] | None:
        """What the head can draft whole: trees that it ranks by itself at every level, and nothing else."""
        if not (self._ranks and self._head.drafts_trees and all(map(_plainly_ranked, plans))):
            return None
        wanted = []
        for plan in plans:
            tree = plan.growth.whole
            if tree is None:
                return None
            if plan.request.params.temperature:
                tree = tree._replace(keys=[_noise_key(plan, depth) for depth in range(tree.depth)])
            wanted.append(tree)
        return wanted if sum([tree.width for tree in wanted]) <= self._head.chunk else None

    def _from_logits(self, plan: Plan[Backlog], logits: Tensor) -> list[Candidates]:
        """What may follow the last level's nodes, given their logits [nodes, draft vocabulary]."""
        params, history, paths, count = plan.request.params, plan.held.history, plan.paths(), self._count
        if samples(params):
            wide = self._vocabulary.widened(logits)
            return sampled_candidates(wide, params, history, paths, count, plan.chance, plan.q)
        if not params.features <= IMPRECISELY:
            return ranked_candidates(self._vocabulary.widened(logits), params, history, paths, count)
        return self._vocabulary.ranked_candidates(logits, params, history, paths, count)


def _plainly_ranked(plan: Plan[Backlog]) -> bool:
    return plainly_ranked(plan.request.params, plan.growth.depth) and not samples(plan.request.params)


def _noise_keys(plan: Plan[Backlog]) -> list[NoiseKey | None]:
    """The noise each node of the last level draws its children with. A level's nodes stand at one position."""
    params, level = plan.request.params, plan.growth.level
    if params.temperature == 0:
        return [None] * len(level)
    return [_noise_key(plan, plan.growth.depth)] * len(level)


def _noise_key(plan: Plan[Backlog], depth: int) -> NoiseKey:
    """Of a node's children, so many levels down."""
    params = plan.request.params
    position = plan.held.history.generated + depth
    return NoiseKey(fp32_temperature(params), *row_key(params.seed, params.choice, position))
