"""What a head is trained on: unrolled attention, losses, and that training sees what decoding will do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_models import reference
from torch import Tensor
from torch.nn.functional import pad

from outrider.core.model import Rows
from outrider.models.architecture import Architecture, Rope
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.head.torch_head import TorchHead
from outrider.models.rotary import rotated, rotation_table
from outrider.models.weights import load_weights
from outrider.train import divergence, fast_arithmetic
from outrider.train.acceptance import ReplayedAcceptance
from outrider.train.arithmetic import Arithmetic, PlainArithmetic
from outrider.train.batch import Texts
from outrider.train.divergence import LOSSES, TargetDistribution, diverge
from outrider.train.fast_arithmetic import FastArithmetic
from outrider.train.head_student import HeadStudent, Unroll, start_from_target
from outrider.train.teacher import Teacher
from outrider.train.unroll import UnrolledAttention

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
"""The fused attention of GPUs knows no fp32."""
CLOSE = 3e-2 if DEVICE.type == "cuda" else 1e-5
ARITHMETIC: dict[str, Arithmetic] = {"plain": PlainArithmetic(), "kernels": FastArithmetic()}
"""The kernels run by Triton's interpreter where there is no GPU."""


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors too take several programs, rounds of a program and parts of a batch."""
    for name, size in {"_PROGRAMS": 4, "_TOKENS": 16, "_COLUMNS": 8, "_CELLS": 512}.items():
        monkeypatch.setattr(fast_arithmetic, name, size)
    monkeypatch.setattr(divergence, "_BYTES", 2000)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


Operation = Callable[[Arithmetic, Tensor, Tensor], Tensor]
ANGLES = random(5, 8)


def added(arithmetic: Arithmetic, x: Tensor, y: Tensor) -> Tensor:
    total = x.detach().clone()
    normed = arithmetic.add_norm(total, y.detach(), y[0, 0, 0].detach(), 1e-5)
    return torch.cat([total, normed])


OPERATIONS: dict[str, Operation] = {
    "norm": lambda a, x, y: a.norm(x, y[0, 0, 0], 1e-5),
    "norm of a part": lambda a, x, y: a.norm(x[..., 2:14], y[0, 0, 0, :12], 1e-2),
    "norm of rows": lambda a, x, y: a.norm(x.flatten(0, 2), y[0, 0, 0], 1e-5, torch.tensor([17, 3, 0], device=DEVICE)),
    "norm of no rows": lambda a, x, y: a.norm(x[0, 0], y[0, 0, 0], 1e-5, torch.arange(0, device=DEVICE)),
    "gated": lambda a, x, y: a.gated(x, y),
    "gated by gelu": lambda a, x, y: a.gated(x.detach().chunk(2, -1)[1], y.detach().chunk(2, -1)[0], gelu=True),
    "rotated": lambda a, x, y: a.rotated(x[:, :, 1:], ANGLES.cos(), ANGLES.sin()),
    "added": added,
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_kernel_computes_what_pytorch_does(name: str) -> None:
    """Forwards and backwards, with gradients that are views of something larger."""
    x, y, mixing = (random(2, 5, 3, 16, seed=i) for i in range(3))
    results = []
    for arithmetic in ARITHMETIC.values():
        inputs = [each.clone().requires_grad_() for each in (x, y)]
        out = OPERATIONS[name](arithmetic, *inputs)
        grads: list[Tensor | None] = []
        if out.requires_grad:
            wide = torch.cat([out, out.detach()], -1)
            loss = (wide * mixing.flatten()[: wide.shape[-1]]).sum()
            grads += torch.autograd.grad(loss, inputs, allow_unused=True)
        results.append((out, grads))
    (plain, wanted), (fast, found) = results
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("kind", "first"), [("plain", 0), ("plain", 11), ("kernels", 11)])
def test_unrolled_attention_and_its_gradients_are_those_of_the_dense_form(kind: str, first: int) -> None:
    torch.manual_seed(0)
    arithmetic = ARITHMETIC[kind]
    batch, length, heads, kv, dim, steps = 2, 40, 6, 2, 16, 4
    rotation = rotation_table(Rope(1e4, dim), length, DEVICE)
    shapes = [heads] * steps + [kv] * 2 * steps
    tensors = [torch.randn(batch, length, h, dim).to(DEVICE, DTYPE).requires_grad_() for h in shapes]
    q, k, v = tensors[:steps], tensors[steps : 2 * steps], tensors[2 * steps :]
    mixing = [torch.randn(batch, length, heads * dim).to(DEVICE) for _ in range(steps)]

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
        row = torch.arange(length, device=DEVICE)
        outs = []
        for j in range(steps):
            scores = []
            for i in range(j + 1):
                keys = rotated(k[i].float(), *turn).repeat_interleave(heads // kv, 2)
                score = torch.einsum("bqhd,bkhd->bhqk", rotated(q[j].float(), *turn), keys) * dim**-0.5
                seen = row <= row[:, None] - j if i == 0 else row == row[:, None] - (j - i)
                scores.append(score.masked_fill(~seen, -1e30))
            values = torch.cat([v[i].float().repeat_interleave(heads // kv, 2) for i in range(j + 1)], 1)
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
            assert torch.dist(a.float(), b.float()) <= CLOSE * b.float().norm()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_every_loss_is_the_one_autograd_finds(name: str, kind: str) -> None:
    torch.manual_seed(1)
    arithmetic = ARITHMETIC[kind]
    rows, hidden, vocab = 37, 12, 33
    states = torch.randn(rows, hidden).to(DEVICE).requires_grad_()
    matrix = torch.randn(vocab, hidden).to(DEVICE).requires_grad_()
    target, weight = torch.randn(rows, vocab).to(DEVICE), torch.rand(rows).to(DEVICE)
    token = torch.randint(0, vocab, (rows,)).to(DEVICE)
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

    loss, chosen = diverge(
        states, matrix, TargetDistribution.of(target, token, arithmetic), weight, LOSSES[name], arithmetic
    )
    expected = plainly()
    torch.testing.assert_close(loss, expected)
    assert torch.equal(chosen, (states @ matrix.T).argmax(-1))
    found, wanted = (torch.autograd.grad(x, (states, matrix)) for x in (loss, expected))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def pupil(
    family: str, layers: int, arithmetic: Arithmetic, device: torch.device, dtype: torch.dtype
) -> tuple[HeadStudent, Teacher]:
    """A student that is not yet any good, of a tiny random target."""
    model = reference(family)
    architecture = Architecture.from_config(model.config.to_dict())
    tensors = model.state_dict().items()
    weights = load_weights(architecture, tensors, dtype, device, lambda layer: layer)
    teacher = Teacher(architecture, weights, 64, arithmetic)
    config = HeadConfig.beside(
        architecture, architecture.vocab_size // 2, layers, aux_hidden_layers=(1, len(architecture.layers))
    )
    module = HeadModule(config)
    ids = torch.arange(config.draft_vocab) * 2
    start_from_target(module, weights, ids)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return HeadStudent(module, ids, teacher, LOSSES["kl+tv"], Unroll(3), 64), teacher


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_step_by_kernels_is_the_plain_step(family: str) -> None:
    """Loss and every gradient, teacher included; answers that begin in the middle, one of them short."""
    tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(3))
    texts = Texts(tokens, [12, 9], [6, 5], [True, False])
    results = []
    for arithmetic in ARITHMETIC.values():
        student, _ = pupil(family, 2, arithmetic, DEVICE, DTYPE)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss, _ = student.loss(texts)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append([loss.detach(), *(p.grad for p in student.parameters())])
    for a, b in zip(*results, strict=True):
        assert a is not None
        assert b is not None
        assert torch.dist(a, b) <= 3 * CLOSE * b.norm()


@pytest.mark.parametrize(("family", "layers"), [("llama", 1), ("qwen3", 2)])
def test_a_student_guesses_what_its_head_will_draft(family: str, layers: int) -> None:
    """Training sees the states, positions and attention that decoding will have: for every start of a draft and every
    depth, the unrolled guess is the head's own, its cache fed with true features and then its own states."""
    student, teacher = pupil(family, layers, PlainArithmetic(), CPU, torch.float32)
    module, ids, config = student.module, student.ids, student.module.config
    architecture = teacher.architecture
    text = torch.randint(0, architecture.vocab_size, (1, 12))
    texts = Texts(text, [12], [4], [True])
    guesses = torch.stack([chosen for _, chosen, _, _ in student._steps(texts)])  # [steps, answer tokens]

    head = TorchHead(module, ids, teacher.embed, max_batch=1, max_context=64)
    features = teacher.read(text, config.aux_hidden_layers).features[0]
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
    acceptance = ReplayedAcceptance(2)
    acceptance.replay(right)
    # Draft tokens 0 and 1 (right at depth 0 and 1) and a bonus; draft 3, 4 and a bonus.
    assert (acceptance.passes, acceptance.tokens) == (2, 6)
    assert acceptance.length == 3.0
    assert acceptance.per_position == [1.0, 1.0]
