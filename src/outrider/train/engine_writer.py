"""Writes text in bulk on a CPU: Outrider's own engine, decoding plainly, a batch at a time.

The compiled decoder reads the weights once for all rows of a pass, so a batch costs little more than a sequence. Where
there is a GPU, `writer.py` does the same for thousands of sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from outrider.control.controller import FixedLength
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.sequence import Sequence as Running
from outrider.engine.text import TextStream
from outrider.sampling.history import History
from outrider.sampling.noise import hash64
from outrider.sampling.params import SamplingParams
from outrider.train.jobs import Job, Written
from outrider.types import LanguageModel


class EngineWriter:
    """As `Writer`: what a job's sequence becomes depends on the seed, its number and its prompt alone."""

    def __init__(self, model: LanguageModel, eos_ids: Sequence[int], *, seed: int) -> None:
        """As many sequences at once as `model` has slots."""
        self._model, self._eos_ids, self._seed = model, tuple(eos_ids), seed
        self._engine = Engine(model, NoDrafter(), FixedLength(0))

    def write(self, jobs: Iterator[Job | None]) -> Iterator[Written]:
        """See `BulkWriter`."""
        running: dict[Running, Job] = {}
        try:
            while True:
                while len(running) < self._model.max_batch and (job := next(jobs, None)) is not None:
                    sequence = self._sequence(job)
                    running[sequence] = job
                    self._engine.add(sequence)
                if not running:
                    return
                self._engine.step()
                for sequence in [each for each in running if each.finish_reason is not None]:
                    job = running.pop(sequence)
                    ended = sequence.finish_reason == "stop"
                    tokens = np.array(sequence.tokens, np.int32)
                    yield Written(tokens, len(job.prompt), ended, job.tag, job.number, job.temperature)
        finally:
            for sequence in running:
                self._engine.remove(sequence)

    def _sequence(self, job: Job) -> Running:
        params = SamplingParams(
            max_tokens=job.max_new,
            temperature=job.temperature,
            seed=hash64("writer", self._seed, job.number) >> 11,
        )
        tokens = list(job.prompt)
        return Running(
            id=job.number,
            tokens=tokens,
            prompt_length=len(tokens),
            params=params.resolve({}, self._eos_ids, self._model.vocab_size),
            limit=min(job.max_new, self._model.max_context - len(tokens)),
            stream=TextStream(lambda _: b"", (), False),
            history=History(tokens),
        )
