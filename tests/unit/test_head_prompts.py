"""The text functions of the prompt builder: what they let through ends up in every head that is trained."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in ("head_prompts", "head_sources", "head_words"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_wikipedia_markup_becomes_sentences() -> None:
    from head_sources import is_prose, plain

    markup = (
        "'''Oslo''' ({{lang|no|Oslo}}) is {{convert|9|km|mi}} from [[Bærum|the town]].<ref name=a>{{cite|{{x}}}}</ref>"
    )
    assert plain(markup) == "Oslo is 9 km from the town."
    assert not is_prose("It is [[broken and has far too few words.")


def test_sentences_are_not_cut_after_titles_and_initials() -> None:
    from head_sources import sentences

    assert sentences("He met Mr. Smith in the U.S. Army. Then he left.") == [
        "He met Mr. Smith in the U.S. Army.",
        "Then he left.",
    ]


def test_passages_end_at_a_sentence_and_keep_their_length() -> None:
    from head_prompts import passage
    from head_sources import Article

    article = Article(
        "Rain", [" ".join(f"Sentence {i} of paragraph {p} has eight words." for i in range(9)) for p in range(5)]
    )
    for seed in range(20):
        text = passage(random.Random(seed), article, 40, 60)
        assert text.endswith("words.")
        assert 40 <= len(text.split()) <= 60


def test_no_prompt_comes_twice_or_too_long() -> None:
    from head_prompts import MOST_CHARACTERS, Prompt, distinct

    def stream() -> Iterator[Prompt]:
        yield {"prompt": "Why?"}
        yield {"prompt": "x" * (MOST_CHARACTERS + 1)}
        yield {"turns": ["why", "And then?"]}
        yield {"turns": ["How?", "And then?"]}
        yield {"prompt": "Never reached"}

    assert distinct(stream(), 2) == [{"prompt": "Why?"}, {"turns": ["How?", "And then?"]}]
