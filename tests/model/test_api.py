"""What `outrider` exports: the names, their page in the docs, and the promises of `LLM` that no other test is about."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_llm import VOCAB, tiny_llm

import outrider
from outrider import (
    LLM,
    Budget,
    Draft,
    Drafter,
    InvalidRequest,
    RequestView,
    SamplingParams,
    Speculation,
    VerifiedDraft,
)
from outrider.cli.api_reference import page
from outrider.core.draft import ROOT

DOCS = Path(__file__).parents[2] / "docs"
FEW = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
TOOL_TEMPLATE = TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}"


def test_exported_names() -> None:
    """Each is what it says, from wherever it lives; and nothing else is exported by accident."""
    assert sorted(outrider.__all__) == sorted(set(outrider.__all__))
    for name in set(outrider.__all__) - {"__version__"}:
        assert getattr(outrider, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        outrider.Engine  # noqa: B018


def test_importing_outrider_imports_no_torch() -> None:
    told = "import sys, outrider; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_page_of_the_api_is_up_to_date() -> None:
    hint = "run: python -m outrider.cli.api_reference > docs/api.md"
    assert (DOCS / "api.md").read_text(encoding="utf-8") == page(), hint


class Alphabet(Drafter):
    """A drafter of one's own: after every token comes the next one."""

    name = "alphabet"

    def __init__(self) -> None:
        self.asked = 0
        self.open_ids: set[int] = set()

    def open(self, request: RequestView) -> None:
        self.open_ids.add(request.id)

    def propose(self, requests: Any, budgets: Any) -> list[Draft]:
        self.asked += len(requests)
        return [self._next(s, b) for s, b in zip(requests, budgets, strict=True)]

    def _next(self, request: RequestView, budget: Budget) -> Draft:
        count = min(budget.nodes, budget.depth)
        tokens = [(request.tokens[-1] + 1 + i) % VOCAB for i in range(count)]
        return Draft(tokens, range(ROOT, count - 1), [0.5 ** (i + 1) for i in range(count)], self.name)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        assert all(each.request.id in self.open_ids for each in verified)

    def close(self, request: RequestView) -> None:
        self.open_ids.remove(request.id)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return tiny_llm(tmp_path_factory.mktemp("llm"), also=("ngram",), template=TOOL_TEMPLATE)


def test_speculation_for_all_or_for_each(llm: LLM) -> None:
    prompts = ["abab abab abab", "hello hello hello"]
    plain = llm.generate(prompts, FEW, speculate=False)
    ways = [Speculation(drafter="ngram", max_nodes=2), Speculation(prediction=tuple(plain[1].token_ids))]
    each, one = llm.generate(prompts, FEW, speculation=ways), llm.generate(prompts, FEW, speculation=ways[0])
    nothing = llm.generate(prompts, FEW, speculation=Speculation(max_nodes=0))
    for done in (each, one, nothing):
        assert [c.token_ids for c in done] == [c.token_ids for c in plain]
    assert not any(c.drafted for c in (*plain, *nothing))
    assert set(each[0].sources) <= {"ngram"}
    assert each[1].sources["prediction"].accepted >= 8
    assert each[1].steps < plain[1].steps
    assert all(c.drafted <= 2 * c.steps for c in one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculation": {"max_nodes": 1}}, "speculation must be a Speculation"),
        ({"speculation": [Speculation()] * 2}, "1 prompts need as many"),
        ({"speculation": Speculation(), "speculate": False}, "not both"),
        ({"speculation": Speculation(drafter="magic")}, "there is no 'magic' here"),
    ],
)
def test_speculation_that_is_none(llm: LLM, options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate("a", FEW, **options)


def test_plain_requests_are_nobodys(tmp_path: Path) -> None:
    """No drafter is opened for them, asked or taught; and beside drafted ones everybody gets the same tokens."""
    drafter = Alphabet()
    llm = tiny_llm(tmp_path, drafter=drafter)
    plain = llm.generate("abc", FEW, speculate=False)[0].token_ids
    assert drafter.asked == 0
    ways = [Speculation(), Speculation(max_nodes=0)]
    both = llm.generate(["abc"] * 2, FEW, speculation=ways)
    assert [c.token_ids for c in both] == [plain, plain]
    assert 0 < drafter.asked <= both[0].steps
    assert both[0].drafted > 0 == both[1].drafted
    assert not drafter.open_ids


def test_chat_with_a_system_prompt_and_tools(llm: LLM) -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert llm.tokenizer.decode(llm.encode_chat(said)) == "[system] Be brief.\n[user] Hi\n"
    assert '"name": "look"' in llm.tokenizer.decode(llm.encode_chat(said, tools=tools))
    whole = llm.chat(said, FEW, tools=tools, speculation=Speculation(max_nodes=3))
    chunks = list(llm.stream_chat(said, FEW, tools=tools))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    last = chunks[-1].completion
    assert last is not None
    assert last.token_ids == whole.token_ids
    for wrong in ({"name": "look"}, ["look"], "look"):
        with pytest.raises(InvalidRequest, match="tools"):
            llm.chat(said, FEW, tools=wrong)  # type: ignore[arg-type]


def test_tools_that_the_template_would_drop_are_refused(tmp_path: Path) -> None:
    llm = tiny_llm(tmp_path, template=TEMPLATE)
    with pytest.raises(InvalidRequest, match="does not know any"):
        llm.chat([{"role": "user", "content": "Hi"}], FEW, tools=[{"type": "function"}])


def test_close_ends_streams_and_lets_go_of_the_weights(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as llm:
        stream = llm.stream("hello hello", FEW)
        first = next(stream)
        waiting = llm.stream("abc", FEW)
        model = weakref.ref(llm.model)
    llm.close()
    assert first.token_ids
    with pytest.raises(InvalidRequest, match="closed meanwhile"):
        list(stream)
    for late in (lambda: list(waiting), lambda: llm.generate("a", FEW), lambda: llm.model):
        with pytest.raises(InvalidRequest, match="closed"):
            late()
    gc.collect()
    assert model() is None
