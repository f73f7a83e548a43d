"""Fills a corpus: the writer's conveyor, the plan's conversations and the disk, put together."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.train.corpus import Corpus
from outrider.train.jobs import BulkWriter
from outrider.train.plan import WritingPlan

SHARD_TOKENS = 1 << 20
"""Tokens between two flushes: at most this many are lost with a kill."""


def gather(
    writer: BulkWriter, plan: WritingPlan, corpus: Corpus, tokens: int, *, shard: int = SHARD_TOKENS
) -> Iterator[int]:
    """Write until the corpus holds `tokens`; gives the number it holds whenever a sample was added.

    Whoever stops listening early (out of time) should `flush` the corpus. Conversations still under way at the end are
    dropped, a sequence per lane: waiting for them would leave most lanes idle.
    """
    for written in writer.write(plan.jobs()):
        for sample in plan.take(written):
            corpus.add(sample)
            if corpus.unsaved_tokens >= shard:
                corpus.flush()
            yield corpus.tokens
        if corpus.tokens >= tokens:
            break
    corpus.flush()
