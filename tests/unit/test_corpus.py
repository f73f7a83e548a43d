"""What was written survives a kill, is refused where it does not fit, and comes back in the same batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import TrainingError
from outrider.train.batches import plan
from outrider.train.corpus import Corpus, DiskFull
from outrider.train.data_loader import texts
from outrider.train.jobs import Sample

VOCAB = 300


def sample(number: int) -> Sample:
    rng = np.random.default_rng(number)
    length = int(rng.integers(5, 60))
    spans = ((2, 4), (5, length)) if length > 8 else ((2, length),)
    tokens = rng.integers(0, VOCAB, length).astype(np.int32)
    return Sample(tokens, spans, f"kind {number % 3}", number << 40, number % 2, number, number % 5 == 0)


def filled(folder: Path, count: int) -> Corpus:
    corpus = Corpus(folder, VOCAB)
    for number in range(count):
        corpus.add(sample(number))
        if number % 40 == 39:
            corpus.flush()
    corpus.flush()
    return corpus


def same(a: Sample, b: Sample) -> bool:
    return a.tokens.tolist() == b.tokens.tolist() and a[1:] == b[1:]


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    made = filled(tmp_path, 100)
    read = Corpus(tmp_path, VOCAB)
    assert len(list(tmp_path.glob("shard-*"))) == 3
    assert all(same(read[i], sample(i)) for i in range(100))
    assert (len(read), read.tokens, read.answer_tokens) == (100, made.tokens, made.answer_tokens)
    assert read[0].tokens.dtype == np.uint16
    assert read.families == set(range(100))
    assert sum(read.tags().values()) == 100
    assert read.loops == made.loops == 20
    wide = Corpus(tmp_path / "wide", 1 << 17)
    wide.add(sample(0)._replace(tokens=np.array([1 << 16, 5])))
    wide.flush()
    assert Corpus(tmp_path / "wide", 1 << 17)[0].tokens.tolist() == [1 << 16, 5]


def test_counts_are_of_answers_that_are_not_held_out(tmp_path: Path) -> None:
    corpus = filled(tmp_path, 200)
    expected = np.zeros(VOCAB, np.int64)
    for i in range(200):
        if not corpus.held_out(i):
            for start, stop in corpus[i].spans:
                for token in corpus[i].tokens[start:stop]:
                    expected[token] += 1
    assert corpus.counts().tolist() == expected.tolist()
    assert 0 < sum(corpus.held_out(i) for i in range(200)) < 15


@pytest.mark.long
def test_a_killed_writer_leaves_what_it_flushed(tmp_path: Path) -> None:
    """kill -9 while a shard is on its way: a file under another name is left, and ignored."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_corpus import filled, sample
from outrider.train import corpus as module
corpus = filled(Path({str(tmp_path)!r}), 40)
corpus.add(sample(40))
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
corpus.flush()
"""
    path = os.pathsep.join(sys.path)
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("unfinished*"))
    corpus = Corpus(tmp_path, VOCAB)
    assert len(corpus) == 40
    assert not list(tmp_path.glob("unfinished*"))
    corpus.add(sample(40))
    corpus.flush()
    assert same(Corpus(tmp_path, VOCAB)[40], sample(40))


def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    corpus = Corpus(tmp_path, VOCAB, reserve=1 << 60)
    corpus.add(sample(40))
    with pytest.raises(DiskFull, match="intact"):
        corpus.flush()
    assert len(Corpus(tmp_path, VOCAB)) == 40


def test_bad_folders(tmp_path: Path) -> None:
    filled(tmp_path, 50)
    with pytest.raises(TrainingError, match="vocabulary"):
        Corpus(tmp_path, VOCAB + 1)
    with pytest.raises(TrainingError, match="recipe"):
        Corpus(tmp_path, VOCAB, {"target": "other"})
    shard = tmp_path / "shard-000001.npz"
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(TrainingError, match=r"shard-000001\.npz is damaged"):
        Corpus(tmp_path, VOCAB)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot write"):
        Corpus(tmp_path / "file" / "below", VOCAB)
    with pytest.raises(TrainingError, match="outside the vocabulary"):
        Corpus(tmp_path / "new", 10).add(sample(3))


def test_an_epoch_has_every_sample_once_in_batches_of_like_length(tmp_path: Path) -> None:
    corpus = filled(tmp_path, 300)
    seen, padding, tokens = [], 0, 0
    for rows in plan(corpus, 256, seed=1, epoch=0):
        lengths = corpus.lengths()[rows]
        assert len(rows) * lengths.max() <= 256
        seen += rows.tolist()
        padding += len(rows) * lengths.max() - lengths.sum()
        tokens += lengths.sum()
    assert sorted(seen) == [i for i in range(300) if not corpus.held_out(i)]
    assert padding < 0.1 * tokens
    kept = [i for rows in plan(corpus, 256, seed=1, epoch=0, held_out=True) for i in rows.tolist()]
    assert sorted(kept + seen) == list(range(300))
    assert [i for rows in plan(corpus, 256, seed=1, epoch=1) for i in rows.tolist()] != seen


def test_batches_hold_tokens_lengths_and_answers(tmp_path: Path) -> None:
    corpus = filled(tmp_path, 60)
    for rows in plan(corpus, 256, seed=1, epoch=2):
        batch = texts(corpus, rows)
        where = batch.answers()[0].tolist()
        for row, i in enumerate(rows.tolist()):
            known = corpus[i]
            length = batch.lengths[row]
            assert batch.tokens[row, :length].tolist() == known.tokens.tolist()
            assert batch.greedy[row] == (known.temperature == 0)
            marked = [p for start, stop in known.spans for p in range(start, stop)]
            assert [at % batch.width for at in where if at // batch.width == row] == marked


@pytest.mark.parametrize("families", [1, 3, 12, 400])
def test_greedy_answers_are_always_held_out(tmp_path: Path, families: int) -> None:
    """However small the corpus is: some to judge by, most to learn from."""
    corpus = Corpus(tmp_path, 100)
    for family in range(families):
        for temperature in (0.0, 1.0):
            tokens = np.arange(1, 9)
            corpus.add(Sample(tokens, ((4, 8),), "t", 2 * family + int(temperature), temperature, family))
    held_out = {corpus[i].family for i in range(len(corpus)) if corpus.held_out(i)}
    assert 1 <= len(held_out) <= max(1, -(-families // 10))
    assert all(corpus.held_out(i) == (corpus[i].family in held_out) for i in range(len(corpus)))
