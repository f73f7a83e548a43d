"""What a grammar leaves no choice about is drafted for nothing, and changes no token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider import LLM, Grammar, SamplingParams
from outrider.control.auto import AutoLength
from outrider.control.controller import FixedLength
from outrider.control.forced import NAME, allowed, carried_on, forced
from outrider.core.draft import Draft, Speculation
from outrider.core.request import Completion, Forced, RequestView
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.sampling.grammar import Grammars
from outrider.sampling.grammar_walk import Walk
from outrider.sampling.layout import Layout
from outrider.server.tools.dialect import GENERIC
from outrider.server.tools.rules import Function, rules

FROM = {"type": "array", "items": {"enum": ["n", "s"]}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "日本語": {"enum": ["émile", "éole"]},
        "wind": {
            "type": "object",
            "properties": {"gusts": {"type": "boolean"}, "directions": FROM},
            "required": ["gusts", "directions"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "unit", "日本語", "wind"],
    "additionalProperties": False,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "type": "object",
    "properties": {name: SCHEMA["properties"][name] for name in ("city", "unit")},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
VALUE = {"city": "Rome", "unit": "celsius", "日本語": "éole", "wind": {"gusts": False, "directions": ["n", "s"]}}
JSON = Grammar.json_schema(SCHEMA)
CALL = rules(GENERIC, [Function("get_weather", SMALL)], {}, text=False, several=False)
GRAMMARS = {"json": Grammar.json_schema(SMALL), "call": CALL, "regex": Grammar.regex("(yes, certainly|no, never)!+")}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", drafter="suffix", remember=False, max_batch=1, max_context=256)


def walk(checkpoint: Checkpoint, grammar: Grammar, text: str = "") -> tuple[Walk, list[int]]:
    words = checkpoint.tokenizer
    compiled = Grammars(words, words.vocab_size).compile(grammar, words.eos_token_ids)
    return compiled.start(), words.encode(text)


@pytest.mark.parametrize("indent", [None, 2, 4, "compact"])
def test_certain_tokens_are_the_only_ones_and_guesses_mostly_right(default_checkpoint: Checkpoint, indent: Any) -> None:
    """Along an answer in each of the usual layouts: what it costs in passes is told by what is guessed."""
    layout: Any = {"separators": (",", ":")} if indent == "compact" else {"indent": indent}
    text = json.dumps(VALUE, ensure_ascii=False, **layout)
    here, tokens = walk(default_checkpoint, JSON, text)
    passes = at = 0
    while at < len(tokens):
        known = here.forced()
        for i in range(known.certain):
            mask = here.allowed(known.tokens[:i])
            assert mask is not None
            assert mask.nonzero()[0].tolist() == [known.tokens[i]]
        agreed = 0
        while agreed < len(known.tokens) and known.tokens[agreed] == (tokens[at : at + agreed + 1] or [-1])[-1]:
            agreed += 1
        step = tokens[at : at + agreed + 1]
        here.advance(step)
        at, passes = at + len(step), passes + 1
    assert here.forced().tokens == (default_checkpoint.tokenizer.eos_token_ids[0],)
    assert len(tokens) / passes > 2.2


def test_looking_ahead_moves_nothing(default_checkpoint: Checkpoint) -> None:
    text = json.dumps(VALUE, ensure_ascii=False)
    looked, tokens = walk(default_checkpoint, JSON, text)
    blind, _ = walk(default_checkpoint, JSON)
    for token in tokens:
        looked.forced()
        one, other = looked.allowed(()), blind.allowed(())
        assert one is not None
        assert (one == other).all()
        assert one[token]
        looked.advance([token])
        blind.advance([token])


@pytest.mark.parametrize("indent", [None, 2])
def test_what_follows_a_path_is_what_will_follow_once_it_is_written(
    default_checkpoint: Checkpoint, indent: Any
) -> None:
    words = default_checkpoint.tokenizer
    compiled = Grammars(words, words.vocab_size).compile(JSON, words.eos_token_ids)
    tokens, here = words.encode(json.dumps(VALUE, ensure_ascii=False, indent=indent)), compiled.start()
    for at in range(0, len(tokens), 5):
        for stop in range(at, min(at + 5, len(tokens))):
            there = compiled.start()
            there.advance(tokens[:stop])
            assert here.forced(tokens[at:stop]) == there.forced()
        here.advance(tokens[at : at + 5])


def test_a_draft_keeps_what_masks_allow(default_checkpoint: Checkpoint) -> None:
    """Over a tree of right and wrong turns along an answer, its end among them."""
    words = default_checkpoint.tokenizer
    text = json.dumps(VALUE, ensure_ascii=False)
    here, answer_ = walk(default_checkpoint, JSON, text)
    eos, seen = words.eos_token_ids[0], set()
    for at in range(len(answer_) + 1):
        rest = [*answer_[at : at + 4], *[eos] * (at + 4 > len(answer_))]
        wrong = [*words.encode(' "wind'), eos]
        tokens, parents, length = [*rest], list(range(-1, len(rest) - 1)), len(rest)
        for node in range(-1, length):  # and wrong ones after the root and each of them, where they are wrong
            for token in wrong:
                if token != (tokens[node + 1] if node + 1 < length else None):
                    tokens.append(token)
                    parents.append(node)
        draft = Draft(tokens, parents, [0.5] * len(tokens), "x")
        masks = [here.allowed([tokens[i] for i in draft.path(parent)]) for parent in parents]
        may = [mask is not None and bool(mask[token]) for mask, token in zip(masks, tokens, strict=True)]
        assert here.legal(draft) == [node for node, yes in enumerate(may) if yes]
        seen |= set(may)
        here.advance(answer_[at : at + 1])
    assert seen == {True, False}


def test_a_guess_is_carried_on_where_the_grammar_leaves_no_choice(default_checkpoint: Checkpoint) -> None:
    """A head guesses that the string ends; it does not know the next key, nor that it must come."""
    words = default_checkpoint.tokenizer
    here, _ = walk(default_checkpoint, CALL)
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome'
    here.advance(words.encode(text))
    end, other, wrong = (words.encode(each)[0] for each in ('",', " Rome", "}"))
    guessed = Draft([end, other, wrong], [-1, -1, 0], [0.6, 0.3, 0.1], "head")
    request = SimpleNamespace(walk=here)
    kept = allowed(cast(RequestView, request), guessed)
    assert list(kept.tokens) == [end, other]  # no brace after a comma
    draft = carried_on(here, kept, 16, 0.2)
    last = max(range(len(draft)), key=lambda node: len(draft.path(node)))
    assert words.decode([draft.tokens[node] for node in draft.path(last)]).startswith('", "unit": "')
    assert set(draft.sources) == {"head", NAME}
    assert all(draft.sources[node] == NAME for node in draft.path(last)[1:])
    claims = [draft.confidence[node] for node in draft.path(last)]
    assert claims == sorted(claims, reverse=True)
    assert len(carried_on(here, kept, 3, 0.2)) < len(draft)
    assert carried_on(here, kept, 16, 0.7) is kept  # nothing likely enough


@pytest.mark.parametrize(
    ("written", "guesses"),
    [
        (b"", []),
        (b"{", []),  # nothing is known yet
        (b'{"a', []),
        (b'{"a"', [b":", b",", b"}"]),
        (b'{"a": 1', []),  # it may go on
        (b'{"a": true', [b":", b",", b"}"]),
        (b'{"a": true,', [b' "']),
        (b'{"a": true,"b": false,', [b'"']),
        (b'{"a":1, "b":', []),
        (b'{\n    "a": null', [b":", b",", b"\n}"]),
        (b'{\n    "a": null,', [b'\n    "']),
        (b'{\n    "a": null,\n ', [b'   "']),
        (b'{\n    "a": {', [b'\n        "']),
        (b'{"a": "}\\"{", "b": [{', [b'"']),
        (b'{"a": ["x"', [b":", b",", b"]"]),
    ],
)
def test_json_goes_on_as_it_began(written: bytes, guesses: list[bytes]) -> None:
    layout = Layout()
    layout.feed(written)
    assert layout.guesses() == guesses


def answer(llm: LLM, grammar: Grammar, speculation: Speculation, **params: Any) -> Completion:
    asked = [{"role": "user", "content": "How is the weather in Paris? Answer in JSON."}]
    return llm.chat(asked, SamplingParams(max_tokens=60, grammar=grammar, **params), speculation=speculation)


CASES = {
    "tree": ("json", FixedLength(8)),
    "chain": ("call", FixedLength(8, tree=False)),
    "auto": ("json", AutoLength()),
    "words": ("regex", AutoLength()),
}


@pytest.mark.parametrize(
    ("name", "controller"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (name == "chain")) for name, case in CASES.items()],
    ids=CASES,
)
def test_the_same_tokens_with_and_without(llm: LLM, name: str, controller: Any) -> None:
    drafting = llm.with_drafter("suffix", controller)
    for params in ({"temperature": 0}, {"temperature": 1.1, "top_p": 0.95, "seed": 6}):
        plain = answer(drafting, GRAMMARS[name], Speculation(max_nodes=0), **params)
        without = answer(drafting, GRAMMARS[name], Speculation(forced=False), **params)
        with_ = answer(drafting, GRAMMARS[name], Speculation(), **params)
        assert plain.token_ids == without.token_ids == with_.token_ids
        assert NAME not in plain.sources
        assert NAME not in without.sources
        if isinstance(controller, FixedLength) and not params["temperature"]:
            # Whether it pays is otherwise the machine's to say, and blanks at random are not foreseen.
            assert with_.sources[NAME].accepted > 0.5 * with_.sources[NAME].drafted
            assert with_.steps < 0.6 * plain.steps


def test_what_is_proposed_wrongly_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = answer(llm, CALL, Speculation(max_nodes=0), temperature=0)
    drafting = llm.with_drafter("none", FixedLength(8))
    truth = Walk.forced

    def wrong(self: Walk, path: Sequence[int] = ()) -> Forced:
        known = truth(self, path)
        return Forced(tuple(token ^ 1 for token in known.tokens), known.certain)

    monkeypatch.setattr(Walk, "forced", wrong)
    lied = answer(drafting, CALL, Speculation(), temperature=0)
    assert lied.token_ids == plain.token_ids
    assert lied.sources[NAME].drafted > 0
    assert lied.sources[NAME].accepted == 0


def test_drafts_of_a_grammar_keep_to_the_budget() -> None:
    known = Forced((4, 5, 6, 7), 2)
    assert len(forced(Forced(), 3)) == len(forced(known, 0)) == 0
    draft = forced(known, 3)
    assert list(draft.tokens) == [4, 5, 6]
    assert list(draft.parents) == [-1, 0, 1]
    assert list(draft.confidence) == sorted(draft.confidence, reverse=True)
