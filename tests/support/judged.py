"""Chains drafted and judged by the kernels of the rejection rule, and by the reference of it, from the same logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from tiny_gpu import DEVICE
from torch import Tensor

from outrider.core.draft import Draft, Verdict
from outrider.core.step import StepSlot
from outrider.drafters.candidates import sampled_candidates
from outrider.drafters.draft_vocab import ReducedVocabulary
from outrider.engine.device_lanes import _processing
from outrider.engine.request import Request
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.judge import Drawn, Judge
from outrider.models.cuda.lanes import Lanes
from outrider.sampling.noise import step_words_of
from outrider.sampling.random_source import KeyedRandom
from outrider.sampling.target import TargetRows
from outrider.verify import rejection


def by_reference(
    one: Request, drafts: Tensor | None, ids: Tensor, target: Tensor, given: Sequence[int] = ()
) -> tuple[Draft, Verdict]:
    """A chain drawn from the logits `drafts` [length, columns], cut to its request's room, or `given` as it is; and
    what becomes of it by the logits `target` [length + 1, vocab]."""
    p, chance = one.params, KeyedRandom(one.params.seed, one.params.choice, one.generated)
    tokens, declared = list(given)[: one.room], list[Tensor]()
    vocabulary = ReducedVocabulary(ids, target.shape[1])
    if drafts is not None:
        for depth in range(min(len(drafts), one.room)):
            wide = vocabulary.widened(drafts[depth : depth + 1])
            (found,) = sampled_candidates(wide, p, one.history, [list(tokens)], 1, chance, declared)
            if not found.outlook():  # not a number
                break
            tokens.append(found.take(depth))
    count = len(tokens)
    q = torch.stack(declared) if declared else None
    draft = Draft(tokens, range(-1, count - 1), [1.0] * count, "test", q)
    return draft, rejection(draft, TargetRows(target[: count + 1], p, one.history, draft), chance)


class Judging:
    """One lane for each request, of which those without given drafts draw theirs."""

    def __init__(self, requests: Sequence[Request], vocab: int, ids: Tensor | None, most: int) -> None:
        self.requests, self._vocab = requests, vocab
        count, columns = len(requests), vocab if ids is None else len(ids)
        self.board = board = Lanes(count, count, count, 64, vocab, DEVICE)
        self._drafting = Chooser(count, columns, DEVICE, ids)
        self._choosing = Chooser(count * (most + 1), vocab, DEVICE)
        drawn = Drawn(count * most, columns, ids, vocab, DEVICE)
        self._draws = Judge(self._drafting, board, count, drawn)
        self._judges = Judge(self._choosing, board, count * (most + 1), drawn)
        board.seat({one.id: self._slot(one) for one in requests})
        board.drafts.fill_(-1)

    def _slot(self, one: Request) -> StepSlot:
        p = one.params
        return StepSlot(
            one.id, 0, one.tokens[-1], one.tokens[-2], len(one.tokens) - 1, one.generated, p.temperature,
            step_words_of(p.seed, p.choice, range(one.generated, one.generated + 2)), p.top_k, p.top_p, p.min_p,
            _processing(one), rejects=one.limit,
        )  # fmt: skip

    def _place(self, count: int, first: int) -> None:
        """Rows of `count` tokens each, that stand after so many drafts."""
        board = self.board
        for one in self.requests:
            p = one.params
            least = math.log(p.min_p) if p.min_p > 0 else -math.inf
            for i in range(count):
                row, depth = one.id * count + i, first + i
                early = one.generated + depth < p.min_tokens
                marks = [one.id if _processing(one) else -1, depth, int(early), 0, 0]
                board.said.marks[row] = torch.tensor(marks, dtype=torch.int32)
                numbers = [p.temperature, p.top_p, least, p.top_k]
                board.noise.numbers[row] = torch.tensor(numbers, dtype=torch.float64)

    def draft(self, logits: Tensor) -> list[list[int]]:
        """By logits [depths, lanes, columns]."""
        board, lanes = self.board, len(self.requests)
        for depth, level in enumerate(logits.to(DEVICE)):
            self._place(1, depth)
            self._drafting.choose(level, lanes, board.noise, board.drafts[:, depth], board.said)
            self._draws.draw(level, lanes, board.noise, board.said, depth, board.drafts)
        return board.drafts[:, : len(logits)].tolist()

    def judge(self, logits: Tensor, at_once: int, given: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """By logits [lanes, length + 1, vocab], some rows `at_once`: what each lane gains."""
        board, (lanes, count, _) = self.board, logits.shape
        for lane, tokens in given.items():
            board.drafts[lane, : count - 1] = torch.tensor(tokens, dtype=torch.int32)
        board.out[:, -1] = torch.tensor([int(one.id in given) for one in self.requests], dtype=torch.int32)
        self._place(count, 0)
        rows = logits.to(DEVICE).reshape(lanes * count, -1)
        chosen = torch.full((lanes * count,), -7, dtype=torch.int32, device=DEVICE)
        self._judges.deal(lanes, count - 1)
        for first in range(0, len(rows), at_once):
            some = rows[first : first + at_once].clone()
            self._choosing.choose(some, len(some), board.noise, chosen, board.said, first)
            self._judges.judge(some, len(some), board.noise, board.said, chosen, first)
        accepted = self._judges.accepted[: len(rows)].view(lanes, count).tolist()
        gained = chosen.view(lanes, count).tolist()
        return [tokens[: each.index(0) + 1] for tokens, each in zip(gained, accepted, strict=True)]
