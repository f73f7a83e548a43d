"""The bulk writer against the decoder: the same greedy tokens, samples that do not depend on lane or company, and its
kernels against plain PyTorch (by Triton's interpreter where there is no GPU)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.core.model import Rows
from outrider.errors import TrainingError
from outrider.models.architecture import Architecture
from outrider.models.torch_decoder import TorchDecoder
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights
from outrider.train.engine_writer import EngineWriter
from outrider.train.jobs import Job, Written
from outrider.train.operations import TorchOperations
from outrider.train.triton_operations import TritonOperations
from outrider.train.writer import Writer, fitting_lanes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
VOCAB, EOS, CONTEXT = 97, 5, 80
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-bias": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral-window": {"model_type": "mistral", "sliding_window": 7},
    "qwen3": {"model_type": "qwen3"},
    "gemma": {"model_type": "gemma"},
}
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}

Model = tuple[Architecture, DecoderWeights[LayerWeights]]


def small(family: str, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Model:
    torch.manual_seed(0)
    options = dict(FAMILIES[family])
    config = AutoConfig.for_model(options.pop("model_type"), **SMALL, **options)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make every term matter
        torch.nn.init.normal_(parameter, std=0.3)
    architecture = Architecture.from_config(config.to_dict())
    tensors = ((name, tensor.to(dtype)) for name, tensor in model.state_dict().items())
    return architecture, load_weights(architecture, tensors, dtype, device, lambda layer: layer)


def some_jobs(count: int, temperature: float | None = None) -> Iterator[Job]:
    rng = random.Random(1)
    for number in range(count):
        prompt = rng.choices(range(6, VOCAB), k=rng.randint(1, 30))
        yield Job(prompt, rng.choice([0.0, 0.7, 1.0]) if temperature is None else temperature, 25, number, "t")


def by_number(written: Iterator[Written]) -> dict[int, list[int]]:
    return {w.number: w.tokens.tolist() for w in written}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_greedy_tokens_are_the_decoder_s(family: str) -> None:
    architecture, weights = small(family)
    decoder = TorchDecoder(architecture, weights, max_batch=1, max_context=CONTEXT, bitwise=False)
    writer = Writer(architecture, weights, [EOS], lanes=4, context=CONTEXT, seed=0)
    jobs = {job.number: job for job in some_jobs(9, temperature=0.0)}
    seen = 0
    for written in writer.write(iter(list(jobs.values()))):
        job = jobs.pop(written.number)
        slot, tokens = decoder.open(), list(job.prompt)
        new = tokens
        while len(tokens) < len(job.prompt) + job.max_new and (tokens is new or tokens[-1] != EOS):
            logits = decoder.forward([Rows(slot, new, tuple(range(-1, len(new) - 1)), (len(new) - 1,))])
            decoder.commit(slot, range(len(new)))
            new = [int(logits[0].argmax())]
            tokens = tokens + new
        decoder.close(slot)
        assert written.tokens.tolist() == tokens
        assert written.prompt_length == len(job.prompt)
        assert written.finished == (tokens[-1] == EOS)
        seen += 1
    assert seen == 9
    assert not jobs


def test_a_sample_depends_on_its_number_alone() -> None:
    """Not on the lane, the company or how often the host looks; but on the seed."""
    architecture, weights = small("llama")

    def write(seed: int, lanes: int, interval: int) -> dict[int, list[int]]:
        writer = Writer(architecture, weights, [EOS], lanes=lanes, context=CONTEXT, seed=seed, interval=interval)
        return by_number(writer.write(some_jobs(12)))

    alone = write(3, 1, 1)
    assert len(alone) == 12
    assert write(3, 5, 1) == alone
    assert write(3, 5, 7) == alone
    other = write(4, 5, 1)
    changed = [job.number for job in some_jobs(12) if other[job.number] != alone[job.number]]
    sampled = [job.number for job in some_jobs(12) if job.temperature > 0]
    assert set(changed) <= set(sampled)
    assert len(changed) > len(sampled) // 2


def test_the_engine_writes_the_same() -> None:
    """The CPU's writer: greedy sequences are the same, samples depend on seed and number alone."""
    architecture, weights = small("llama")

    def write(seed: int, slots: int) -> list[Written]:
        model = TorchDecoder(architecture, weights, max_batch=slots, max_context=CONTEXT, bitwise=False)
        return list(EngineWriter(model, [EOS], seed=seed).write(some_jobs(12)))

    ours = {w.number: w for w in write(3, 5)}
    theirs = {
        w.number: w for w in Writer(architecture, weights, [EOS], lanes=4, context=CONTEXT, seed=3).write(some_jobs(12))
    }
    assert ours.keys() == theirs.keys()
    for number, written in ours.items():
        assert written.prompt_length == theirs[number].prompt_length
        assert written.finished == (written.tokens[-1] == EOS)
        assert written.temperature > 0 or written.tokens.tolist() == theirs[number].tokens.tolist()
    assert by_number(iter(write(3, 1))) == by_number(iter(ours.values()))
    other = by_number(iter(write(4, 5)))
    assert any(other[number] != written.tokens.tolist() for number, written in ours.items())


def test_the_engine_waits_for_jobs_made_from_results() -> None:
    architecture, weights = small("llama")
    model = TorchDecoder(architecture, weights, max_batch=2, max_context=CONTEXT, bitwise=False)
    jobs: list[Job | None] = [Job([9, 8], 0.0, 4, 0, "t"), None]
    seen = []
    for written in EngineWriter(model, [EOS], seed=0).write(iter(lambda: jobs.pop(0) if jobs else None, "never")):
        seen.append(written.number)
        if len(seen) < 3:
            jobs.append(Job(written.tokens.tolist(), 0.0, 4, len(seen), "t"))
    assert seen == [0, 1, 2]


def test_a_lagging_host_gives_the_same_sequences() -> None:
    """As on a GPU: lanes are read one round late, and reloaded while an old snapshot still shows them ended."""
    architecture, weights = small("llama")
    writer = Writer(architecture, weights, [EOS], lanes=3, context=CONTEXT, seed=3, interval=4)
    prompt = by_number(writer.write(some_jobs(20)))
    writer._lag = 1
    assert by_number(writer.write(some_jobs(20))) == prompt
    assert writer.steps > 0


def test_samples_follow_the_distribution() -> None:
    """First tokens after one prompt, 4000 times, against softmax(logits / T): total variation as chance allows."""
    architecture, weights = small("llama")
    decoder = TorchDecoder(architecture, weights, max_batch=1, max_context=CONTEXT, bitwise=False)
    logits = decoder.forward([Rows(decoder.open(), (7, 8), (-1, 0), (1,))])[0]
    for temperature in (1.0, 0.5):
        expected = torch.softmax(logits / temperature, 0)
        writer = Writer(architecture, weights, [EOS], lanes=500, context=8, seed=1)
        jobs = (Job((7, 8), temperature, 1, number, "t") for number in range(4000))
        counts = torch.zeros(VOCAB)
        for written in writer.write(jobs):
            counts[int(written.answer[0])] += 1
        noise = (expected * (1 - expected) / 4000).sqrt().sum() / 2 * 0.8
        assert 0.5 * (counts / 4000 - expected).abs().sum() < 1.5 * noise


def test_jobs_can_follow_from_results() -> None:
    architecture, weights = small("llama")
    writer = Writer(architecture, weights, [EOS], lanes=3, context=CONTEXT, seed=0)
    waiting = list(some_jobs(2))
    total = 6

    def jobs() -> Iterator[Job | None]:
        made = 0
        while made < total:
            made += bool(waiting)
            yield waiting.pop() if waiting else None

    numbers = []
    for written in writer.write(jobs()):
        numbers.append(written.number)
        if written.number < 8:
            waiting.append(Job(written.tokens.tolist()[:10], 1.0, 5, written.number + 4, "next"))
    assert sorted(numbers) == [0, 1, 4, 5, 8, 9]


def test_refusals() -> None:
    architecture, weights = small("llama")
    writer = Writer(architecture, weights, [EOS], lanes=2, context=CONTEXT, seed=0)
    for prompt in ([], [7] * CONTEXT):
        with pytest.raises(TrainingError, match="prompt 3"):
            list(writer.write(iter([Job(prompt, 0.0, 4, 3, "t")])))
    with pytest.raises(TrainingError, match="context"):
        Writer(architecture, weights, [EOS], lanes=2, context=10_000, seed=0)
    weights.norm.fill_(torch.nan)
    with pytest.raises(TrainingError, match="not finite"):
        list(writer.write(iter([Job([7], 1.0, 4, 3, "t")])))


def test_a_full_context_ends_a_sequence() -> None:
    architecture, weights = small("llama")
    writer = Writer(architecture, weights, [], lanes=2, context=16, seed=0)
    (written,) = writer.write(iter([Job([7] * 10, 1.0, 100, 0, "t")]))
    assert len(written.tokens) == 16
    assert not written.finished


def test_lanes_on_the_cpu_are_what_was_asked() -> None:
    assert fitting_lanes(small("llama")[0], torch.float32, CPU, context=64, most=7) == 7


@pytest.mark.parametrize("family", ["llama-bias", "mistral-window", "qwen3", "gemma"])
def test_kernels_compute_what_pytorch_does(family: str) -> None:
    """Each operation on the same inputs: lanes at the start, deep in the cache, at a block's edge."""
    from outrider.train.lanes import WriterLanes

    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    close: dict[str, Any] = {"atol": 3e-2, "rtol": 2e-2} if DEVICE.type == "cuda" else {"atol": 4e-3, "rtol": 4e-3}
    a, weights = small(family, dtype, DEVICE)
    lanes = WriterLanes(5, 200, [EOS], 0, DEVICE)
    lanes.load([(i, Job([9], [0.0, 1.0, 0.7, 1.0, 0.0][i], 5, 10 + i, "t")) for i in range(5)])
    lanes.position.copy_(torch.tensor([0, 63, 64, 150, 5]))
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    caches = [random(2, 2, 5, a.kv_heads, 200, a.head_dim)]
    caches.append(caches[0].clone())
    plain, fast = TorchOperations(a, caches[0], lanes), TritonOperations(a, caches[1], lanes)
    layer, qkv = weights.layers[1], random(5, a.q_width + 2 * a.kv_width)
    torch.testing.assert_close(fast.attend(1, layer, qkv.clone()), plain.attend(1, layer, qkv), **close)
    torch.testing.assert_close(caches[1], caches[0], **close)
    x, update = random(5, a.hidden), random(5, a.hidden)
    copy = x.clone()
    torch.testing.assert_close(fast.norm(x, layer.mlp_norm), plain.norm(x, layer.mlp_norm), **close)
    normed = fast.add_norm(copy, update, layer.mlp_norm)
    torch.testing.assert_close(normed, plain.add_norm(x, update, layer.mlp_norm), **close)
    torch.testing.assert_close(copy, x, **close)
    gate_up = random(5, 2 * a.mlp)
    torch.testing.assert_close(fast.gate(gate_up), plain.gate(gate_up), **close)
    logits = 3 * random(5, VOCAB, dtype=torch.float32)
    assert [t.tolist() for t in fast.choose(logits)[:1]] == [t.tolist() for t in plain.choose(logits)[:1]]
    torch.testing.assert_close(fast.choose(logits)[1], plain.choose(logits)[1], atol=1e-4, rtol=1e-4)


def test_choices_over_many_blocks_are_pytorch_s() -> None:
    """A vocabulary of several blocks, not a whole number of them, greedy and sampled."""
    from outrider.train.lanes import WriterLanes

    a, _ = small("llama")
    a = replace(a, vocab_size=9001)
    lanes = WriterLanes(12, 8, [EOS], 0, DEVICE)
    lanes.load([(i, Job([9], i % 3 / 2, 5, i, "t")) for i in range(12)])
    logits = torch.randn(12, 9001, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    cache = torch.zeros(1, 2, 12, 2, 8, 16, device=DEVICE)
    chosen = TorchOperations(a, cache, lanes).choose(logits)[0].tolist()
    assert TritonOperations(a, cache, lanes).choose(logits)[0].tolist() == chosen
    assert max(chosen) > 4096
    assert chosen[::3] == logits[::3].argmax(1).tolist()


def test_a_whole_run_with_the_kernels() -> None:
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    architecture, weights = small("llama", dtype, DEVICE)
    options: dict[str, Any] = {"lanes": 2, "context": 32, "seed": 1}
    jobs = [Job([9, 8, 7], 0.0, 6, number, "t") for number in range(3)]
    jobs.append(Job([9, 8, 7, 6], 1.0, 6, 3, "t"))
    fast = by_number(Writer(architecture, weights, [EOS], **options, kernels=TritonOperations).write(iter(jobs)))
    plain = by_number(Writer(architecture, weights, [EOS], **options, kernels=TorchOperations).write(iter(jobs)))
    assert fast == plain
