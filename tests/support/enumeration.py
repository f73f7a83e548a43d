"""The exact distribution of a speculative process, by visiting every outcome of every draw.

The process under test asks a `RandomSource`; `outcomes` runs it again and again until each possible answer to each
question has been given once, with its probability. `plain_distribution` is what to compare with: the target's
own, computed from the same logits by a few independent lines of plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from toy import Language, Sequence_, TableModel, emitted, finished, request, rows_of

from outrider.core.draft import Budget, Draft
from outrider.core.request import ResolvedParams
from outrider.drafters.model import ModelDrafter, ModelDrafterConfig
from outrider.sampling.random_source import RandomSource, Stream
from outrider.verify import Rule, Target, rejection

T = TypeVar("T")
Distribution = dict[tuple[int, ...], float]


class Enumerating:
    """A `RandomSource` that follows a script of outcomes and, past its end, takes the first possible one."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self._taken: list[tuple[int, int]] = []  # (outcome, how many there were)
        self._asked: set[tuple[Stream, int]] = set()
        self.weight = 1.0

    def bernoulli(self, p: float, stream: Stream, node: int) -> bool:
        return self._outcome([1 - p, p], stream, node) == 1

    def categorical(self, weights: Tensor, stream: Stream, node: int) -> int:
        return self._outcome(weights.tolist(), stream, node)

    def next_script(self) -> list[int] | None:
        taken = list(self._taken)
        while taken:
            outcome, count = taken.pop()
            if outcome + 1 < count:
                return [*(earlier for earlier, _ in taken), outcome + 1]
        return None

    def _outcome(self, weights: list[float], stream: Stream, node: int) -> int:
        assert (stream, node) not in self._asked, "a key was used twice: the draws would not be independent"
        assert min(weights) >= 0, "a negative weight"
        self._asked.add((stream, node))
        total = math.fsum(weights)
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        at = len(self._taken)
        outcome = self._script[at] if at < len(self._script) else 0
        self._taken.append((outcome, len(possible)))
        self.weight *= weights[possible[outcome]] / total
        return possible[outcome]


def outcomes(process: Callable[[RandomSource], T]) -> Iterator[tuple[T, float]]:
    """Every result of a process with its probability (results may repeat)."""
    script: list[int] | None = []
    while script is not None:
        chance = Enumerating(script)
        yield process(chance), chance.weight
        script = chance.next_script()


# ---- the target's own distribution, independently --------------------------------------------------------


def plain_probabilities(
    logits: list[float], params: ResolvedParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The processors as DESIGN words them, in plain Python."""
    z = [float(x) for x in torch.tensor(logits, dtype=torch.float32)]
    for token in range(len(z)):
        if token in prompt or token in output:
            z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
        times = list(output).count(token)
        z[token] -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        z[token] += params.logit_bias.get(token, 0.0)
        if len(output) < params.min_tokens and token in params.stop_token_ids:
            z[token] = -math.inf
    if params.temperature == 0:
        return [float(token == z.index(max(z))) for token in range(len(z))]
    weights = [math.exp((x - max(z)) / params.temperature) for x in z]

    def normalised(values: list[float]) -> list[float]:
        return [value / math.fsum(values) for value in values]

    p = normalised(weights)
    if params.top_k:
        edge = sorted(p, reverse=True)[min(params.top_k, len(p)) - 1]
        p = normalised([x if x >= edge else 0.0 for x in p])
    ranked = sorted(p, reverse=True)
    needed = next((n for n in range(1, len(p) + 1) if math.fsum(ranked[:n]) >= params.top_p), len(p))
    p = normalised([x if x >= ranked[needed - 1] else 0.0 for x in p])
    return normalised([x if x >= params.min_p * max(p) else 0.0 for x in p])


def plain_distribution(target: Language, prompt: Sequence[int], params: ResolvedParams) -> Distribution:
    ended: Distribution = {}
    running: Distribution = {(): 1.0}
    while running:
        output, weight = running.popitem()
        p = plain_probabilities(target((*prompt, *output)), params, prompt, output)
        for token, chance in enumerate(p):
            if chance > 0:
                longer = (*output, token)
                over = len(longer) == params.max_tokens or token in params.stop_token_ids
                (ended if over else running)[longer] = weight * chance
    return ended


# ---- the speculative process -----------------------------------------------------------------------------

Propose = Callable[[Sequence_, Budget, RandomSource], Draft]


@dataclass(frozen=True)
class Shape:
    """A drafter's budget and branching."""

    nodes: int
    depth: int
    branching: int = 1
    floor: float = 0.0


def model_drafter(draft_language: Language, vocab: int, branching: int) -> Propose:
    """The real `ModelDrafter`, with its cache and tree builder, asked repeatedly for one request."""
    current: list[RandomSource] = []
    model = TableModel(draft_language, vocab)
    drafter = ModelDrafter(model, ModelDrafterConfig(branching), chance=lambda *key: current[-1])
    opened: list[Sequence_] = []

    def propose(seq: Sequence_, budget: Budget, chance: RandomSource) -> Draft:
        if not opened or opened[-1] is not seq:
            for old in opened:
                drafter.close(old)
            opened[:] = [seq]
            drafter.open(seq)
        current[:] = [chance]
        return drafter.propose([seq], [budget])[0]

    return propose


def speculative_distribution(
    target: Language,
    propose: Propose,
    prompt: Sequence[int],
    params: ResolvedParams,
    shape: Shape,
    rule: Rule = rejection,
    view: Callable[[Sequence_, Draft], Target] | None = None,
) -> Distribution:
    """The exact distribution of whole requests.

    Steps draw independently given the text so far, so a text reached in several ways is only continued once.
    """
    ended: Distribution = {}
    running: Distribution = {(): 1.0}
    while running:
        output = min(running, key=len)
        weight = running.pop(output)
        seq = request(prompt, params, output)
        room = params.max_tokens - len(output) - 1
        budget = Budget(min(shape.nodes, 99 if room else 0), min(shape.depth, room), shape.floor)

        def step(chance: RandomSource, seq: Sequence_ = seq, budget: Budget = budget) -> tuple[int, ...]:
            draft = propose(seq, budget, chance)
            rows = view(seq, draft) if view else rows_of(target, seq, draft)
            verdict = rule(draft, rows, chance)
            return tuple(emitted(seq, draft, verdict.path, verdict.token))

        for tokens, chance in outcomes(step):
            longer = (*output, *tokens)
            over = finished(request(prompt, params, longer))
            into = ended if over else running
            into[longer] = into.get(longer, 0.0) + weight * chance
    return ended


def error(exact: Distribution, other: Distribution) -> float:
    assert abs(math.fsum(exact.values()) - 1) < 1e-12
    return max(abs(exact.get(text, 0.0) - other.get(text, 0.0)) for text in exact.keys() | other.keys())
