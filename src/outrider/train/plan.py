"""Conversations to be written. Each is a script: it asks the target for one text after another, makes the next prompt
from what came back, and ends in samples to keep. Many scripts run at once, each at its own pace.

What a script asks depends on the recipe's seed, its own number and what the target wrote for it: not on the others,
but for one thing, that words already asked elsewhere are not asked again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container, Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from outrider.errors import TrainingError
from outrider.sampling.noise import hash64
from outrider.train import tasks
from outrider.train.jobs import Job, Sample, Written
from outrider.train.loops import cut_at
from outrider.train.prompts import Frame
from outrider.train.recipe import Recipe


class Ask(NamedTuple):
    prompt: Sequence[int]
    temperature: float
    max_new: int
    tag: str


class Spawn(NamedTuple):
    """Run another script beside this one."""

    script: Script


_PATIENCE = 1000
"""Scripts in a row that may come to nothing at their first step."""

Script = Generator[Ask | Sample | Spawn, Written | None, None]
Words = Generator[Ask | Sample | Spawn, Written | None, str | None]


class WritingPlan:
    """The jobs of a recipe, without end; `take` each result, and keep the samples it gives.

        for written in writer.write(plan.jobs()):
            for sample in plan.take(written): corpus.add(sample)

    `skip`: families (numbers of scripts) that a corpus holds already.
    """

    def __init__(
        self, recipe: Recipe, frame: Frame, prompts: Sequence[tuple[str, ...]] = (), skip: Container[int] = ()
    ) -> None:
        self._recipe, self._frame, self._prompts, self._skip = recipe, frame, prompts, skip
        possible = {"file": bool(prompts), "invented": True}
        self._mix = {k: share for k, share in recipe.mix.items() if share and possible.get(k, frame.chats)}
        if not self._mix:
            raise TrainingError("the recipe asks only for what needs a prompt file or a chat template; give --prompts.")
        self._asked: set[int] = set()
        self._ready: deque[Job] = deque()
        self._waiting: dict[int, tuple[int, int, Script]] = {}  # by job: family, the script's number, the script
        self._steps: dict[int, int] = {}  # by script: how often it asked or spawned
        self._stopping = False
        self._from_file = 0
        """Conversations begun with a prompt of the file."""
        self._order = list(range(len(prompts)))

    def stop(self) -> None:
        """Start no more conversations; those under way are brought to their end."""
        self._stopping = True

    def jobs(self) -> Iterator[Job | None]:
        """For `Writer.write`: a job of a script under way, else of a new one."""
        family = idle = 0
        while True:
            if self._ready:
                yield self._ready.popleft()
            elif self._stopping:
                yield None
            else:
                self._begin(family)
                idle = 0 if self._ready or family in self._skip else idle + 1
                family += 1
                if idle > _PATIENCE:
                    raise TrainingError("no prompt is left: they are too long, or used up; give more with --prompts.")

    def _begin(self, family: int) -> None:
        number = hash64("script", self._recipe.seed, family) >> 1
        script = self._script(random.Random(number))
        if family not in self._skip:
            # A first step gives a job or nothing, never a sample: that needs an answer.
            list(self._advance(family, number, script, None))

    def take(self, written: Written) -> list[Sample]:
        """Go on with the script that asked for this, with as much of it as does not loop."""
        return list(self._advance(*self._waiting.pop(written.number), self._heard(written)))

    def _heard(self, written: Written) -> Written:
        answer, gram = written.answer, self._recipe.loop
        if not gram or (at := cut_at(answer, gram)) == len(answer):
            return written
        return written._replace(tokens=written.tokens[: written.prompt_length + at], finished=False, looped=True)

    def _advance(self, family: int, number: int, script: Script, result: Written | None) -> Iterator[Sample]:
        while True:
            try:
                event = script.send(result)
            except StopIteration:
                self._steps.pop(number, None)
                return
            result = None
            step = self._steps[number] = self._steps.get(number, 0) + 1
            match event:
                case Ask(prompt, temperature, max_new, tag):
                    job = Job(prompt, temperature, max_new, hash64("job", number, step) >> 1, tag)
                    self._waiting[job.number] = family, number, script
                    self._ready.append(job)
                    return
                case Spawn(other):
                    yield from self._advance(family, hash64("spawned", number, step) >> 1, other, None)
                case _:
                    yield event._replace(family=family)

    # Scripts.

    def _script(self, rng: random.Random) -> Script:
        kind = rng.choices(list(self._mix), list(self._mix.values()))[0]
        match kind:
            case "file":
                again, place = divmod(self._from_file, len(self._prompts))
                self._from_file += 1
                if place == 0:
                    random.Random(hash64("order", self._recipe.seed, again)).shuffle(self._order)
                return self._prompted(rng, self._order[place], again)
            case "invented":
                return self._invented(rng) if self._frame.chats else self._document(rng)
            case "passage":
                return self._passage(rng)
            case "translation":
                return self._translation(rng)
            case _:
                return self._conversation(rng, tasks.maths(rng), kind)

    def _prompted(self, rng: random.Random, which: int, again: int) -> Script:
        """A prompt of the file, for the `again`-th time. It is answered greedily at most once: a second time would give
        the same answer."""
        r = self._recipe
        own = random.Random(hash64("prompt", r.seed, which))
        drawn = [r.temperature(own) for _ in range(again + 1)]
        others = [pair for pair in r.temperatures if pair[0] > 0 and pair[1] > 0]
        if drawn[-1] == 0 and 0 in drawn[:-1]:
            if not others:
                return
            drawn[-1] = replace(r, temperatures=tuple(others)).temperature(rng)
        turns = self._prompts[which]
        yield from self._conversation(rng, turns[0], "file", turns[1:], drawn[-1])

    def _invented(self, rng: random.Random) -> Script:
        words = yield from self._in_user_place(self._frame.before, tasks.opener(rng))
        if words is not None:
            yield from self._conversation(rng, words, "invented")

    def _document(self, rng: random.Random) -> Script:
        """Without a chat template: whatever follows the beginning of a text."""
        r, start = self._recipe, self._frame.before
        written = yield Ask(start, r.temperature(rng), r.max_new, "invented")
        assert written is not None
        yield _sample(written, [(len(start), len(written.tokens))], written.number)

    def _passage(self, rng: random.Random) -> Script:
        """A text about something, then tasks over it."""
        topic = tasks.topic(rng)
        if rng.random() < 0.5:
            ask = tasks.topic_request(topic)
            invented = yield from self._answer(ask, 1.0, 32)
            topic = invented.splitlines()[0].strip(' ."*#') if invented else topic
        request = tasks.passage_request(rng, topic)
        passage = yield from self._answer(request, rng.choice((0.4, 0.7, 1.0)), self._recipe.max_passage, cut=True)
        if passage is None or len(passage) < 200:
            return
        for make in rng.sample(tasks.PASSAGE_TASKS, k=min(self._recipe.tasks_per_passage, len(tasks.PASSAGE_TASKS))):
            own = random.Random(rng.random())
            yield Spawn(self._over(own, passage, make))

    def _over(self, rng: random.Random, passage: str, make: tasks.PassageTask) -> Script:
        question = ""
        if make.needs_question:
            found = yield from self._answer(tasks.question_request(passage), 0.7, 48)
            if found is None:
                return
            question = found.splitlines()[0].strip(' "*')
        yield from self._conversation(rng, make.words(rng, passage, question), make.tag)

    def _translation(self, rng: random.Random) -> Script:
        """From German sentences of ours; or of a sentence into a language and, from what came of it, back."""
        language = tasks.language(rng)
        if rng.random() < 0.5:
            words = tasks.german(rng)
            language = "German"
        else:
            ask = tasks.translate_into(rng, language, tasks.english(rng))
            there = yield from self._answer(ask, 1.0, 96)
            if there is None:
                return
            words = there
        yield from self._conversation(rng, tasks.translate_from(rng, language, words), "translation")

    def _answer(self, words: str, temperature: float, max_new: int, cut: bool = False) -> Words:
        """The target's answer to `words`, itself a sample to keep. Where it has no end: its whole sentences, if it may
        be `cut`, else None."""
        prompt = self._frame.first(words)
        if len(prompt) > self._recipe.max_prompt:
            return None
        written = yield Ask(prompt, temperature, max_new, "step")
        assert written is not None
        yield _sample(written, [(len(prompt), len(written.tokens))], written.number)
        text = self._frame.tokenizer.decode(written.answer.tolist()).strip()
        if not written.finished:
            text = text[: max(text.rfind(end) for end in (". ", ".\n", "! ", "? ")) + 1] if cut else ""
        return text or None

    def _in_user_place(self, conversation: Sequence[int], start: str = "") -> Words:
        """What the target says as the user, beginning with `start`; None where it is nothing new, too long, no text."""
        prompt = [*conversation, *self._frame.tokenizer.encode(start, add_special_tokens=False)]
        if len(prompt) > self._recipe.max_prompt:
            return None
        written = yield Ask(prompt, 1.0, self._recipe.max_words, "user")
        assert written is not None
        words = self._frame.words(written.tokens[len(conversation) :].tolist(), written.finished)
        key = hash64(" ".join((words or "").lower().split()))
        if words is None or key in self._asked:
            return None
        self._asked.add(key)
        return words

    def _conversation(
        self, rng: random.Random, words: str, tag: str, more: Sequence[str] = (), temperature: float | None = None
    ) -> Script:
        """Answers to `words` and to what follows: the turns given, else now and then a question the target invents."""
        r, frame = self._recipe, self._frame
        prompt, spans = frame.first(words), list[tuple[int, int]]()
        kept: Written | None = None
        number = 0
        if temperature is None:
            temperature = r.temperature(rng)
        following = list(more)
        while len(prompt) <= r.max_prompt:
            written = yield Ask(prompt, temperature, r.max_new, tag)
            assert written is not None
            spans.append((len(prompt), len(written.tokens)))
            kept, number = written, number or written.number
            if not (written.finished and frame.chats and len(spans) < r.max_turns):
                break
            opening = frame.reopening(written.tokens.tolist())
            if following:
                words = following.pop(0)
            elif rng.random() < r.follow_up:
                invented = yield from self._in_user_place(opening)
                if invented is None:
                    break
                words = invented
            else:
                break
            prompt = frame.asked(opening, words)
        if kept is not None:
            yield _sample(kept, spans, number)


def _sample(last: Written, spans: Sequence[tuple[int, int]], number: int) -> Sample:
    """`last`: the conversation up to its last answer."""
    return Sample(last.tokens, tuple(spans), last.tag, number, last.temperature, family=0, looped=last.looped)
