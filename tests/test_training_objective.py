"""What a head is trained on: unrolled attention, losses, and that training sees what decoding will do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_decoder import reference
from torch import Tensor
from torch.nn.functional import pad

from outrider.models.architecture import Architecture, Rope
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.head.torch_head import TorchHead
from outrider.models.rotary import rotated, rotation_table
from outrider.models.weights import load_weights
from outrider.train.acceptance import Acceptance
from outrider.train.arithmetic import PlainArithmetic
from outrider.train.batch import Texts
from outrider.train.divergence import LOSSES, Target, diverge
from outrider.train.fast_arithmetic import FastArithmetic
from outrider.train.head_student import HeadStudent, Unroll, start_from_target
from outrider.train.teacher import Teacher
from outrider.train.unroll import UnrolledAttention
from outrider.types import Rows

CPU = torch.device("cpu")
ARITHMETIC = {"plain": PlainArithmetic(), "kernels": FastArithmetic()}
"""The kernels run by Triton's interpreter where there is no GPU."""


@pytest.mark.parametrize(("kind", "first"), [("plain", 0), ("plain", 11), ("kernels", 11)])
def test_unrolled_attention_and_its_gradients_are_those_of_the_dense_form(kind: str, first: int) -> None:
    torch.manual_seed(0)
    arithmetic = ARITHMETIC[kind]
    batch, length, heads, kv, dim, steps = 2, 40, 6, 2, 16, 4
    rotation = rotation_table(Rope(1e4, dim), length, CPU)
    shapes = [heads] * steps + [kv] * 2 * steps
    tensors = [torch.randn(batch, length, h, dim, requires_grad=True) for h in shapes]
    q, k, v = tensors[:steps], tensors[steps : 2 * steps], tensors[2 * steps :]
    mixing = [torch.randn(batch, length, heads * dim) for _ in range(steps)]

    def fused() -> list[Tensor]:
        attend = UnrolledAttention(1, steps, rotation, dim**-0.5, arithmetic, first)
        outs = []
        for j in range(steps):
            attend.step = j
            seen = [x[j][:, first if j else 0 :] for x in (q, k, v)]
            outs.append(pad(attend(0, *seen), (0, 0, first if j else 0, 0)))
        return outs

    def dense() -> list[Tensor]:
        turn = rotation[0][:, None], rotation[1][:, None]
        row = torch.arange(length)
        outs = []
        for j in range(steps):
            scores = []
            for i in range(j + 1):
                keys = rotated(k[i], *turn).repeat_interleave(heads // kv, 2)
                score = torch.einsum("bqhd,bkhd->bhqk", rotated(q[j], *turn), keys) * dim**-0.5
                seen = row <= row[:, None] - j if i == 0 else row == row[:, None] - (j - i)
                scores.append(score.masked_fill(~seen, -1e30))
            values = torch.cat([v[i].repeat_interleave(heads // kv, 2) for i in range(j + 1)], 1)
            out = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(torch.cat(scores, -1), -1), values).flatten(2)
            outs.append(out * (row >= (first + j if j else 0))[:, None])
        return outs

    results = []
    for outs in (fused(), dense()):
        loss = sum((out * mix).sum() for out, mix in zip(outs, mixing, strict=True))
        assert isinstance(loss, Tensor)
        results.append((outs, torch.autograd.grad(loss, tensors)))
    for ours, expected in zip(*results, strict=True):
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_every_loss_is_the_one_autograd_finds(name: str, kind: str) -> None:
    torch.manual_seed(1)
    arithmetic = ARITHMETIC[kind]
    rows, hidden, vocab = 7, 12, 33
    states = torch.randn(rows, hidden, requires_grad=True)
    matrix = torch.randn(vocab, hidden, requires_grad=True)
    target, weight = torch.randn(rows, vocab), torch.rand(rows)
    token = torch.randint(0, vocab, (rows,))
    token[2] = -1

    def plainly() -> Tensor:
        student, p = torch.log_softmax(states @ matrix.T, -1), torch.log_softmax(target, -1)
        each = {
            "ce": -student.gather(1, token.clamp(min=0)[:, None])[:, 0] * (token >= 0),
            "kl": (p.exp() * (p - student)).sum(-1),
            "tv": 0.5 * (p.exp() - student.exp()).abs().sum(-1),
        }
        loss = {**each, "kl+ce": 0.5 * (each["kl"] + each["ce"]), "kl+tv": 0.5 * each["kl"] + each["tv"]}[name]
        return (loss * weight).sum()

    loss, chosen = diverge(states, matrix, Target.of(target, token, arithmetic), weight, LOSSES[name], arithmetic)
    expected = plainly()
    torch.testing.assert_close(loss, expected)
    assert torch.equal(chosen, (states @ matrix.T).argmax(-1))
    found, wanted = (torch.autograd.grad(x, (states, matrix)) for x in (loss, expected))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("family", "layers"), [("llama", 1), ("qwen3", 2)])
def test_a_student_guesses_what_its_head_will_draft(family: str, layers: int) -> None:
    """Training sees the states, positions and attention that decoding will have: for every start of a draft and every
    depth, the unrolled guess is the head's own, its cache fed with true features and then its own states."""
    model = reference(family)
    architecture = Architecture.from_config(model.config.to_dict())
    tensors = model.state_dict().items()
    weights = load_weights(architecture, tensors, torch.float32, CPU, lambda layer: layer)
    teacher = Teacher(architecture, weights, 64)
    config = HeadConfig.beside(architecture, architecture.vocab_size // 2, layers, taps=(1, len(architecture.layers)))
    module = HeadModule(config)
    ids = torch.arange(config.draft_vocab) * 2
    start_from_target(module, weights, ids)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    student = HeadStudent(module, ids, teacher, LOSSES["kl"], Unroll(3), 64)
    text = torch.randint(0, architecture.vocab_size, (1, 12))
    texts = Texts(text, [12], [4], [True])
    guesses = torch.stack([chosen for _, chosen, _, _ in student._steps(texts)])  # [steps, answer tokens]

    head = TorchHead(module, ids, teacher.embed, max_batch=1, max_context=64)
    features = teacher.read(text, config.taps).features[0]
    tokens = text[0].tolist()
    for begin in range(4, 12):  # the first token to be drafted
        slot = head.open()
        output = head.forward([Rows.chain(slot, tokens[1:begin])], features=features[: begin - 1])
        head.commit(slot, range(begin - 1))
        for j in range(3):
            if begin + j >= 12:
                break
            assert int(guesses[j, begin + j - 4]) == int(output.logits[-1].argmax())
            output = head.forward([Rows(slot, tokens[begin + j : begin + j + 1], [j - 1])], states=output.states[-1:])
        head.close(slot)


def test_replayed_acceptance_counts_passes_as_decoding_does() -> None:
    right = np.array([[1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=bool)
    acceptance = Acceptance(2)
    acceptance.replay(right)
    # Draft tokens 0 and 1 (right at depth 0 and 1) and a bonus; draft 3, 4 and a bonus.
    assert (acceptance.passes, acceptance.tokens) == (2, 6)
    assert acceptance.length == 3.0
    assert acceptance.per_position == [1.0, 1.0]
