"""One prompt answered: streamed as it comes, compared if asked, reported at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.cli import report, trace
from outrider.cli.attribution import Attribution
from outrider.cli.memory import importing, keep_for_good
from outrider.cli.options import Settings
from outrider.cli.screen import answers, note, notes, paint, wants_colour
from outrider.errors import InvalidRequest

if TYPE_CHECKING:
    from outrider.core.request import Chunk, Completion
    from outrider.llm import LLM

Conversation = list[dict[str, str]]
Verdict = Callable[["Completion", "Completion", str, str], str]
"""Of an answer beside the plain one, the verification rule, and why so much was drafted: the last line."""


def _open_llm(settings: Settings) -> LLM:
    """Load the model; from here on torch is imported."""
    with importing():
        from outrider.cli.progress import RichProgress
        from outrider.llm import LLM

    llm = LLM(
        settings.model,
        drafter=settings.drafter,
        draft_length="auto" if settings.draft_length == "auto" else int(settings.draft_length),
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        bitwise=settings.bitwise,
        max_batch=1,
        max_context=settings.max_context,
        gpu_memory=settings.gpu_memory,
        progress=RichProgress(),
    )
    keep_for_good()
    return llm


def check_text(prompt: str) -> str:
    """The prompt, if a model can read it at all."""
    if not prompt:
        raise InvalidRequest("prompt: it is empty; give some text")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("prompt: it is not valid UTF-8; convert it first") from error
    return prompt


class Answerer:
    """Answers prompts with one model and one set of options, on this terminal.

    `shown` is the text of the current answer so far, also when it was interrupted.
    """

    def __init__(self, settings: Settings, verdict: Verdict = report.verdict) -> None:
        self._settings = settings
        self._verdict = verdict
        self._params = settings.sampling_params()  # before the model: what is impossible should fail at once
        self._llm = llm = _open_llm(settings)
        self._word = trace.words(llm.tokenizer)
        self._colour = wants_colour(sys.stdout)
        self.raw = settings.raw or llm.tokenizer.chat_template is None
        self.shown = ""
        if settings.dtype == "auto":
            note(f"{llm.about}; `outrider models cost` says what passes cost here")
        if self.raw and not settings.raw:
            note(f"{settings.model} has no chat template; it continues the text as with --raw")

    def encode(self, conversation: Conversation) -> Sequence[int]:
        """Token ids to continue: through the chat template, or the bare text of all turns."""
        if not self.raw:
            return self._llm.encode_chat(conversation)
        ids: list[int] = self._llm.tokenizer.encode("".join(turn["content"] for turn in conversation))
        return ids

    def answer(self, prompt: Sequence[int]) -> None:
        """Stream the answer, then report on it."""
        self.shown = ""
        if self._settings.compare:
            # What happens once per process must burden neither arm (plain, so that no drafter learns).
            self._llm.generate([prompt], replace(self._params, max_tokens=2, min_tokens=0), speculate=False)
        done = self._stream(prompt)
        plain = None
        if self._settings.compare:
            plain = self._llm.generate([prompt], replace(self._params, seed=done.seed), speculate=False)[0]
        if self._settings.json:
            self._print_json(done, plain)
        else:
            self._print_summary(done, plain)
        sys.stdout.flush()
        self._llm.finish_costs()

    def _stream(self, prompt: Sequence[int]) -> Completion:
        tokenizer = self._llm.tokenizer
        attribution = Attribution(tokenizer.token_bytes, tokenizer.strips_leading_space)
        chunks = self._llm.stream([prompt], self._params, trace=self._settings.trace)
        try:
            for chunk in chunks:
                self.shown += chunk.text
                if not self._settings.json:
                    self._show(chunk, attribution)
                if chunk.completion is not None:
                    return chunk.completion
        finally:
            if isinstance(chunks, Generator):
                chunks.close()
            if not self._settings.json and not self.shown.endswith("\n"):
                print(flush=True)
        raise AssertionError("a stream ends with a completion")

    def _show(self, chunk: Chunk, attribution: Attribution) -> None:
        if self._colour:
            spans = attribution.take(chunk.token_ids, chunk.origins, chunk.text)
            sys.stdout.write("".join(paint(text, origin) for text, origin in spans))
        else:
            sys.stdout.write(chunk.text)
        sys.stdout.flush()

    def _print_json(self, done: Completion, plain: Completion | None) -> None:
        model, drafter = self._settings.model, self._llm.drafter.name
        result = report.as_json(done, model=model, drafter=drafter, word=self._word, steps=self._settings.trace)
        if plain is not None:
            result["plain"] = report.as_json(plain, model=model, drafter="none", word=self._word, steps=False)
            result["identical"] = plain.token_ids == done.token_ids
        print(json.dumps(result, ensure_ascii=False), flush=True)

    def _print_summary(self, done: Completion, plain: Completion | None) -> None:
        drafter = self._llm.drafter.name
        if self._settings.trace:
            answers().print(trace.table(done.trace, self._word))
            sys.stdout.flush()
        console = notes()
        console.print()
        for line in report.summary(done, drafter, self._colour):
            console.print(line)
        if plain is not None:
            belief = self._llm.engine.controller.belief
            line = self._verdict(done, plain, self._settings.verify, belief.why if belief else "")
            for part in report.comparison(done, plain, drafter, line):
                console.print(part)
