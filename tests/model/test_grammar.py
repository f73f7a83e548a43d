"""Structured output: what the grammar allows, along every path, under every rule, with every drafter."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from enumeration import Shape, error, model_drafter, plain_distribution, speculative_distribution
from pace import Pace
from prompts import PROMPTS
from toy import Language, between, language, request, resolved, rows_of

from outrider import LLM, Grammar, InvalidRequest, RequestFailed, SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT, Draft
from outrider.core.request import ResolvedParams, TokenGrammar
from outrider.sampling.grammar import Grammars
from outrider.sampling.grammar_walk import CompiledGrammar, Walk, allowed
from outrider.sampling.history import History

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "kind": {"enum": ["human", "robot"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


class Letters:
    """A tokenizer of a few tokens; the last one ends a text."""

    def __init__(self, *tokens: bytes) -> None:
        self._tokens = tokens
        self.eos_token_ids = (len(tokens),)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id] if token_id < len(self._tokens) else b""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._tokens.index(character.encode()) for character in text]


def compiled(pattern: str, vocabulary: Letters, stop: Sequence[int] | None = None) -> CompiledGrammar:
    size = vocabulary.eos_token_ids[0] + 1
    return Grammars(vocabulary, size).compile(
        Grammar.regex(pattern), vocabulary.eos_token_ids if stop is None else stop
    )


ABC = Letters(b"a", b"b", b"c", b"ab")
END = 4


def names(walk: Walk, path: Sequence[int] = ()) -> set[int]:
    mask = walk.allowed(path)
    return set() if mask is None else set(np.flatnonzero(mask).tolist())


def test_what_may_follow() -> None:
    walk = compiled("(ab|c)*c", ABC).start()
    assert names(walk) == {0, 2, 3}
    assert names(walk, [0]) == {1}
    assert names(walk, [2]) == {0, 2, 3, END}, "an end token exactly where the grammar may end"
    assert names(walk, [0, 0]) == set(), "a path that may not be written"
    assert names(walk, [2, END]) == set(), "nothing follows the end"
    assert names(walk, [0, 1]) == names(walk, [3]) == {0, 2, 3}
    walk.advance([0])
    assert names(walk) == {1}
    assert names(walk, [1, 2]) == {0, 2, 3, END}
    walk.advance([1, 2, END])
    assert names(walk) == set()


def test_what_is_likely_to_follow() -> None:
    """What begins no other token first, then the longer ones; nothing where too many may follow."""
    walk = compiled("(ab|c|b)+", ABC).start()
    mask, later = walk.allowed(()), walk.allowed([2])
    assert mask is not None
    assert later is not None
    assert list(walk.likely(mask)) == [3, 1, 2, 0]
    assert [token for token in walk.likely(later) if token != END] == [3, 1, 2, 0]
    many = Letters(*(bytes([i, j]) for i in range(97, 107) for j in range(97, 107)))
    wide = compiled("[a-j]+", many).start()
    anything = wide.allowed(())
    assert anything is not None
    assert not list(wide.likely(anything))


def test_end_tokens_are_those_of_the_request() -> None:
    assert names(compiled("a?", ABC, stop=[]).start()) == {0}, "eos ignored: it is never allowed"
    assert names(compiled("a?", ABC, stop=[]).start(), [0]) == set()
    assert names(compiled("a?", ABC, stop=[1]).start()) == {0}, "a stop token with text is text"


def test_a_walk_depends_on_its_tokens_alone() -> None:
    """Whatever was asked before, in any order, the mask is that of a walk that goes there straight."""
    rng = random.Random(1)
    grammar = compiled("(a|b{1,3}c|ab(c|a)b)*", ABC)
    wandering, output = grammar.start(), list[int]()
    for _ in range(120):
        path = rng.choices(range(5), k=rng.randint(0, 4))
        straight = grammar.start()
        straight.advance(output)
        assert names(wandering, path) == names(straight, path), (output, path)
        if rng.random() < 0.3 and (following := names(wandering) - {END}):
            token = rng.choice(sorted(following))
            wandering.advance([token])
            output.append(token)
    assert len(output) > 15


def test_min_tokens_holds_off_the_end_and_never_leaves_nothing_silently() -> None:
    params = replace(resolved(5, eos=[END], min_tokens=2), grammar=compiled("a?b?", ABC))
    first, last = allowed(params, History([1]), []), allowed(params, History([1]), [0, 1])
    assert first is not None
    assert set(np.flatnonzero(first)) == {0, 1, 3}
    assert allowed(params, History([1]), [1]) is None, "complete, and too early to end"
    assert last is not None
    assert set(np.flatnonzero(last)) == {END}


# ---- exactness, by enumeration ---------------------------------------------------------------------------

SHAPES = {"chain": Shape(2, 2), "tree": Shape(4, 2, 2)}


def grammar_case(options: dict[str, Any] | None = None) -> tuple[ResolvedParams, Language, Language]:
    """A language of 5 tokens under a grammar that forbids some of them at every turn but never ends by itself."""
    grammar = compiled("(ab|c|b(a|c))*", ABC)
    params = replace(resolved(5, verify="rejection", max_tokens=3, **(options or {}), eos=[END]), grammar=grammar)
    target = language(5, 3)

    def masked(text: tuple[int, ...]) -> list[float]:
        mask = grammar.start().allowed(text[2:])  # after the prompt
        logits = target(text)
        return logits if mask is None else [z if ok else -1e30 for z, ok in zip(logits, mask, strict=True)]

    return params, target, masked


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"top_p": 0.95, "repetition_penalty": 1.3}], ids=["bare", "processed"])
def test_rejection_is_exact_under_a_grammar(shape: str, options: dict[str, Any]) -> None:
    params, target, masked = grammar_case(options)
    exact = plain_distribution(masked, (1, 0), replace(params, grammar=None))
    assert all(allowed(params, History((1, 0)), text[:-1]) is not None for text in exact)
    propose = model_drafter(between(target, language(5, 1003), 0.6), 5, SHAPES[shape].branching)
    found = speculative_distribution(target, propose, (1, 0), params, SHAPES[shape])
    assert len(exact) > 8
    assert error(exact, found) < 1e-9


class Pathless:
    """Broken on purpose: masks of the committed output, whatever path was drafted after it."""

    def __init__(self, inner: TokenGrammar) -> None:
        self._inner = inner

    def start(self) -> Any:
        walk = self._inner.start()

        class Blind:
            advance = staticmethod(walk.advance)

            @staticmethod
            def allowed(path: Sequence[int]) -> Any:
                return walk.allowed(())

        return Blind()


@pytest.mark.parametrize("shape", ["chain", pytest.param("tree", marks=pytest.mark.slow)])
def test_masks_of_the_wrong_path_are_caught(shape: str) -> None:
    params, target, masked = grammar_case()
    exact = plain_distribution(masked, (1, 0), replace(params, grammar=None))
    propose = model_drafter(between(target, language(5, 1003), 0.6), 5, SHAPES[shape].branching)
    assert params.grammar is not None
    broken = replace(params, grammar=Pathless(params.grammar))
    assert error(exact, speculative_distribution(target, propose, (1, 0), broken, SHAPES[shape])) > 1e-4


def test_coupled_choices_at_every_node_are_those_of_plain_decoding() -> None:
    draft = Draft([0, 2, 1, 2, 3, 1], [ROOT, ROOT, 0, 1, 1, ROOT], [0.9] * 6)
    for temperature, seed in itertools.product((0.0, 1.0), range(12)):
        params, target, _ = grammar_case({"temperature": temperature, "seed": seed})
        params = replace(params, verify="coupled")
        rows = rows_of(target, request((1, 0), params), draft)
        for node in range(ROOT, len(draft)):
            path = [draft.tokens[i] for i in draft.path(node)]
            alone = rows_of(target, request((1, 0), params, path), Draft()).choose(ROOT)
            assert rows.choose(node) == alone
            assert allowed(params, History((1, 0)), path)[alone]  # type: ignore[index]


# ---- the real model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(drafter="auto", draft_length=10, max_batch=4, max_context=512)


def ask(llm: LLM, text: str) -> list[int]:
    return llm.encode_chat([{"role": "user", "content": text}])


def test_json_for_a_schema_plain_and_speculative(llm: LLM, pace: Pace) -> None:
    """The same tokens with every drafter, alone and in a batch, greedy and sampled; what ends is valid."""
    grammars = [Grammar.json_schema(PERSON), Grammar.json_object(), Grammar.json_schema(PERSON), None]
    prompts = [ask(llm, f"{text[:60]} Answer in JSON with name, age and kind.") for text in PROMPTS[:4]]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=32, grammar=grammar)
        for seed, (grammar, temperature) in enumerate(zip(grammars, (0, 1.0, 0.8, 1.0), strict=True))
    ]
    plain = llm.generate(prompts, params, speculate=False)
    accepted, ended = 0, 0
    for name in ("suffix", "head+suffix"):
        done = llm.with_drafter(name, FixedLength(4)).generate(prompts, params)
        assert [c.token_ids for c in done] == [c.token_ids for c in plain], name
        accepted += sum(c.accepted for c in done[:3])
    for i in range(4 if pace.full else 2):  # a greedy one and a sampled one
        assert llm.generate(prompts[i : i + 1], params[i])[0].token_ids == plain[i].token_ids
    for completion, grammar in zip(plain, grammars, strict=True):
        if grammar is not None and completion.finish_reason == "stop":
            ended += 1
            value = json.loads(completion.text)
            if grammar == grammars[0]:
                assert set(value) == {"name", "age", "kind"}
                assert isinstance(value["age"], int)
                assert value["kind"] in ("human", "robot")
    assert ended >= 2
    assert accepted >= 30


def test_rejection_keeps_to_the_grammar(llm: LLM) -> None:
    params = SamplingParams(
        temperature=1.3, seed=5, max_tokens=48, grammar=Grammar.json_schema(PERSON), verify="rejection"
    )
    prompt = ask(llm, "A robot as JSON.")
    done = llm.generate([prompt] * 4, [replace(params, seed=seed) for seed in range(4)])
    ended = [c for c in done if c.finish_reason == "stop"]
    assert ended
    for completion in ended:
        assert set(json.loads(completion.text)) == {"name", "age", "kind"}


def test_no_dead_ends(llm: LLM) -> None:
    """Complete but not allowed to end: the request ends there, whoever drafted."""
    prompt, grammar = ask(llm, "Yes or no?"), Grammar.regex("(yes|no)!?")
    for options in ({"ignore_eos": True}, {"min_tokens": 30}, {"logit_bias": {0: -100.0, 2: -100.0}}):
        params = SamplingParams(temperature=0, max_tokens=30, grammar=grammar, **options)
        fast, plain = (llm.generate([prompt], params, speculate=s)[0] for s in (True, False))
        assert fast.token_ids == plain.token_ids
        assert fast.finish_reason == "stop"
        assert fast.text in ("yes", "no", "yes!", "no!")
    stopped = llm.generate(
        [prompt], SamplingParams(temperature=0, grammar=Grammar.regex("one, two, three"), stop="two")
    )
    assert (stopped[0].text, stopped[0].finish_reason) == ("one, ", "stop")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        Grammar.json_schema({"type": "string", "enum": []}),
        Grammar.json_schema({"type": "nonsense"}),
        Grammar.json_schema({"$ref": "#/nowhere"}),
        Grammar.json_schema({"type": "array", "uniqueItems": True}),
        Grammar.regex("(unclosed"),
    ],
)
def test_what_cannot_be_kept_is_refused_when_asked(llm: LLM, grammar: Grammar) -> None:
    with pytest.raises(InvalidRequest, match=r"grammar: .*compiled or satisfied"):
        llm.requests.build("Hello", SamplingParams(grammar=grammar))


# ---- llguidance's limits ---------------------------------------------------------------------------------


def branches(count: int) -> dict[str, Any]:
    """So many kinds of objects: beyond 2,000 llguidance gives up after the brace."""
    kinds = [
        {"type": "object", "properties": {f"k{i}": {"type": "integer"}}, "required": [f"k{i}"]} for i in range(count)
    ]
    return {"anyOf": kinds}


def holding(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": value}, "required": ["x"], "additionalProperties": False}


LONG = holding({"type": "string", "pattern": "^a{50000}$"})


@pytest.mark.parametrize(
    "schema",
    [
        branches(5000),
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}},
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(60_000)}},
    ],
    ids=["branches", "properties", "schema"],
)
def test_what_is_too_large_is_refused_when_asked(llm: LLM, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"grammar: .*too large"):
        llm.requests.build("Hello", SamplingParams(grammar=Grammar.json_schema(schema)))


@pytest.mark.parametrize("speculate", [True, False])
def test_what_turns_out_too_large_is_an_error_and_no_end(llm: LLM, speculate: bool) -> None:
    grammar = Grammar.json_schema(holding(branches(2500)))
    params = SamplingParams(temperature=0, max_tokens=60, grammar=grammar)
    with pytest.raises(RequestFailed, match=r"grammar: it is too large.* items"):
        llm.generate([ask(llm, "An object as JSON.")], params, speculate=speculate)
    assert llm.engine.idle
    assert llm.engine.leaks() == []
    cut = llm.generate([ask(llm, "An object as JSON.")], replace(params, max_tokens=1), speculate=speculate)[0]
    assert cut.finish_reason == "length", "whoever asks for no more is not told"


@pytest.mark.parametrize("speculate", [True, False])
def test_a_long_pattern_goes_on_after_a_limit(llm: LLM, speculate: bool) -> None:
    """One that was met because of all that was asked before, and not by this output."""
    params = SamplingParams(temperature=0, max_tokens=40, grammar=Grammar.json_schema(LONG))
    done = llm.generate([ask(llm, "An object as JSON.")] * 2, params, speculate=speculate)
    for each in done:
        assert each.finish_reason == "length"
        assert re.fullmatch(r'\{\s*"x"\s*:\s*"a{20,}', each.text)


def test_one_walks_limit_is_not_anothers(llm: LLM) -> None:
    """Copies of a matcher share what it has used up, and one that is spoiled silently takes nothing."""
    grammars = Grammars(llm.tokenizer, llm.model.vocab_size)
    begin = llm.tokenizer.encode('{"x": "', add_special_tokens=False)
    four = llm.tokenizer.encode("aaaa", add_special_tokens=False)

    def walk(of: Grammars) -> Walk:
        return of.compile(Grammar.json_schema(LONG), llm.tokenizer.eos_token_ids).start()

    expected = names(walk(Grammars(llm.tokenizer, llm.model.vocab_size)), begin)
    first, second = walk(grammars), walk(grammars)
    for path in ([], begin, [*begin, *four], [*begin, *four, *four]):
        assert names(first, path), "a fresh matcher gets there"
        assert first.limit(path) is None
    assert first._restarts, "nothing was met, and nothing is shown"
    assert names(second, begin) == names(walk(grammars), begin) == expected != set()
    assert second.allowed([begin[0], begin[0]]) is None, "what may not be written still may not"
    assert second.limit([begin[0], begin[0]]) is None


def test_a_grammar_of_nothing_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="grammar: nothing can be written"):
        llm.requests.build("Hello", SamplingParams(grammar=Grammar.regex(""), ignore_eos=True))


@pytest.mark.parametrize("bad", [{"type": {1, 2}}, {"minimum": float("nan")}, "a schema", 7])
def test_what_is_no_schema(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="grammar"):
        Grammar.json_schema(bad)
    with pytest.raises(InvalidRequest, match="grammar must be a Grammar"):
        SamplingParams(grammar=bad)


def test_without_llguidance(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'outrider\[grammar\]'"):
        llm.requests.build("Hello", SamplingParams(grammar=Grammar.regex("never seen before")))
