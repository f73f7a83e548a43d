"""What a benchmark asks, and the names of those it asks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.names import PEERS, parse, parse_all, reference
from outrider.bench.questions import CATEGORIES, Question, builtin, interleaved, read_questions, spread
from outrider.errors import InvalidRequest
from outrider.models.checkpoints.checkpoint import Checkpoint


def test_builtin_suite_covers_its_categories() -> None:
    questions = builtin()
    counts = Counter(question.category for question in questions)
    assert tuple(counts) == CATEGORIES
    assert len(questions) >= 60
    assert min(counts.values()) >= 9
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.turns for question in questions}) == len(questions)


def test_passages_are_long_enough_to_copy_from(default_checkpoint: Checkpoint) -> None:
    sizes = {q.id: len(default_checkpoint.tokenizer.encode(q.turns[0])) for q in builtin()}
    for category, least in (("edit", 90), ("summarise", 150), ("qa", 150)):
        mine = [size for name, size in sizes.items() if name.startswith(f"{category}-")]
        assert min(mine) >= least
        assert max(mine) <= 400


def _questions(counts: dict[str, int]) -> list[Question]:
    return [Question(f"{name}-{i}", name, ("x",)) for name, many in counts.items() for i in range(many)]


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 12), min_size=1), st.integers(1, 80))
def test_limit_is_spread_over_the_categories(counts: dict[str, int], limit: int) -> None:
    questions = _questions(counts)
    chosen = spread(questions, limit)
    assert len(chosen) == min(limit, len(questions))
    assert len(set(chosen)) == len(chosen)
    assert [q for q in questions if q in set(chosen)] == chosen
    got = Counter(question.category for question in chosen)
    # Nobody gets two more than a category that still had some left.
    for name, many in counts.items():
        if got[name] < many:
            assert max(got.values()) <= got[name] + 1


def test_limit_does_not_only_see_the_beginning() -> None:
    assert [q.id for q in spread(_questions({"a": 10}), 3)] == ["a-0", "a-3", "a-6"]


def test_categories_take_turns() -> None:
    asked = [q.category for q in interleaved(_questions({"a": 3, "b": 2, "c": 1}))]
    assert asked == ["a", "b", "c", "a", "b", "a"]


def test_spec_bench_format_is_read(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    entry = {"question_id": 81, "category": "writing", "turns": ["Hello", "Again"], "reference": "ignored"}
    file.write_text(json.dumps(entry) + "\n\n", encoding="utf-8")
    assert read_questions(file) == [Question("81", "writing", ("Hello", "Again"))]


@pytest.mark.parametrize(
    "text",
    ["", "not json", '{"question_id": 1}', "[1]", '{"question_id": 1, "category": "a", "turns": []}'],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match="questions: "):
        read_questions(file)


def test_a_file_that_is_not_there_or_no_text_says_which(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.jsonl cannot be read: No such file"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidRequest, match=r"not UTF-8 text .* at byte 7"):
        read_questions(tmp_path / "bytes.jsonl")


def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question_id": 1, "category": "a", "turns": ["x"]}\n' * 2, encoding="utf-8")
    with pytest.raises(InvalidRequest, match="twice"):
        read_questions(file)


@pytest.mark.parametrize(
    ("text", "program", "method", "path", "length", "dtype"),
    [
        ("plain", "outrider", "plain", "", "auto", None),
        ("suffix", "outrider", "suffix", "", "auto", None),
        ("suffix:8", "outrider", "suffix", "", "8", None),
        ("head:tree32", "outrider", "head", "", "tree32", None),
        ("head:/some/head:5", "outrider", "head", "/some/head", "5", None),
        ("model:/a/b:4", "outrider", "model", "/a/b", "4", None),
        ("model:C:/a:auto", "outrider", "model", "C:/a", "auto", None),
        ("plain@int8", "outrider", "plain", "", "auto", "int8"),
        ("suffix:8@fp32", "outrider", "suffix", "", "8", "fp32"),
        ("transformers-assisted:/a@b/c", "transformers", "assisted", "/a@b/c", "auto", None),
        ("llama.cpp-lookup", "llama.cpp", "lookup", "", "auto", None),
    ],
)
def test_arm_names(text: str, program: str, method: str, path: str, length: str, dtype: str | None) -> None:
    arm = parse(text)
    assert (arm.program, arm.method, arm.path, arm.length, arm.dtype) == (program, method, path, length, dtype)


@pytest.mark.parametrize("text", ["", "suffix:fast", "plain:3", "model", "transformers-assisted", "plain,plain", ":8"])
def test_bad_arm_names(text: str) -> None:
    with pytest.raises(InvalidRequest, match="arms: "):
        parse_all([text])


def test_what_an_arm_is_held_against() -> None:
    arms = ["plain", "plain@fp32", "suffix@fp32", "suffix", "transformers", "transformers-lookup", "openvino-lookup"]
    held = {arm: reference(arm, arms) for arm in arms}
    assert held == {
        "plain": "plain",
        "plain@fp32": "plain@fp32",
        "suffix@fp32": "plain@fp32",
        "suffix": "plain",
        "transformers": "plain",
        "transformers-lookup": "transformers",
        "openvino-lookup": None,
    }


def test_every_program_has_a_plain_arm_of_its_name() -> None:
    for program, _ in PEERS.values():
        assert PEERS[program] == (program, "plain")
