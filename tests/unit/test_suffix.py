"""The suffix automaton against brute force, and what the suffix drafter proposes."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Sequence_, numbered

from outrider.core.draft import ROOT, Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import RequestView
from outrider.drafters.automaton import NO_TOKEN, ROOT_STATE, RollingAutomaton, SuffixAutomaton
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixConfig, SuffixDrafter
from outrider.errors import InvalidRequest

texts = st.lists(st.integers(0, 2), max_size=30)
OPEN = Budget(nodes=12, depth=12)


# -- brute force


def occurrences(documents: Sequence[Sequence[int]], part: Sequence[int]) -> int:
    n = len(part)
    return sum(list(d[i : i + n]) == list(part) for d in documents for i in range(len(d) - n + 1))


def substrings(documents: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    return {tuple(d[i:j]) for d in documents for i in range(len(d)) for j in range(i + 1, len(d) + 1)}


def walk(automaton: SuffixAutomaton, part: Sequence[int]) -> int:
    """The state that reading `part` from the root leads to; -1 if the automaton does not recognise it."""
    state = ROOT_STATE
    for token in part:
        state = automaton.step(state, token)
        if state < 0:
            return -1
    return state


def build(documents: Sequence[Sequence[int]], counted: int = 1000) -> SuffixAutomaton:
    automaton = SuffixAutomaton(counted)
    for document in documents:
        automaton.restart()
        automaton.extend(document)
    return automaton


def transitions(automaton: SuffixAutomaton) -> int:
    return sum(t != NO_TOKEN for t in automaton.first) + sum(len(b) for b in automaton.branches if b is not None)


# -- the automaton


@given(st.lists(texts, max_size=3), texts)
def test_recognises_exactly_the_substrings(documents: list[list[int]], other: list[int]) -> None:
    automaton, known = build(documents), substrings(documents)
    assert all(walk(automaton, part) >= 0 for part in known)
    assert all((walk(automaton, part) >= 0) == (part in known) for part in substrings([other]))


@given(texts)
def test_link_of_last_is_the_longest_repeated_suffix(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.extend([token])
        longest = max((n for n in range(1, end) if occurrences([text[:end]], text[end - n : end]) > 1), default=0)
        assert automaton.length[automaton.link[automaton.last]] == longest


@settings(deadline=None)
@given(st.lists(texts, max_size=3))
def test_counts_are_numbers_of_occurrences(documents: list[list[int]]) -> None:
    automaton, capped = build(documents), build(documents, counted=2)
    for part in substrings(documents):
        real = occurrences(documents, part)
        assert automaton.count[walk(automaton, part)] == real
        assert 1 <= capped.count[walk(capped, part)] <= real


@given(st.lists(st.integers(0, 3), min_size=3, max_size=300))
def test_size_is_linear(text: list[int]) -> None:
    automaton = build([text])
    assert len(automaton.length) <= 2 * len(text) - 1
    assert transitions(automaton) <= 3 * len(text) - 4


@given(st.lists(texts, max_size=3), texts)
def test_match_finds_the_longest_known_suffix(documents: list[list[int]], query: list[int]) -> None:
    automaton, known = build(documents), substrings(documents)
    state, matched = automaton.match(query)
    assert matched == max((n for n in range(1, len(query) + 1) if tuple(query[-n:]) in known), default=0)
    assert state == walk(automaton, query[len(query) - matched :])


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_a_match_survives_the_growth_of_the_text(documents: list[list[int]], query: list[int]) -> None:
    automaton = SuffixAutomaton()
    state, matched = ROOT_STATE, 0
    for i, document in enumerate(documents):
        automaton.restart()
        automaton.extend(document)
        state = automaton.settle(state, matched)
        assert state == walk(automaton, query[:i][len(query[:i]) - matched :])
        if i < len(query):
            state, matched = automaton.advance(state, matched, query[i])


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(1, 7), st.integers(0, 2**32))
def test_rolling_keeps_the_newest_half_and_never_more_than_the_limit(limit: int, piece: int, seed: int) -> None:
    draw = random.Random(seed)
    rolling, text = RollingAutomaton(limit), []
    for _ in range(60):
        new = [draw.randrange(3) for _ in range(piece)]
        text += new
        rolling.extend(new)
        live = rolling.live
        assert min(len(text), limit // 2) <= live.size < limit
        newest = text[len(text) - live.size :]
        assert walk(live, newest) == live.last  # exactly the newest tokens, in one piece
        assert len(live.length) <= 2 * limit
    assert rolling.epoch > 0 or len(text) < limit


# -- the drafter


def propose(drafter: Drafter, request: Sequence_, budget: Budget = OPEN) -> Draft:
    (draft,) = drafter.propose([request], [budget])
    return draft


def started(tokens: list[int], config: SuffixConfig | None = None) -> tuple[SuffixDrafter, Sequence_]:
    drafter, request = SuffixDrafter(config), numbered(0, tokens)
    drafter.open(request)
    return drafter, request


def paths(draft: Draft) -> list[list[int]]:
    leaves = set(range(len(draft))) - set(draft.parents)
    return [[draft.tokens[n] for n in draft.path(leaf)] for leaf in sorted(leaves)]


def check(draft: Draft, budget: Budget) -> None:
    assert len(draft.tokens) == len(draft.parents) == len(draft.confidence) <= budget.nodes
    seen = set()
    for node, parent in enumerate(draft.parents):
        assert ROOT <= parent < node
        assert (parent, draft.tokens[node]) not in seen
        seen.add((parent, draft.tokens[node]))
        above = 1.0 if parent == ROOT else draft.confidence[parent]
        assert budget.floor <= draft.confidence[node] <= above
        assert len(draft.path(node)) <= budget.depth
    if not budget.tree:
        assert list(draft.parents) == list(range(-1, len(draft) - 1))


budgets = st.builds(Budget, st.integers(0, 20), st.integers(0, 8), st.floats(0, 0.6), st.booleans())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=12), budgets),
        max_size=40,
    ),
    st.booleans(),
)
def test_every_draft_keeps_the_invariants(steps: list[tuple[int, list[int], Budget]], shared: bool) -> None:
    """Three requests at a time that end and begin anew, with a history that gets dropped on the way."""
    drafter = SuffixDrafter(SuffixConfig(shared_history=shared, shared_tokens=30, request_tokens=24))
    running: dict[int, Sequence_] = {}
    for slot, new, budget in steps:
        if slot not in running:
            running[slot] = numbered(slot, list(new))
            drafter.open(running[slot])
            continue
        request = running[slot]
        draft = propose(drafter, request, budget)
        check(draft, budget)
        request.tokens.extend(new)
        drafter.observe([VerifiedDraft(request, draft, (), tuple(new))])
        if new[-1] == 0:
            drafter.close(running.pop(slot))


def test_proposes_what_followed_before() -> None:
    drafter, request = started([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert paths(propose(drafter, request, Budget(3, 3))) == [[4, 5, 6]]


def test_new_tokens_are_seen_without_observe() -> None:
    drafter, request = started([1, 2, 3, 4, 5, 6])
    assert len(propose(drafter, request)) == 0
    request.tokens.extend([9, 1, 2])
    assert propose(drafter, request).tokens[0] == 3


def test_branches_where_the_text_did_and_prefers_the_frequent() -> None:
    drafter, request = started([7, 1, 8, 7, 2, 8, 7, 2, 9, 7])
    draft = propose(drafter, request)
    first = [draft.tokens[n] for n in draft.children(ROOT)]
    assert first[:2] == [2, 1]
    chain = propose(drafter, request, Budget(4, 4, tree=False))
    assert chain.tokens[0] == 2
    assert paths(chain) == [list(chain.tokens)]


def test_a_loop_is_continued_past_the_end_of_the_text() -> None:
    drafter, request = started([1, 2, 3] * 4)
    assert paths(propose(drafter, request, Budget(10, 10, tree=False))) == [[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]]


def test_longer_matches_are_claimed_with_more_confidence() -> None:
    short = propose(*started([5, 1, 9, 8, 7, 1]))
    long = propose(*started([5, 6, 7, 1, 9, 8, 0, 5, 6, 7, 1]))
    assert (short.tokens[0], long.tokens[0]) == (9, 9)
    assert long.confidence[0] > short.confidence[0]


def test_nothing_is_proposed_for_what_never_occurred() -> None:
    drafter, request = started([1, 2, 3, 4])
    assert len(propose(drafter, request)) == 0
    assert len(propose(drafter, request, Budget(0, 4))) == 0
    assert len(propose(drafter, request, Budget(4, 0))) == 0


def finish(drafter: SuffixDrafter, number: int, prompt: list[int], output: list[int]) -> None:
    request = numbered(number, list(prompt))
    drafter.open(request)
    request.tokens.extend(output)
    propose(drafter, request)
    drafter.close(request)


def test_finished_requests_help_later_ones_if_shared() -> None:
    for shared in (True, False):
        drafter, running = started([50, 51], SuffixConfig(shared_history=shared))
        finish(drafter, 1, [10, 11, 12], [20, 21, 22, 23])
        running.tokens.extend([20, 21])
        assert list(propose(drafter, running).tokens[:2]) == ([22, 23] if shared else [])


def test_what_nobody_looked_anything_up_for_is_not_remembered() -> None:
    """Nor taken in at all: a host that looks nothing up has no work with it."""
    drafter, other = started([10])
    other.tokens.extend([20, 21, 22])
    drafter.close(other)
    assert drafter.texts.remembered == 0


def test_no_match_spans_two_finished_requests() -> None:
    drafter, running = started([50])
    finish(drafter, 1, [10], [20, 21])
    finish(drafter, 2, [30], [31, 32])
    running.tokens.extend([20, 21])
    assert len(propose(drafter, running)) == 0


def test_history_is_dropped_and_matches_are_found_anew() -> None:
    drafter, running = started([50], SuffixConfig(shared_tokens=40))
    finish(drafter, 1, [10], [20, 21, 22])
    running.tokens.extend([20, 21])
    assert propose(drafter, running).tokens[0] == 22
    for i in range(2, 12):
        finish(drafter, i, [100 + i], list(range(200 + 9 * i, 209 + 9 * i)))
    assert len(propose(drafter, running)) == 0  # request 1 is long forgotten
    running.tokens.extend([299, 300])
    assert propose(drafter, running).tokens[0] == 301  # the newest one is not


def test_closed_requests_leave_only_the_bounded_history() -> None:
    drafter = SuffixDrafter(SuffixConfig(shared_tokens=500))
    draw = random.Random(0)
    for i in range(60):
        finish(drafter, i, [draw.randrange(50) for _ in range(50)], [draw.randrange(50) for _ in range(100)])
    assert drafter.held == 0
    assert 0 < drafter.texts.remembered < 500


def test_what_was_said_stays_with_its_salt() -> None:
    drafter = SuffixDrafter(SuffixConfig(shared_tokens=500))
    said = numbered(0, [10, 11, 12], cache_salt="ann")
    drafter.open(said)
    said.tokens.extend([20, 21, 22, 23])
    propose(drafter, said)
    drafter.close(said)
    for number, salt in enumerate(("ann", "bob", None), 1):
        asking = numbered(number, [50, 51, 20, 21], cache_salt=salt)
        drafter.open(asking)
        assert list(propose(drafter, asking).tokens[:2]) == ([22, 23] if salt == "ann" else [])
        drafter.close(asking)


def test_salts_made_up_without_end_take_no_more_room() -> None:
    drafter = SuffixDrafter(SuffixConfig(shared_tokens=200))
    draw = random.Random(0)
    for i in range(300):
        said = numbered(i, [1, 2], cache_salt=f"salt {i}")
        drafter.open(said)
        asking = numbered(1000 + i, [5], cache_salt=f"salt {i - 1}")
        drafter.open(asking)
        said.tokens.extend(draw.randrange(50) for _ in range(draw.randrange(1, 90)))
        propose(drafter, said)
        drafter.close(said)
        asking.tokens.extend(said.tokens)
        propose(drafter, asking)
        drafter.close(asking)
        assert drafter.texts.remembered <= 200


@pytest.mark.parametrize("field_name", ["shared_tokens", "request_tokens"])
def test_bounds_are_checked(field_name: str) -> None:
    with pytest.raises(InvalidRequest, match=field_name):
        SuffixConfig(**{field_name: 1})  # type: ignore[arg-type]


# -- does it pay? Greedy replay of an edit: the reply repeats the prompt's code with changes.


class PromptLookup(Drafter):
    """The usual prompt lookup: two tokens, then one, first occurrence, ten tokens."""

    name = "lookup"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        text = requests[0].tokens
        for n in (2, 1):
            for i in range(len(text) - n):
                if text[i : i + n] == text[-n:]:
                    found = text[i + n : i + n + 10]
                    return [Draft(found, range(-1, len(found) - 1), [0.5] * len(found), self.name)]
        return [Draft()]


def tokens_per_pass(drafter: Drafter, prompt: list[int], output: list[int], budget: Budget) -> float:
    request = numbered(0, list(prompt))
    drafter.open(request)
    done, passes = 0, 0
    while done < len(output):
        draft = propose(drafter, request, budget)
        path: list[int] = []
        node = ROOT
        while done + len(path) < len(output):
            wanted = output[done + len(path)]
            node = next((c for c in draft.children(node) if draft.tokens[c] == wanted), ROOT)
            if node == ROOT:
                break
            path.append(node)
        new = output[done : done + len(path) + 1]
        request.tokens.extend(new)
        drafter.observe([VerifiedDraft(request, draft, tuple(path), tuple(new))])
        done += len(new)
        passes += 1
    return len(output) / passes


def edit_task() -> tuple[list[int], list[int]]:
    """Code that no change of ours changes."""
    code = Path(textwrap.__file__).read_text()[:6000]
    edited = code.replace("text", "prose").replace("width", "breadth").replace('"""', "'''")
    edited = re.sub(r"\n\n\n", "\n\n# ----\n\n", edited)
    ids: dict[str, int] = {}
    split = re.compile(r"\w{1,5}|[ \n]+|[^\w\s]")
    prompt, output = ([ids.setdefault(w, len(ids)) for w in split.findall(t)] for t in (code, edited))
    return prompt, output


@pytest.mark.parametrize("nodes", [8, 16])
def test_edits_beat_ngram_and_the_usual_prompt_lookup(nodes: int) -> None:
    prompt, output = edit_task()
    budget = Budget(nodes, nodes)
    suffix = tokens_per_pass(SuffixDrafter(), prompt, output, budget)
    ngram = tokens_per_pass(NgramDrafter(), prompt, output, budget)
    lookup = tokens_per_pass(PromptLookup(), prompt, output, budget)
    assert suffix > 1.1 * ngram
    assert suffix > 1.3 * lookup
    assert suffix > 3
