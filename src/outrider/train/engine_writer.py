"""Writes text in bulk on a CPU: Outrider's own engine, decoding plainly, a batch at a time.

The compiled decoder reads the weights once for all rows of a pass, so a batch costs little more than a request. Where
there is a GPU, `writer.py` does the same for thousands of requests at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from outrider.control.controller import FixedLength
from outrider.core.model import LanguageModel
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.sampling.history import History
from outrider.sampling.noise import hash64
from outrider.sampling.params import SamplingParams
from outrider.train.jobs import Job, Written


class EngineWriter:
    """As `Writer`: what a job's request becomes depends on the seed, its number and its prompt alone."""

    def __init__(self, model: LanguageModel, eos_ids: Sequence[int], *, seed: int) -> None:
        """As many requests at once as `model` has slots."""
        self._model, self._eos_ids, self._seed = model, tuple(eos_ids), seed
        self._engine = Engine(model, NoDrafter(), FixedLength(0))

    def write(self, jobs: Iterator[Job | None]) -> Iterator[Written]:
        """See `BulkWriter`."""
        running: dict[Request, Job] = {}
        try:
            while True:
                while len(running) < self._model.max_batch and (job := next(jobs, None)) is not None:
                    request = self._request(job)
                    running[request] = job
                    self._engine.add(request)
                if not running:
                    return
                self._engine.step()
                for request in [each for each in running if each.ended]:
                    if request.failure is not None:
                        raise request.failure
                    job = running.pop(request)
                    ended = request.finish_reason == "stop"
                    tokens = np.array(request.tokens, np.int32)
                    yield Written(tokens, len(job.prompt), ended, job.tag, job.number, job.temperature)
        finally:
            for request in running:
                self._engine.remove(request)

    def _request(self, job: Job) -> Request:
        params = SamplingParams(
            max_tokens=job.max_new,
            temperature=job.temperature,
            seed=hash64("writer", self._seed, job.number) >> 11,
        )
        tokens = list(job.prompt)
        return Request(
            id=job.number,
            tokens=tokens,
            prompt_length=len(tokens),
            params=params.resolve({}, self._eos_ids, self._model.vocab_size),
            limit=min(job.max_new, self._model.max_context - len(tokens)),
            stream=TextStream(lambda _: b"", (), False),
            history=History(tokens),
        )
