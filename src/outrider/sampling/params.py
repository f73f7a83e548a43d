"""What a user may ask of a generation, checked when it is asked."""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from outrider.checks import as_float, flag, number, whole
from outrider.core.request import ResolvedParams, VerifyRule
from outrider.errors import InvalidRequest, shown
from outrider.sampling.grammar import Grammar, Grammars

_MAX_LOGPROBS = 20
_MAX_SEED = 2**128 - 1
_LEAST_REPETITION, _MOST_REPETITION = 0.01, 100
"""Far beyond any use, and logits stay finite."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `None` leaves a choice to the model's generation_config.

    Processors apply in this order: penalties, logit_bias, grammar, temperature, top_k, top_p, min_p. Every field is
    checked on construction and `InvalidRequest` names the offending one.
    """

    max_tokens: int | None = 128
    """None: until the context is full. 0, with `prompt_logprobs`: nothing is generated."""
    temperature: float | None = None
    """0: always the likeliest token."""
    top_k: int | None = None
    """0 or -1: off, as is anything from the size of the vocabulary on."""
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    """Over prompt and output, 0.01 to 100; 1: off."""
    frequency_penalty: float = 0.0
    """Over the output only, per occurrence; -2 to 2."""
    presence_penalty: float = 0.0
    """Over the output only, once; -2 to 2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Token id → what to add to its logit, -100 to 100."""
    seed: int | None = None
    """Any number of up to 128 bits. None: drawn, and reported with the result. Replays the text under `coupled`; under
    `rejection` only where the drafts are the same."""
    stop: str | Sequence[str] = ()
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """No stop token is generated before, and a stop string that is complete before is text like any other."""
    logprobs: int | None = None
    """Report each token's log-probability and this many of the likeliest alternatives."""
    prompt_logprobs: int | None = None
    """Report the same of each token of the prompt, by the raw distribution after those before it; the first has none.
    What other requests have left in the cache is then computed again."""
    processed_logprobs: bool = False
    """Report those of the distribution sampled from, instead of the model's raw one."""
    verify: VerifyRule = "coupled"
    grammar: Grammar | None = None
    """What the output must look like. A stop token is then generated exactly where the grammar lets it end; where
    nothing may follow (all is written, and `min_tokens` or `ignore_eos` forbids to end), the request ends."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, low=1 if self.prompt_logprobs is None else 0)
        whole("min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({shown(self.min_tokens)}) must not exceed max_tokens ({self.max_tokens})"
            )
        for name in _MODEL_DEFAULTS:
            value = getattr(self, name)
            if value is not None:
                _check(name, value)
        number("frequency_penalty", self.frequency_penalty, -2, 2)
        number("presence_penalty", self.presence_penalty, -2, 2)
        if self.seed is not None:
            whole("seed", self.seed)
            if abs(self.seed) > _MAX_SEED:
                raise InvalidRequest("seed must have at most 128 bits; give a smaller number")
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0, _MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            whole("prompt_logprobs", self.prompt_logprobs, 0, _MAX_LOGPROBS)
        flag("ignore_eos", self.ignore_eos)
        flag("processed_logprobs", self.processed_logprobs)
        if not isinstance(self.verify, str) or self.verify not in get_args(VerifyRule):
            names = " or ".join(map(repr, get_args(VerifyRule)))
            raise InvalidRequest(f"verify must be {names}, not {shown(self.verify)}")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidRequest(f"grammar must be a Grammar, such as Grammar.json_object(), not {shown(self.grammar)}")
        # The containers are copied, so that later changes to the caller's own cannot reach a running request.
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))

    def resolve(
        self,
        generation_config: Mapping[str, Any],
        eos_token_ids: Collection[int],
        vocab_size: int,
        choice: int = 0,
        grammars: Grammars | None = None,
        cache_salt: str | None = None,
    ) -> ResolvedParams:
        """Fill in the model's defaults and a seed, and check token ids against the vocabulary. `grammars`: of the
        target's tokens, to compile a grammar with, unless it was for the same salt."""
        stop_ids = frozenset(self.stop_token_ids)
        for name, ids in (("stop_token_ids", stop_ids), ("logit_bias", self.logit_bias)):
            outside = [token for token in ids if token >= vocab_size]
            if outside:
                raise InvalidRequest(
                    f"{name} names token {shown(outside[0])}, but the model's tokens are 0 to {vocab_size - 1}"
                )
        if not self.ignore_eos:
            stop_ids |= {token for token in eos_token_ids if token < vocab_size}
        if self.min_tokens and len(stop_ids) >= vocab_size:
            raise InvalidRequest("min_tokens cannot be kept when stop_token_ids name every token")
        if self.grammar is not None and grammars is None:
            raise InvalidRequest("grammar: it cannot be kept without the target's tokenizer")
        compiled = (
            grammars.compile(self.grammar, stop_ids, cache_salt) if self.grammar is not None and grammars else None
        )
        asked = {name: self._or_default(name, generation_config) for name in _MODEL_DEFAULTS}
        if not asked["temperature"]:  # the likeliest token is never cut off
            asked |= {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
        return ResolvedParams(
            max_tokens=sys.maxsize if self.max_tokens is None else self.max_tokens,
            temperature=asked["temperature"],
            top_k=int(asked["top_k"]) if 0 < asked["top_k"] < vocab_size else 0,
            top_p=asked["top_p"],
            min_p=asked["min_p"],
            repetition_penalty=asked["repetition_penalty"],
            frequency_penalty=float(self.frequency_penalty),
            presence_penalty=float(self.presence_penalty),
            logit_bias=self.logit_bias,
            # 53 bits: the seed survives being reported as a JSON number.
            seed=secrets.randbits(53) if self.seed is None else self.seed,
            choice=choice,
            stop=tuple(self.stop),
            stop_token_ids=stop_ids,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            processed_logprobs=self.processed_logprobs,
            verify=self.verify,
            grammar=compiled,
        )

    def _or_default(self, name: str, generation_config: Mapping[str, Any]) -> float:
        """The value asked for, else the model's, else the neutral one; greedy unless the model samples."""
        value = getattr(self, name)
        if value is not None:
            return as_float(value)
        if name == "temperature" and not generation_config.get("do_sample"):
            return 0.0
        default = generation_config.get(name)
        if default is None:
            return _MODEL_DEFAULTS[name]
        _check(name, default, f"{name} of the model's generation_config")
        return as_float(default)


_MODEL_DEFAULTS = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a model's generation_config may set, and what holds where it does not."""


def _check(name: str, value: object, label: str = "") -> None:
    """One of the parameters a model may have a default for; `label` names it in the message."""
    label = label or name
    match name:
        case "temperature":
            number(label, value, 0, math.inf)
        case "top_k":
            whole(label, value, low=-1)
        case "top_p":
            number(label, value, 0, 1, above=True)
        case "min_p":
            number(label, value, 0, 1)
        case "repetition_penalty":
            number(label, value, _LEAST_REPETITION, _MOST_REPETITION)


def _bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidRequest(f"logit_bias must map token ids to numbers, not be {shown(bias)}")
    for token, value in bias.items():
        whole("a token id of logit_bias", token, low=0)
        number(f"logit_bias of token {shown(token)}", value, -100, 100)
    return {token: float(value) for token, value in bias.items()}


def _stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(text, str) for text in stops):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {shown(stop)}")
    if "" in stops:
        raise InvalidRequest("stop must not contain an empty string: it would end every text at once")
    return tuple(stops)


def _ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, Collection) or isinstance(ids, str | bytes | Mapping):
        raise InvalidRequest(f"stop_token_ids must be a list of token ids, not {shown(ids)}")
    for token in ids:
        whole("a token id of stop_token_ids", token, low=0)
    return tuple(ids)
