"""Structured output: what a grammar allows to follow, as part of the target's distribution.

A `Grammar` says what the output must look like. llguidance compiles it against the target's tokenizer; from then on
what may follow an output is a function of that output's tokens alone, so plain decoding, every node of a draft and
every drafter see the same mask, and both acceptance rules stay exact.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from outrider.errors import InvalidRequest, shown
from outrider.sampling.grammar_walk import CompiledGrammar, limit_met

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"( |\n[ \t]{0,40})?"
"""Between the parts of JSON: enough for every common style, and no endless runs of blanks."""
_KEPT = 64
"""Compiled grammars kept, over all salts: clients send the same few schemas again and again, and make salts up."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must look like; `json_object`, `json_schema`, `regex` and `lark` make one."""

    kind: Literal["json", "regex", "lark"]
    source: str
    """A JSON schema, a regular expression that the whole output matches, or rules in llguidance's dialect of Lark."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ("json", "regex", "lark"):
            raise InvalidRequest(f"grammar: kind must be 'json', 'regex' or 'lark', not {shown(self.kind)}")
        if not isinstance(self.source, str):
            raise InvalidRequest(f"grammar: its source must be text, not {shown(self.source)}")
        if not _is_text(self.source):
            raise InvalidRequest("grammar: it holds half of a surrogate pair, which is not text")

    @staticmethod
    def json_object() -> Grammar:
        """Any JSON object."""
        return Grammar.json_schema({"type": "object"})

    @staticmethod
    def json_schema(schema: Mapping[str, Any]) -> Grammar:
        """JSON that a schema describes; parts of JSON Schema that llguidance does not know are refused."""
        if not isinstance(schema, Mapping):
            raise InvalidRequest(f"grammar: a JSON schema is an object, not {type(schema).__name__}")
        try:
            return Grammar("json", json.dumps(schema, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"grammar: the schema is not JSON: {error}") from error

    @staticmethod
    def regex(pattern: str) -> Grammar:
        """Text that matches `pattern` from its beginning to its end."""
        if not isinstance(pattern, str):
            raise InvalidRequest(f"grammar: a regular expression is a string, not {type(pattern).__name__}")
        return Grammar("regex", pattern)

    @staticmethod
    def lark(rules: str) -> Grammar:
        """Text that follows from the rule `start`; JSON schemas may stand in the rules (`%json {…}`)."""
        if not isinstance(rules, str):
            raise InvalidRequest(f"grammar: rules are a string, not {type(rules).__name__}")
        return Grammar("lark", rules)


def _is_text(source: str) -> bool:
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


class Vocabulary(Protocol):
    """A tokenizer, as far as grammars are concerned."""

    @property
    def eos_token_ids(self) -> Sequence[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class Grammars:
    """Compiles grammars for one target, of `vocab_size` logits. Any thread may ask.

    What is compiled is kept for requests of the same salt: compiling takes up to seconds, by which anybody could find
    out whether others have sent a schema.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary, self._size = vocabulary, vocab_size
        self._eos = [token for token in vocabulary.eos_token_ids if token < vocab_size]
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str | None, Grammar], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(
        self, grammar: Grammar, stop_token_ids: Collection[int], cache_salt: str | None = None
    ) -> CompiledGrammar:
        """`stop_token_ids` end a request; those without text are allowed exactly where the grammar may end."""
        ends = sorted(token for token in stop_token_ids if not self._vocabulary.token_bytes(token))
        with self._lock:
            matcher = self._matcher(grammar, cache_salt)
            assert self._tokenizer is not None
            words = self._tokenizer
        build = partial(self._build, grammar)
        return CompiledGrammar(matcher, build, words, grammar.kind == "json", ends, self._eos, self._size)

    def _matcher(self, grammar: Grammar, cache_salt: str | None) -> LLMatcher:
        matcher = self._compiled.pop((cache_salt, grammar), None)
        if matcher is None or self._met_early(matcher) is not None:  # spoiled by a walk that met a limit
            matcher = self._new_matcher(grammar)
        self._compiled[cache_salt, grammar] = matcher
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        return matcher

    def _new_matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher that is checked: what cannot work is refused before anything is written."""
        matcher = self._build(grammar)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())
            raise InvalidRequest(f"grammar: it cannot be compiled or satisfied: {reason[:300]}")
        if met := self._met_early(matcher):
            raise InvalidRequest(f"grammar: {met}")
        return matcher

    def _build(self, grammar: Grammar) -> LLMatcher:
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError as error:
            raise InvalidRequest(
                "grammar: structured output needs llguidance, which is not installed: pip install 'outrider[grammar]'"
            ) from error
        if self._tokenizer is None:
            wrapper = _Wrapper(self._vocabulary, self._size, self._eos)
            self._tokenizer = LLTokenizer(wrapper, eos_token=self._eos or None)
        try:
            match grammar.kind:
                case "regex":
                    source = LLMatcher.grammar_from_regex(grammar.source)
                case "lark":
                    source = LLMatcher.grammar_from_lark(grammar.source)
                case "json":
                    source = LLMatcher.grammar_from_json_schema(grammar.source, {"whitespace_pattern": WHITESPACE})
        except ValueError as error:
            raise InvalidRequest(f"grammar: it cannot be read: {error}") from error
        return LLMatcher(self._tokenizer, source, log_level=0)

    def _met_early(self, matcher: LLMatcher) -> str | None:
        """The limit that every output must meet, if it lies in what they all begin with: most grammars that are too
        large do so at the first choice, which for JSON follows a brace."""
        assert self._tokenizer is not None
        ahead = matcher.deep_copy()
        ahead.compute_bitmask()
        ahead.try_consume_tokens(self._tokenizer.tokenize_bytes(ahead.compute_ff_bytes()))
        ahead.compute_bitmask()
        return limit_met(ahead)


class _Wrapper:
    """A vocabulary as llguidance reads it. Tokens without text begin with 0xFF, which no grammar allows."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Sequence[int]) -> None:
        self.eos_token_id = eos[0] if eos else 0
        self.tokens = [vocabulary.token_bytes(token) or b"\xff<%d>" % token for token in range(size)]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if text.startswith(b"\xff<")]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        return self._vocabulary.encode(text, add_special_tokens=False)
