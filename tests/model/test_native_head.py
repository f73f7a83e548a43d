"""The compiled head against the one in PyTorch, its cache against a fresh start, and the target's hidden layers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_head import config_of, random_head
from tiny_models import decoder_of, reference
from torch import Tensor

from outrider.core.draft import ROOT
from outrider.core.model import NoiseKey, Rows
from outrider.errors import DrafterError
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.head.torch_head import TorchHead, as_module
from outrider.models.head.weights import HeadWeights, target_ids
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead, PackedHead
from outrider.models.native.library import kernels_here
from outrider.models.precision import BF16, FP32, INT8, Precision
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.noise import Key, gumbel_at, row_key

TAPS = (0, 1, 3)
DRAFT_VOCAB = 61


def native_target(name: str = "llama", precision: Precision = FP32, kernels: str | None = None) -> NativeDecoder:
    decoder = decoder_of(reference(name), "native", precision, kernels, threads=2)
    assert isinstance(decoder, NativeDecoder)
    return decoder


def torch_target(name: str = "llama") -> TorchDecoder:
    decoder = decoder_of(reference(name), "torch")
    assert isinstance(decoder, TorchDecoder)
    decoder.keep_hidden_layers(TAPS)
    return decoder


def head_for(target: Any, layers: int = 1, norm: bool = False) -> HeadCheckpoint:
    return random_head(
        config_of(target.architecture, draft_vocab=DRAFT_VOCAB, layers=layers, aux_hidden_layers=TAPS, norm=norm),
        seed=layers,
    )


def exact(checkpoint: HeadCheckpoint, target: NativeDecoder) -> NativeHead:
    """In fp32."""
    tensors, device = checkpoint.tensors, target.device
    weights = HeadWeights.of(checkpoint.config, tensors, device, torch.float32)
    return NativeHead(checkpoint.config, PackedHead.of(weights), target)


def torch_head(checkpoint: HeadCheckpoint, target: TorchDecoder) -> TorchHead:
    ids = target_ids(checkpoint.tensors["d2t"])
    return TorchHead(as_module(checkpoint), ids, target.embed, max_batch=3, max_context=128)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "llama-bias", "gemma3"])
def test_taps_are_the_states_of_the_pytorch_decoder(name: str) -> None:
    """Tied and untied embeddings, scaled ones, norms behind the layers; 150 rows, so two compiled passes."""
    rng = random.Random(0)
    ours, theirs = native_target(name), torch_target(name)
    ours.keep_hidden_layers(TAPS)
    for count in (5, 100):
        batch = [Rows.chain(slot, rng.choices(range(97), k=count), logits=[0]) for slot in (0, 1)]
        for decoder in (ours, theirs):
            while len(decoder._slots._slots) < 2:
                decoder.open()
            decoder.forward(batch)
            for rows in batch:
                decoder.commit(rows.slot, [0, 1])
        assert ours.features.shape == (2 * count, 3 * 48)
        close(ours.features, theirs.features)


def test_taps_do_not_change_logits() -> None:
    tokens = random.Random(1).choices(range(97), k=20)
    plain, tapped = native_target(precision=BF16), native_target(precision=BF16)
    tapped.keep_hidden_layers((2, 0, 3))
    expected = plain.forward([Rows.chain(plain.open(), tokens)])
    assert torch.equal(tapped.forward([Rows.chain(tapped.open(), tokens)]), expected)
    assert not plain.features.numel()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_like_the_pytorch_head(name: str, norm: bool, layers: int) -> None:
    """A ragged prompt from features, then a tree from its own states, a committed branch, and on from there."""
    ours_target, theirs_target = native_target(name), torch_target(name)
    checkpoint = head_for(ours_target, layers, norm)
    ours, theirs = exact(checkpoint, ours_target), torch_head(checkpoint, theirs_target)
    rng = random.Random(2)
    texts = [rng.choices(range(97), k=k) for k in (6, 19)]
    heads = (ours, theirs)
    slots = [head.open() for _ in texts for head in heads][::2]
    features = torch.randn(sum(map(len, texts)), 3 * 48, generator=torch.Generator().manual_seed(3))
    batch = [Rows.chain(slot, text) for slot, text in zip(slots, texts, strict=True)]
    a, b = (head.forward(batch, features=features) for head in heads)
    close(a.logits, b.logits)
    close(a.states, b.states)
    for head in heads:
        for rows in batch:
            head.commit(rows.slot, range(len(rows.tokens)))
    parents = [ROOT, 0, 0, 1, 2, 4]
    batch = [Rows(slot, rng.choices(range(97), k=6), parents, logits=[1, 5]) for slot in slots]
    states = b.states[[5, *range(3, 8), 24, *range(9, 14)]]
    a, b = (head.forward(batch, states=states) for head in heads)
    assert a.logits.shape == (4, DRAFT_VOCAB)
    close(a.logits, b.logits)
    close(a.states, b.states)
    for head in heads:
        head.commit(slots[0], [0, 2, 4])
        head.rollback(slots[1], 7)
    batch = [Rows.chain(slot, [3, 4]) for slot in slots]
    a, b = (head.forward(batch, features=features[:4]) for head in heads)
    close(a.logits, b.logits)
    close(a.states, b.states)


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("precision", [FP32, BF16, INT8], ids=lambda precision: precision.name)
def test_int8_is_near(precision: Precision, kernels: str) -> None:
    """As placed beside any target: the embedding is read as that stores it."""
    target = native_target("llama-bias" if precision is BF16 else "llama", precision, kernels)
    checkpoint = head_for(target, 2)
    ours = place_head(checkpoint, target)
    assert isinstance(ours, NativeHead)
    theirs = torch_head(checkpoint, torch_target("llama-bias" if precision is BF16 else "llama"))
    tokens = random.Random(4).choices(range(97), k=30)
    features = torch.randn(30, 3 * 48, generator=torch.Generator().manual_seed(5))
    a = ours.forward([Rows.chain(ours.open(), tokens)], features=features)
    b = theirs.forward([Rows.chain(theirs.open(), tokens)], features=features)
    for x, y in ((a.logits, b.logits), (a.states, b.states)):
        assert float((x - y).norm() / y.norm()) < 0.03
    assert float((a.logits.argmax(-1) == b.logits.argmax(-1)).float().mean()) > 0.8


@pytest.mark.parametrize("kernels", kernels_here())
def test_rows_do_not_depend_on_company(kernels: str) -> None:
    """One by one against together, in a batch and among decoys, bit for bit, states included."""
    target = native_target(precision=BF16, kernels=kernels)
    head = place_head(head_for(target, 2), target)
    tokens = random.Random(6).choices(range(97), k=40)
    features = torch.randn(40, 3 * 48, generator=torch.Generator().manual_seed(7))
    one, two, three = (head.open() for _ in range(3))
    singles = []
    for i, token in enumerate(tokens):
        output = head.forward([Rows.chain(one, [token])], features=features[i : i + 1])
        singles.append((output.logits[0].clone(), output.states[0].clone()))
        head.commit(one, [0])
    logits, states = (torch.stack(list(side)) for side in zip(*singles, strict=True))
    batch = [Rows.chain(three, [1, 2, 3]), Rows.chain(two, tokens[:33])]
    together = head.forward(batch, features=torch.cat([features[:3], features[:33]]))
    assert torch.equal(together.logits[3:], logits[:33])
    assert torch.equal(together.states[3:], states[:33])
    head.commit(two, range(33))
    tree = Rows(two, [7, tokens[33], 9, tokens[34], tokens[35]], [ROOT, ROOT, 1, 1, 3])
    grown = head.forward([tree], features=features[[0, 33, 5, 34, 35]])
    assert torch.equal(grown.logits[[1, 3, 4]], logits[33:36])
    assert torch.equal(grown.states[[1, 3, 4]], states[33:36])
    head.commit(two, [1, 3, 4])
    after = head.forward([Rows.chain(two, tokens[36:])], features=features[36:])
    assert torch.equal(after.logits, logits[36:])


@pytest.mark.parametrize("kernels", kernels_here())
def test_outliers_in_the_features_leave_the_rest_of_them(kernels: str) -> None:
    """Hidden states have a few dimensions hundreds of times as large as the others: one int8 scale would round the
    others to nothing. Within 3% of the head in fp32."""
    target = native_target(kernels=kernels)
    checkpoint = head_for(target)
    features = torch.randn(12, 3 * 48, generator=torch.Generator().manual_seed(10))
    features[:, [7, 60]] *= 300
    checkpoint.tensors["fc.weight"][:, [7, 60]] = 0  # what matters is in the others
    near, right = place_head(checkpoint, target), exact(checkpoint, target)
    a, b = (head.forward([Rows.chain(head.open(), range(12))], features=features) for head in (near, right))
    for x, y in ((a.logits, b.logits), (a.states, b.states)):
        assert float((x - y).norm() / y.norm()) < 0.03


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_ranking_is_what_the_logits_say(kernels: str, temperature: float) -> None:
    """The best tokens, their probabilities, and the best under the target's noise; greedy and sampled rows together."""
    target = native_target(precision=BF16, kernels=kernels)
    config = config_of(target.architecture, draft_vocab=DRAFT_VOCAB, aux_hidden_layers=TAPS)
    head = place_head(random_head(config, seed=8, std=0.6), target)
    assert isinstance(head, NativeHead)
    features = torch.randn(7, 3 * 48, generator=torch.Generator().manual_seed(9))
    wanted = [0, 2, 3, 6]
    batch = [Rows.chain(head.open(), [5, 6, 7, 8, 9, 10, 11], logits=wanted)]
    output = head.forward(batch, features=features)
    head.rollback(batch[0].slot, 0)
    keys = [NoiseKey(temperature, *row_key(1, 0, p)) if temperature else None for p in range(4)]
    keys[1] = None
    followers, states = head.rank(batch, keys, 5, features=features)
    assert torch.equal(states, output.states)
    for i, (row, key) in enumerate(zip(output.logits.double(), keys, strict=True)):
        scores = row / key.temperature if key else row
        shares = scores.softmax(-1)
        noisy = scores + gumbel_at([Key(1, 0, i)], head.ids)[0] if key else scores
        for ranked, found in ((scores, followers[i].likely), (noisy, followers[i].drawn)):
            best = ranked.topk(5).indices
            assert [token for token, _ in found] == head.ids[best].tolist()
            torch.testing.assert_close(torch.tensor([p for _, p in found]).double(), shares[best], atol=1e-5, rtol=1e-4)


def test_a_small_vocabulary_is_ranked_whole() -> None:
    target = native_target()
    head = place_head(random_head(config_of(target.architecture, draft_vocab=3, aux_hidden_layers=TAPS)), target)
    assert isinstance(head, NativeHead)
    batch = [Rows.chain(head.open(), [1])]
    (found,), _ = head.rank(batch, [NoiseKey(1.0, 2, 3)], 8, features=torch.zeros(1, 144))
    assert {token for token, _ in found.likely} == {token for token, _ in found.drawn} == set(head.ids.tolist())
    assert sum(p for _, p in found.likely) == pytest.approx(1)


def test_a_head_for_another_target_is_refused() -> None:
    with pytest.raises(DrafterError, match="another target"):
        place_head(head_for(native_target()), decoder_of(deeper(), "native"))


def deeper() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = reference("llama").config.to_dict() | {"num_hidden_layers": 4}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).float()


def test_heads_that_read_other_layers_take_turns_beside_one_target() -> None:
    target = native_target()
    first, second = (
        exact(random_head(config_of(target.architecture, draft_vocab=DRAFT_VOCAB, aux_hidden_layers=taps)), target)
        for taps in (TAPS, (0, 2))
    )
    prompt = list(range(5, 11))

    def turn(head: NativeHead) -> Tensor:
        slot, beside = head.open(), target.open()
        target.forward([Rows.chain(beside, prompt)])
        logits = head.forward([Rows.chain(slot, prompt[1:])], features=target.features[:-1]).logits.clone()
        head.commit(slot, range(len(prompt) - 1))
        head.close(slot)
        target.close(beside)
        return logits

    alone, _ = turn(first), turn(second)
    assert torch.equal(turn(first), alone)
    turn(second)
    first.reopen(0, 2)
    assert target.kept_hidden_layers == TAPS
    first.close(0)
    turn(second)
    copied = first.fork(0, 2)
    assert target.kept_hidden_layers == TAPS
    second.open()  # while the first still has a request
    with pytest.raises(DrafterError, match="cannot draft beside one target at the same time"):
        first.forward([Rows.chain(copied, [3])], features=torch.zeros(1, len(TAPS) * 48))
    with pytest.raises(DrafterError, match="cannot draft beside"):
        first.rank([Rows.chain(copied, [3])], [None], 2, features=torch.zeros(1, len(TAPS) * 48))
