"""A drafter of one's own: it proposes answers heard before. `python examples/own_drafter.py [MODEL]`

Whatever it proposes, the text is the model's: a bad drafter costs time, never a token. For a whole one with tests, and
for all that a drafter may do, see docs/extending.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from outrider import LLM, Budget, Draft, Drafter, RequestView, SamplingParams


class Parrot(Drafter):
    """Knows every answer so far, and proposes the one that begins as this one does."""

    name = "parrot"

    def __init__(self) -> None:
        self._heard: list[list[int]] = []

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._recalled(s, b) for s, b in zip(requests, budgets, strict=True)]

    def _recalled(self, request: RequestView, budget: Budget) -> Draft:
        said = list(request.tokens[request.prompt_length :])
        heard = next((answer for answer in self._heard if answer[: len(said)] == said), [])
        tokens = heard[len(said) :][: min(budget.nodes, budget.depth)]
        # A chain: every node follows the one before, and none is surer than that.
        return Draft(tokens, range(-1, len(tokens) - 1), [0.9 ** (i + 1) for i in range(len(tokens))], self.name)

    def close(self, request: RequestView) -> None:
        self._heard.append(list(request.tokens[request.prompt_length :]))


def main(model: str = "smollm2-135m") -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
    with LLM(model, drafter=Parrot(), draft_length=8) as llm:
        first, again = (llm.generate("My favourite bird is", params)[0] for _ in range(2))
        assert first.token_ids == again.token_ids
        print(first.text)
        print(f"{len(first.token_ids)} tokens: {first.steps} passes at first, {again.steps} the second time")


if __name__ == "__main__":
    main(*sys.argv[1:])
