"""One request on its way: its tokens, how it is sampled, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from outrider.core.draft import Draft, Speculation
from outrider.core.request import Completion, FinishReason, GrammarWalk, ResolvedParams, StepTrace, Tally, TokenLogprob
from outrider.engine.text import TextStream
from outrider.errors import RequestFailed
from outrider.sampling.grammar_walk import allowed
from outrider.sampling.history import History

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Request:
    """Invariant between steps, while running: the target's cache holds every token before the last but the last
    `num_uncomputed_tokens` of them."""

    id: int
    tokens: list[int]
    prompt_length: int
    params: ResolvedParams
    limit: int
    """Most tokens to generate: max_tokens, or what the context leaves."""
    stream: TextStream
    history: History
    keep_trace: bool = False
    speculation: Speculation = field(default_factory=Speculation)
    cache_salt: str | None = None
    """Only requests of the same salt reuse what was computed or said for one another."""
    principal: str = ""
    """Whose it is: principals take turns."""
    priority: int = 0
    """Of two of one principal, the lower is begun first."""
    reused: int | None = None
    """Tokens of the prompt that some slot held when it was first given one; None before."""
    slot: int = NO_SLOT
    num_uncomputed_tokens: int = 0
    """Tokens before the last that the target's cache does not hold yet; 0 once it decodes."""
    admitted: float | None = None
    """When it was first given a slot; None before."""
    prefix_donor: Request | None = None
    """A running request whose prompt begins alike and is being worked on: waited for, then copied from."""
    finish_reason: FinishReason | None = None
    failure: RequestFailed | None = None
    """Why it cannot go on, instead of a finish reason: what it has said is no answer."""
    origins: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    scores: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt's tokens after the first, as far as they are known."""
    trace: list[StepTrace] = field(default_factory=list)
    steps: int = 0
    sources: dict[str, Tally] = field(default_factory=dict)
    acceptance: list[int] = field(default_factory=list)
    """Entry n: steps in which n drafted tokens were accepted."""
    seconds: float = 0.0
    prefill_seconds: float = 0.0

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def drafted(self) -> int:
        return sum(tally.drafted for tally in self.sources.values())

    @property
    def accepted(self) -> int:
        return sum(tally.accepted for tally in self.sources.values())

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.limit + self.prompt_length - len(self.tokens)

    @property
    def room(self) -> int:
        """Nodes worth drafting: the target adds one token by itself, so the last one never needs a draft."""
        left, most = self.limit + self.prompt_length - len(self.tokens) - 1, self.speculation.max_nodes
        return left if most is None else min(left, most)

    @property
    def scoring(self) -> bool:
        """Whether its prompt's tokens are still to be scored: then every row of it must be run, whoever has before."""
        return self.params.prompt_logprobs is not None and len(self.scores) < self.prompt_length - 1

    def unscored(self, start: int, count: int) -> range:
        """Of the rows of tokens from `start` on, by their places among them, those that score a token of the prompt."""
        if not self.scoring:
            return range(0)
        return range(max(0, len(self.scores) - start), min(count, self.prompt_length - 1 - start))

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    @property
    def stuck(self) -> bool:
        """Whether a grammar lets nothing follow, not even an end."""
        return self.params.grammar is not None and allowed(self.params, self.history, self._path) is None

    @property
    def grammar_limit(self) -> str | None:
        """Why it cannot be told what the grammar lets follow; None where it can."""
        return None if self.params.grammar is None else self.history.walk(self.params.grammar).limit(self._path)

    @property
    def walk(self) -> GrammarWalk | None:
        """Where it stands in its grammar, where that is to be drafted from."""
        if self.params.grammar is None or not self.speculation.forced:
            return None
        return self.history.walk(self.params.grammar)

    @property
    def _path(self) -> list[int]:
        """Tokens the history does not have yet."""
        return self.tokens[self.prompt_length + self.history.generated :]

    def count(self, draft: Draft, path: tuple[int, ...]) -> None:
        """Note a step that took the nodes of `path` of `draft`."""
        self.steps += 1
        if draft.sources:
            taken = Counter(map(draft.proposer, path))
            for name, count in Counter(map(draft.proposer, range(len(draft)))).items():
                self._tally(name, count, taken[name])
        elif draft.tokens:
            self._tally(draft.source, len(draft), len(path))
        accepted = len(path)
        if accepted >= len(self.acceptance):
            self.acceptance += [0] * (accepted + 1 - len(self.acceptance))
        self.acceptance[accepted] += 1

    def _tally(self, name: str, drafted: int, accepted: int) -> None:
        if (before := self.sources.get(name)) is not None:
            drafted, accepted = before.drafted + drafted, before.accepted + accepted
        self.sources[name] = Tally(drafted, accepted)

    def push(self, token: int) -> str:
        """Add one token and decide whether the request ends with it; returns the text that may be shown."""
        tokens, params, stream = self.tokens, self.params, self.stream
        tokens.append(token)
        generated = len(tokens) - self.prompt_length
        may_stop = generated >= params.min_tokens
        text = stream.push(token, may_stop)
        if stream.stopped or (may_stop and token in params.stop_token_ids):
            self.finish_reason = "stop"
        elif params.grammar is not None:
            self._heed_grammar()
        elif generated >= self.limit:
            self.finish_reason = "length"
        else:  # as mostly
            return text
        return text + stream.finish() if self.ended else text

    def _heed_grammar(self) -> None:
        """Whether it ends after a token that does not stop it by itself."""
        limit = self.grammar_limit
        if self.generated >= self.limit and (limit is not None or not self.stuck):
            self.finish_reason = "length"
        elif limit is not None:
            self.failure = RequestFailed(f"grammar: {limit}")
        elif self.stuck:
            self.finish_reason = "stop"

    def completion(self) -> Completion:
        assert self.finish_reason is not None, "only a finished request has a completion"
        return Completion(
            text=self.stream.text,
            token_ids=self.tokens[self.prompt_length :],
            finish_reason=self.finish_reason,
            origins=self.origins,
            prompt_tokens=self.prompt_length,
            seed=self.params.seed,
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            seconds=self.seconds,
            prefill_seconds=self.prefill_seconds,
            logprobs=self.logprobs if self.params.logprobs is not None else None,
            prompt_logprobs=self.scores if self.params.prompt_logprobs is not None else None,
            trace=self.trace,
            sources=self.sources,
            acceptance=self.acceptance,
        )
