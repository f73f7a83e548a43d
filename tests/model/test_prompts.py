"""Prompts from files and from the target itself, with the default model's tokenizer and a target that is a function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import TrainingError
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.train.jobs import Job, Sample, Tokens, Written
from outrider.train.loops import cut_at
from outrider.train.plan import WritingPlan
from outrider.train.prompts import Frame, read_prompts
from outrider.train.recipe import Recipe


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Checkpoint) -> Tokenizer:
    return default_checkpoint.tokenizer


@pytest.fixture(scope="module")
def frame(tokenizer: Tokenizer) -> Frame:
    return Frame.of(tokenizer)


def test_files(tmp_path: Path) -> None:
    lines = tmp_path / "some.txt"
    lines.write_text("One?\n\n Two words \n")
    assert read_prompts(lines) == [("One?",), ("Two words",)]
    objects = tmp_path / "some.jsonl"
    objects.write_text('{"prompt": "One\u2028?"}\r\n\n{"turns": ["a", "b"], "category": "x"}\n')
    assert read_prompts(objects) == [("One\u2028?",), ("a", "b")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "line 2 of .* is not JSON"),
        ('["a"]', 'line 2 of .* must be an object with "prompt"'),
        ('{"text": "a"}', "line 2 of"),
        ('{"prompt": 5}', "line 2 of .* must be a text"),
        ('{"prompt": " "}', "line 2 of .* none of them empty"),
        ('{"turns": []}', "line 2 of .* list of texts"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(TrainingError, match=said):
        read_prompts(path)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(TrainingError, match="holds none"):
        read_prompts(tmp_path / "empty.txt")


def test_the_frame_makes_what_chatting_renders(tokenizer: Tokenizer, frame: Frame) -> None:
    """One turn and two, put together from parts, against the template itself."""
    talk = [
        {"role": "user", "content": "What is a fox?"},
        {"role": "assistant", "content": "An animal."},
        {"role": "user", "content": "And a dog?"},
    ]
    first = frame.asked(frame.before, "What is a fox?")
    assert first == tokenizer.apply_chat_template(talk[:1]) == frame.first("What is a fox?")
    answered = [*first, *tokenizer.encode("An animal.", add_special_tokens=False), tokenizer.eos_token_ids[0]]
    assert frame.asked(frame.reopening(answered), "And a dog?") == tokenizer.apply_chat_template(talk)
    unfinished = answered[:-1]
    assert frame.reopening(unfinished) == frame.reopening(answered)
    assert set(tokenizer.eos_token_ids) <= set(frame.stops)


def test_words_need_an_end(tokenizer: Tokenizer, frame: Frame) -> None:
    ids = tokenizer.encode(" What is rain? ", add_special_tokens=False)
    assert frame.words([*ids, tokenizer.eos_token_ids[0]], True) == "What is rain?"
    assert frame.words(ids, False) is None
    assert frame.words([tokenizer.eos_token_ids[0]], True) is None


class Target:
    """Answers by `says`, and keeps what it was asked."""

    def __init__(self, tokenizer: Tokenizer, says: Callable[[Job, str], str]) -> None:
        self._tokenizer, self._says = tokenizer, says
        self.jobs: list[Job] = []

    def write(self, job: Job) -> Written:
        self.jobs.append(job)
        text = self._says(job, self._tokenizer.decode(job.prompt))
        answer = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_ids[0]]
        tokens = np.array([*job.prompt, *answer[: job.max_new]])
        return Written(tokens, len(job.prompt), len(answer) <= job.max_new, job.tag, job.number, job.temperature)


def says(job: Job, prompt: str) -> str:
    if "Write one short question" in prompt:
        return f"Where is it {job.number}?"
    if job.tag == "user":
        return f"please tell me about number {job.number}"
    more = " ".join(f"Here is number {i}, now {i}." for i in range(2, 14))  # no eight tokens twice
    return f"This is sentence one about {job.number}. {more} "


def run(plan: WritingPlan, target: Target, count: int, behind: int = 0) -> list[Sample]:
    """Samples of the first `count` jobs; `behind` jobs are always under way, as in a writer's lanes."""
    samples, queue = [], list[Job]()
    for job in islice(plan.jobs(), count):
        assert job is not None
        queue.append(job)
        if len(queue) > behind:
            samples += plan.take(target.write(queue.pop(0)))
    return samples


def test_the_recipe_s_mix(tokenizer: Tokenizer, frame: Frame) -> None:
    target = Target(tokenizer, says)
    prompts = [(f"First {i}?", "Second?") if i % 2 else (f"A prompt {i}?",) for i in range(800)]
    samples = run(WritingPlan(Recipe(), frame, prompts), target, 900)
    kinds = Counter(sample.tag for sample in samples)
    wanted = {"file", "invented", "maths", "translation", "summary", "reading", "retrieval", "question", "rewriting"}
    assert wanted <= set(kinds)
    numbers = [sample.number for sample in samples]
    assert len(set(numbers)) == len(numbers)
    for sample in samples:
        tokens, eos = sample.tokens.tolist(), tokenizer.eos_token_ids[0]
        assert sample.spans[-1][1] == len(tokens)
        for start, stop in sample.spans:
            assert tokens[stop - 1] == eos or sample.tag == "step"  # those may be cut short
            assert tokens[:start] == tokens[: start - len(frame.after)] + list(frame.after)
    turns = Counter(len(sample.spans) for sample in samples)
    assert turns[2] > 10
    assert turns[3] > 0
    answers = [job for job in target.jobs if job.tag in kinds and job.tag != "step"]
    greedy = sum(job.temperature == 0 for job in answers) / len(answers)
    assert 0.3 < greedy < 0.6
    assert all(job.temperature == 1 for job in target.jobs if job.tag == "user")


def test_a_second_turn_of_the_file_is_asked(tokenizer: Tokenizer, frame: Frame) -> None:
    plan = WritingPlan(Recipe(mix={"file": 1.0}, follow_up=0.0), frame, [("First?", "Second?")])
    (sample,) = run(plan, Target(tokenizer, says), 2)
    text = tokenizer.decode(sample.tokens.tolist())
    assert text.index("First?") < text.index("This is") < text.index("Second?") < text.rindex("This is")
    assert len(sample.spans) == 2


def test_a_passage_that_was_cut_short_ends_with_a_sentence(tokenizer: Tokenizer, frame: Frame) -> None:
    target = Target(tokenizer, says)
    run(WritingPlan(Recipe(mix={"passage": 1.0}, max_passage=120, follow_up=0.0), frame), target, 60)
    asked = [tokenizer.decode(job.prompt) for job in target.jobs if job.tag == "continuation"]
    assert asked
    assert all("now 3." in text for text in asked)
    assert all(text.count("Here is") == len(re.findall(r"now \d+\.", text)) for text in asked)


def test_a_prompt_is_answered_greedily_once(tokenizer: Tokenizer, frame: Frame) -> None:
    target = Target(tokenizer, says)
    run(WritingPlan(Recipe(mix={"file": 1.0}, follow_up=0.0), frame, [("A?",), ("B?",), ("C?",)]), target, 60)
    greedy = Counter(tuple(job.prompt) for job in target.jobs if job.temperature == 0)
    assert set(greedy.values()) == {1}
    assert len({tuple(job.prompt) for job in target.jobs}) == 3


def test_words_said_before_are_dropped(tokenizer: Tokenizer, frame: Frame) -> None:
    """A target that always says the same as the user is asked once."""
    same = Target(tokenizer, lambda job, prompt: "a b c" if job.tag == "user" else says(job, prompt))
    recipe = Recipe(mix={"invented": 1.0}, follow_up=0.0)
    samples = run(WritingPlan(recipe, frame), same, 300)
    words = Counter(tuple(sample.tokens[: sample.spans[0][0]].tolist()) for sample in samples)
    assert set(words.values()) == {1}


def test_a_plan_is_the_same_again_and_whatever_the_company(tokenizer: Tokenizer, frame: Frame) -> None:
    def samples(recipe: Recipe, behind: int) -> dict[int, list[int]]:
        made = run(WritingPlan(recipe, frame, [("A?",), ("B?", "C?")]), Target(tokenizer, says), 300, behind)
        return {sample.number: sample.tokens.tolist() for sample in made}

    alone, company = samples(Recipe(seed=1), 0), samples(Recipe(seed=1), 40)
    shared = set(alone) & set(company)
    assert len(shared) > 50
    assert all(alone[number] == company[number] for number in shared)
    assert samples(Recipe(seed=1), 0) == alone
    assert not set(samples(Recipe(seed=2), 0)) & set(alone)


def test_families_already_there_are_left_out(tokenizer: Tokenizer, frame: Frame) -> None:
    first = run(WritingPlan(Recipe(), frame), Target(tokenizer, says), 80)
    have = {sample.family for sample in first}
    more = run(WritingPlan(Recipe(), frame, skip=have), Target(tokenizer, says), 80)
    assert have
    assert more
    assert not have & {sample.family for sample in more}


def test_stopping_brings_conversations_to_their_end(tokenizer: Tokenizer, frame: Frame) -> None:
    plan = WritingPlan(Recipe(follow_up=1.0), frame)
    target = Target(tokenizer, says)
    jobs = plan.jobs()
    under_way = [next(jobs) for _ in range(5)]
    plan.stop()
    samples = []
    while under_way:
        job = under_way.pop(0)
        assert job is not None
        samples += plan.take(target.write(job))
        while (job := next(jobs)) is not None:
            under_way.append(job)
    assert {sample.family for sample in samples} == set(range(5))


def test_without_a_template_texts_begin_by_themselves(tokenizer: Tokenizer) -> None:
    from tokenizers import Tokenizer as Backend

    bare = Tokenizer(Backend.from_str(tokenizer.to_json()), special_tokens={}, chat_template=None, eos_token_ids=[2])
    frame = Frame.of(bare)
    samples = run(WritingPlan(Recipe(), frame, [("Once upon a time",)]), Target(bare, says), 60)
    assert {sample.tag for sample in samples} == {"file", "invented"}
    assert all(len(sample.spans) == 1 for sample in samples)
    starts = {tuple(sample.tokens[: sample.spans[0][0]].tolist()) for sample in samples}
    assert starts == {frame.before, tuple(bare.encode("Once upon a time"))}


def test_prompts_that_do_not_fit_are_said(tokenizer: Tokenizer, frame: Frame) -> None:
    plan = WritingPlan(Recipe(mix={"file": 1.0}), frame, [("word " * 1100,)])
    with pytest.raises(TrainingError, match="too long"):
        next(plan.jobs())
    with pytest.raises(TrainingError, match="prompt file"):
        WritingPlan(Recipe(mix={"file": 1.0}), frame)


def test_recipes() -> None:
    recipe = Recipe(seed=5, mix={"maths": 1.0}, temperatures=((0.0, 1.0), (0.5, 2.0)))
    assert recipe.to_json()["temperatures"] == [[0.0, 1.0], [0.5, 2.0]]
    assert recipe.to_json()["loop"] == 8
    bad: list[dict[str, Any]] = [
        {"mix": {"poems": 1}},
        {"mix": {"file": 0}},
        {"temperatures": ((-1, 1),)},
        {"loop": -1},
    ]
    for each in bad:
        with pytest.raises(TrainingError, match="recipe"):
            Recipe(**each)


def thrice(tokens: list[int], gram: int) -> int:
    """The same by the letter: the first start of a run that begins at two earlier places too."""
    for at in range(len(tokens) - gram + 1):
        if sum(tokens[i : i + gram] == tokens[at : at + gram] for i in range(at)) == 2:
            return at
    return len(tokens)


@pytest.mark.parametrize("gram", [1, 2, 8])
def test_a_text_is_cut_where_it_says_something_for_the_third_time(gram: int) -> None:
    rng = np.random.default_rng(gram)
    cut = 0
    for length in (0, 1, gram + 1, gram + 2, 40, 200) * 5:
        once = rng.integers(0, 3 * gram, length)
        for tokens in (once, np.concatenate([once, np.tile(once[:11], 4)]), np.full(length, 7)):
            at = cut_at(tokens, gram)
            assert at == thrice(tokens.tolist(), gram)
            assert cut_at(tokens[:at], gram) == at
            cut += at < len(tokens)
    assert cut > 20
    assert cut_at(np.arange(10**5), gram) == 10**5


def test_texts_that_loop_are_cut_and_end_their_conversation(tokenizer: Tokenizer, frame: Frame) -> None:
    """Whoever speaks: an answer that loops is kept up to there, a question that loops is not asked."""
    loop = "One two three four five six seven eight nine ten. "

    def rounds(tokens: Tokens) -> int:
        return tokenizer.decode(tokens.tolist()).count("One two three")

    def looping(job: Job, prompt: str) -> str:
        return says(job, prompt) + (loop * 9 if job.number % 2 else "")

    prompts = [("First?", "Second?")] * 40
    target = Target(tokenizer, looping)
    samples = run(WritingPlan(Recipe(mix={"file": 0.5, "invented": 0.5}), frame, prompts), target, 300)
    assert 20 < sum(sample.looped for sample in samples) < len(samples) - 20
    for sample in samples:
        *before, (start, stop) = sample.spans
        assert rounds(sample.tokens[:start]) == 0
        assert rounds(sample.tokens[start:stop]) == (2 if sample.looped else 0)
        assert stop == len(sample.tokens)
        assert len(before) == 0 or sample.tokens[before[-1][1] - 1] == tokenizer.eos_token_ids[0]
    whole = run(WritingPlan(Recipe(mix={"file": 1.0}, loop=0), frame, prompts), Target(tokenizer, looping), 60)
    assert not any(sample.looped for sample in whole)
    assert max(rounds(sample.tokens) for sample in whole) >= 9
