"""What `LLM` is asked for, as the engine takes it: checked, with every default filled in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider import asked
from outrider.checks import flag, whole
from outrider.core.draft import Speculation
from outrider.core.model import LanguageModel
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.errors import InvalidRequest, shown
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.sampling.grammar import Grammars
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Makes requests to one model."""

    model: LanguageModel
    tokenizer: Tokenizer
    generation_config: Mapping[str, Any]
    grammars: Grammars
    drafters: Sequence[str]
    """Those that a request may name."""
    takes_predictions: bool
    ids: Iterator[int]

    def build_each(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> list[Request]:
        """What `generate` is asked for, checked: one per prompt."""
        batch = asked.prompts(prompts)
        each = asked.params(params, len(batch))
        if not flag("speculate", speculate):
            if speculation is not None:
                raise InvalidRequest("speculation: give it or speculate=False, not both")
            speculation = Speculation(max_nodes=0)
        ways = asked.speculations(speculation, len(batch))
        return [
            self.build(prompt, p, speculation=way, trace=trace)
            for prompt, p, way in zip(batch, each, ways, strict=True)
        ]

    def build(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        choice: int = 0,
        speculation: Speculation | None = None,
        cache_salt: str | None = None,
        principal: str = "",
        priority: int = 0,
        trace: bool = False,
        shown: Collection[int] = (),
    ) -> Request:
        """A request for `engine`, checked and ready to be added. `choice`: which of several drawn with one seed.
        `cache_salt`: work is shared with requests of the same salt alone. `principal`: whose it is; principals take
        turns, and of each those of the lowest `priority` are begun first. `shown`: control tokens that are written
        out in the text, by their names."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else asked.token_ids("prompt", prompt)
        if not tokens:
            raise InvalidRequest("prompt: it is empty; give at least one token of text")
        self._known("prompt", tokens)
        if len(tokens) >= self.model.max_context:
            raise InvalidRequest(
                f"prompt: {len(tokens)} tokens leave no room in a context of {self.model.max_context}; shorten it"
            )
        resolved = asked.params(params, 1)[0].resolve(
            self.generation_config,
            self.tokenizer.eos_token_ids,
            self.model.vocab_size,
            whole("choice", choice, 0),
            self.grammars,
            cache_salt,
        )
        request = Request(
            id=next(self.ids),
            tokens=tokens,
            prompt_length=len(tokens),
            params=resolved,
            limit=min(resolved.max_tokens, self.model.max_context - len(tokens)),
            stream=TextStream(self._bytes(shown), resolved.stop, self.tokenizer.strips_leading_space),
            history=History(tokens),
            keep_trace=flag("trace", trace),
            speculation=self._checked(Speculation() if speculation is None else speculation),
            cache_salt=cache_salt,
            principal=principal,
            priority=whole("priority", priority),
        )
        if (limit := request.grammar_limit) is not None:
            raise InvalidRequest(f"grammar: {limit}")
        if request.stuck:
            raise InvalidRequest("grammar: nothing can be written under it with these stop tokens and min_tokens")
        return request

    def _bytes(self, shown: Collection[int]) -> Callable[[int], bytes]:
        """What each token adds to a text."""
        if not shown:
            return self.tokenizer.token_bytes
        named = {token: (self.tokenizer.token(token) or "").encode() for token in shown}
        return lambda token: named.get(token) or self.tokenizer.token_bytes(token)

    def _known(self, name: str, tokens: Sequence[int]) -> None:
        size = self.model.vocab_size
        if bad := [token for token in tokens if not 0 <= token < size]:
            raise InvalidRequest(f"{name}: token id {shown(bad[0])} is outside the vocabulary of {size}")

    def _checked(self, speculation: Speculation) -> Speculation:
        """What was asked for, in terms of the drafters there are; "none" is a budget of no nodes."""
        if not isinstance(speculation, Speculation):
            raise InvalidRequest(f"speculation must be a Speculation(…), not {shown(speculation)}")
        name = speculation.drafter
        if speculation.max_nodes is not None:
            whole("max_nodes", speculation.max_nodes, 0)
        if name is not None and not (isinstance(name, str) and name in self.drafters):
            raise InvalidRequest(f"drafter: there is no {shown(name)} here; choose {', '.join(self.drafters)}")
        speculation = replace(speculation, prediction=tuple(asked.token_ids("prediction", speculation.prediction)))
        self._known("prediction", speculation.prediction)
        if speculation.prediction and not self.takes_predictions:
            raise InvalidRequest("prediction: what with_drafter makes takes none; ask the LLM it was made of")
        if name == "none":
            return replace(speculation, drafter=None, prediction=(), max_nodes=0)
        return speculation if self.takes_predictions else replace(speculation, drafter=None)
