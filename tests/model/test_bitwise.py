"""Level C: a row's bits depend on its own path alone.

`torch.equal` on logits of the default model (as many of its layers as the machine can afford): one token a pass against
k tokens a pass (chain, tree, batch), at any cache length, and after commits that moved rows. The compiled decoder is
the one every speed figure uses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pace import CUT_VOCABULARY, Pace, cut_model

from outrider.core.draft import ROOT
from outrider.core.model import LanguageModel, Rows
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import kernels_here
from outrider.models.precision import BF16, FP32, INT8, Precision
from outrider.models.torch_decoder import TorchDecoder

TEXT = random.Random(0).choices(range(1000, CUT_VOCABULARY), k=606)


def native(
    checkpoint: Checkpoint, precision: Precision, *, threads: int = 1, kernels: str | None = None
) -> NativeDecoder:
    architecture = Architecture.from_config(checkpoint.config)
    tensors = checkpoint.tensors(precision.source)
    return NativeDecoder.load(
        architecture, tensors, precision, max_batch=4, max_context=1024, threads=threads, kernels=kernels
    )


@pytest.fixture(scope="module", params=[BF16, INT8, FP32], ids=lambda precision: precision.name)
def decoder(request: pytest.FixtureRequest, cut_checkpoint: Checkpoint) -> NativeDecoder:
    return native(cut_checkpoint, request.param)


@pytest.fixture(scope="module")
def tokens(decoder: NativeDecoder, pace: Pace) -> list[int]:
    """More than the widest chain, and as many as are run one by one in a second."""
    slot = decoder.open()

    def one_row() -> None:
        decoder.forward([Rows.chain(slot, TEXT[:1])])
        decoder.commit(slot, [])

    length = pace.fit(one_row, 0.5, least=310, most=606)
    decoder.close(slot)
    return TEXT[:length]


@pytest.fixture(scope="module")
def one_by_one(decoder: NativeDecoder, tokens: list[int]) -> torch.Tensor:
    """Logits after every prefix, one token a pass: what plain decoding computes."""
    slot = decoder.open()
    rows = []
    for token in tokens:
        rows.append(decoder.forward([Rows.chain(slot, [token])])[0].clone())
        decoder.commit(slot, [0])
    decoder.close(slot)
    return torch.stack(rows)


@pytest.fixture
def slot(decoder: NativeDecoder) -> Iterator[int]:
    slot = decoder.open()
    yield slot
    decoder.close(slot)


@pytest.mark.parametrize("width", [2, 3, 16, 17, 31, 64, 128, 300])
def test_chains(decoder: NativeDecoder, one_by_one: torch.Tensor, tokens: list[int], slot: int, width: int) -> None:
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        logits = decoder.forward([Rows.chain(slot, part)])
        decoder.commit(slot, range(len(part)))
        assert torch.equal(logits, one_by_one[start : start + len(part)])


def fill(model: LanguageModel, slot: int, tokens: list[int]) -> None:
    if not tokens:
        return
    model.forward([Rows.chain(slot, tokens, logits=())])
    model.commit(slot, range(len(tokens)))


def test_every_cache_length(decoder: NativeDecoder, one_by_one: torch.Tensor, tokens: list[int], slot: int) -> None:
    """From each length (1..600 in full): the true continuation as a chain of 3 inside a tree of decoys."""
    for length in range(1, len(tokens) - 5):
        fill(decoder, slot, tokens[decoder.length(slot) : length])
        nodes = [7, tokens[length], 8, 9, tokens[length + 1], 10, tokens[length + 2]]
        logits = decoder.forward([Rows(slot, nodes, [ROOT, ROOT, 0, 1, 1, 4, 4])])
        assert torch.equal(logits[[1, 4, 6]], one_by_one[length : length + 3]), f"at cache length {length}"
        decoder.commit(slot, [])


def test_batch_of_trees_and_moved_rows(decoder: NativeDecoder, one_by_one: torch.Tensor, tokens: list[int]) -> None:
    """Ragged random trees in one batch, step after step; accepted rows lie scattered and are moved together."""
    rng = random.Random(5)
    slots = [decoder.open() for _ in range(3)]
    lengths = [1, 15, 200]
    for slot, length in zip(slots, lengths, strict=True):
        fill(decoder, slot, tokens[:length])
    for _ in range(40):
        batch, paths = [], []
        for slot, length in zip(slots, lengths, strict=True):
            nodes, parents, path = list[int](), list[int](), list[int]()
            depth = rng.randint(1, 6)
            for level in range(depth):  # decoys before and after the true node of each level
                parent = path[-1] if path else ROOT
                for true in rng.sample([False, False, True], 3):
                    if true:
                        path.append(len(nodes))
                    nodes.append(tokens[length + level] if true else rng.randrange(1000))
                    parents.append(parent)
            batch.append(Rows(slot, nodes, parents))
            paths.append(path)
        logits = decoder.forward(batch)
        start = 0
        for i, (rows, path) in enumerate(zip(batch, paths, strict=True)):
            mine = logits[[start + node for node in path]]
            assert torch.equal(mine, one_by_one[lengths[i] : lengths[i] + len(path)])
            decoder.commit(rows.slot, path)
            lengths[i] += len(path)
            start += len(rows.tokens)
        if max(lengths) > len(tokens) - 10:
            break
    for slot in slots:
        decoder.close(slot)


@pytest.mark.parametrize("precision", [BF16, INT8, FP32], ids=lambda precision: precision.name)
def test_threads_do_not_change_bits(cut_checkpoint: Checkpoint, precision: Precision) -> None:
    """A chain, one row, and a tree beside a wide chain. All else here takes one thread: several wait for each other
    busily where tests share the cores."""
    results = []
    for threads in (1, 2, 3):
        decoder = native(cut_checkpoint, precision, threads=threads)
        one, two = decoder.open(), decoder.open()
        logits = [decoder.forward([Rows.chain(one, TEXT[:20])]).clone()]
        decoder.commit(one, range(20))
        logits.append(decoder.forward([Rows.chain(one, TEXT[20:21])]).clone())
        decoder.commit(one, [0])
        tree = Rows(one, [3, TEXT[21], 4, TEXT[22], TEXT[23]], [ROOT, ROOT, 1, 1, 3])
        logits.append(decoder.forward([tree, Rows.chain(two, TEXT[:70])]).clone())
        results.append(torch.cat(logits))
        assert torch.equal(results[-1][[0, 19, 20, 22, 24, 25]], results[-1][[26, 45, 46, 47, 48, 49]])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("precision", [BF16, INT8, FP32], ids=lambda precision: precision.name)
@pytest.mark.parametrize("kernels", kernels_here())
def test_every_instruction_set(cut_checkpoint: Checkpoint, precision: Precision, kernels: str) -> None:
    """CPUs without AMX, AVX-512 or AVX2: chain and tree against one by one."""
    decoder = native(cut_checkpoint, precision, kernels=kernels)
    one, two = decoder.open(), decoder.open()
    single = []
    for token in TEXT[:14]:
        single.append(decoder.forward([Rows.chain(one, [token])])[0].clone())
        decoder.commit(one, [0])
    expected = torch.stack(single)
    assert torch.equal(decoder.forward([Rows.chain(two, TEXT[:11])]), expected[:11])
    decoder.commit(two, range(11))
    logits = decoder.forward([Rows(two, [3, TEXT[11], 4, TEXT[12], TEXT[13]], [ROOT, ROOT, 1, 1, 3])])
    assert torch.equal(logits[[1, 3, 4]], expected[11:14])


def test_pytorch_decoder_in_bitwise_mode(cut_checkpoint: Checkpoint, cut_layers: int, tmp_path: Path) -> None:
    """The same promise where there is no compiled decoder: chain, tree and batch against one by one. Without bf16
    instructions PyTorch takes seconds for one row of a large model, so it is given a small part of it there."""
    whole = cut_layers == 30
    folder = cut_model(cut_checkpoint, tmp_path, layers=-(-cut_layers // 4), vocabulary=256, mlp=None if whole else 384)
    checkpoint, text = open_checkpoint(str(folder), SilentProgress()), [token % 256 for token in TEXT]
    architecture = Architecture.from_config(checkpoint.config)
    tensors, cpu = checkpoint.tensors(torch.bfloat16), torch.device("cpu")
    decoder = TorchDecoder.load(architecture, tensors, torch.bfloat16, cpu, max_batch=3, max_context=128, bitwise=True)
    one, two, three = decoder.open(), decoder.open(), decoder.open()
    together = decoder.forward([Rows.chain(two, text[:67])])  # one block of 64 keys and part of another
    decoder.commit(two, range(61))
    for start, stop in ((0, 2), (62, 66) if whole else (63, 65)):
        fill(decoder, one, text[decoder.length(one) : start])
        for at in range(start, stop):
            assert torch.equal(decoder.forward([Rows.chain(one, [text[at]])])[0], together[at])
            decoder.commit(one, [0])
    fill(decoder, three, text[:5])
    nodes, parents = [3, text[61], 4, text[62]], [ROOT, ROOT, 1, 1]
    logits = decoder.forward([Rows(two, nodes, parents), Rows.chain(three, text[5:9])])
    assert torch.equal(logits[[1, 3]], together[61:63])
    assert torch.equal(logits[4:], together[5:9])
