"""Cost twins compute what their source computes; planted errors in growing one are caught by the same check."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from prompts import PROMPTS
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.bench.shapes import SHAPES, random_weights, tensor_axes, tensor_shape
from outrider.bench.twin import TWINS, TwinShape, twin_architecture, twin_tensors
from outrider.bench.twin_head import grown_head
from outrider.bench.twin_model import CutVocabulary, load_twin, twin_checkpoint
from outrider.control.controller import FixedLength
from outrider.core.model import LanguageModel, Rows
from outrider.drafters.none import NoDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.errors import ModelError
from outrider.llm import over_engine
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.load import place_head
from outrider.models.head.module import HeadModule
from outrider.models.load import placement
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import BF16, FP32
from outrider.models.torch_decoder import TorchDecoder

CPU = torch.device("cpu")
VOCAB = 97
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-2,  # large enough that forgetting to scale it shows
}  # fmt: skip
SHAPE = TwinShape(hidden=80, layers=5, mlp=112, query_width=12 * 16, key_value_width=3 * 16, vocab_size=120)
"""Groups of three heads become groups of four, and there is one group more."""
SOURCES: dict[str, dict[str, Any]] = {
    "tied": {"model_type": "llama", "tie_word_embeddings": True},
    "untied": {"model_type": "llama", "tie_word_embeddings": False},
    "window": {"model_type": "mistral", "sliding_window": 7},
}
Tensors = Iterable[tuple[str, Tensor]]


def source(name: str) -> Any:
    torch.manual_seed(0)
    options = dict(SOURCES[name])
    config = AutoConfig.for_model(options.pop("model_type"), **SMALL, **options)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def grown(model: Any, dtype: torch.dtype = torch.float32) -> tuple[Architecture, Iterator[tuple[str, Tensor]]]:
    architecture = Architecture.from_config(model.config.to_dict())
    tensors = twin_tensors(architecture, SHAPE, model.state_dict().items(), CPU, dtype, seed=1)
    return twin_architecture(architecture, SHAPE), tensors


def running(twin: Architecture, tensors: Tensors, kind: type[NativeDecoder] | type[TorchDecoder]) -> LanguageModel:
    if kind is NativeDecoder:
        decoder: LanguageModel = NativeDecoder.load(twin, tensors, FP32, max_batch=1, max_context=64, threads=1)
    else:
        decoder = TorchDecoder.load(
            twin, tensors, torch.float32, CPU, max_batch=1, max_context=64, bitwise=False
        )  # fmt: skip
    return CutVocabulary(decoder, VOCAB)


def difference(model: Any, twin: LanguageModel) -> float:
    """Largest difference of any logit over a random text."""
    tokens = random.Random(1).choices(range(VOCAB), k=40)
    slot = twin.open()
    ours = twin.forward([Rows.chain(slot, tokens)])
    twin.close(slot)
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0]
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("kind", [NativeDecoder, TorchDecoder])
@pytest.mark.parametrize("name", list(SOURCES))
def test_a_twin_computes_its_sources_function(name: str, kind: type[NativeDecoder] | type[TorchDecoder]) -> None:
    model = source(name)
    assert difference(model, running(*grown(model), kind)) < 1e-4


def _scale_norms(twin: Architecture, tensors: Tensors) -> tuple[Architecture, Tensors]:
    undo = math.sqrt(twin.hidden / SMALL["hidden_size"])
    return twin, ((name, tensor * undo if "norm" in name else tensor) for name, tensor in tensors)


def _keep_eps(twin: Architecture, tensors: Tensors) -> tuple[Architecture, Tensors]:
    return dataclasses.replace(twin, norm_eps=SMALL["rms_norm_eps"]), tensors


def _misplace_heads(twin: Architecture, tensors: Tensors) -> tuple[Architecture, Tensors]:
    """The first head of the second group where it would lie without padding the first one."""

    def swapped(name: str, tensor: Tensor) -> Tensor:
        if "q_proj" in name:
            tensor.view(12, 16, -1)[[3, 4]] = tensor.view(12, 16, -1)[[4, 3]]
        if "o_proj" in name:
            tensor.view(-1, 12, 16)[:, [3, 4]] = tensor.view(-1, 12, 16)[:, [4, 3]]
        return tensor

    return twin, ((name, swapped(name, tensor)) for name, tensor in tensors)


def _write_extra_width(part: str) -> Callable[[Architecture, Tensors], tuple[Architecture, Tensors]]:
    def planted(twin: Architecture, tensors: Tensors) -> tuple[Architecture, Tensors]:
        def written(name: str, tensor: Tensor) -> Tensor:
            if part in name:
                (tensor[:, -1] if part == "embed_tokens" else tensor[-1]).fill_(0.1)
            return tensor

        return twin, ((name, written(name, tensor)) for name, tensor in tensors)

    return planted


def _read_extra_neurons(twin: Architecture, tensors: Tensors) -> tuple[Architecture, Tensors]:
    return twin, ((n, t.index_fill(1, torch.tensor([111]), 0.1) if "down_proj" in n else t) for n, t in tensors)


@pytest.mark.parametrize(
    "plant",
    [
        _scale_norms,
        _keep_eps,
        _misplace_heads,
        _write_extra_width("embed_tokens"),
        _write_extra_width("o_proj"),
        _write_extra_width("down_proj"),
        _read_extra_neurons,
    ],
)
def test_planted_errors_are_caught(plant: Callable[[Architecture, Tensors], tuple[Architecture, Tensors]]) -> None:
    model = source("tied")
    assert difference(model, running(*plant(*grown(model)), TorchDecoder)) > 1e-3


def test_only_what_the_design_names_is_zero() -> None:
    """Weights cost the same whatever they hold, but zeros could be skipped or compressed: there are no others."""
    model = source("tied")
    twin, tensors = grown(model, torch.bfloat16)
    found = dict(tensors)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        name: tensor_shape(twin, axes) for name, axes in tensor_axes(twin)
    }
    all_zero = {name for name, tensor in found.items() if not tensor.any()}
    assert all_zero == {f"model.layers.{i}.{p}.weight" for i in (3, 4) for p in ("self_attn.o_proj", "mlp.down_proj")}
    for name, tensor in found.items():
        assert tensor.dtype == (torch.float32 if "norm" in name else torch.bfloat16), name
        assert torch.isfinite(tensor).all()
        if not name.endswith(("o_proj.weight", "down_proj.weight")):
            used = tensor[:, :48] if "embed_tokens" in name else tensor
            assert (used == 0).float().mean() < 0.01, name


def test_a_twin_is_a_function_of_its_seed() -> None:
    model = source("tied")
    architecture = Architecture.from_config(model.config.to_dict())

    def tensors(seed: int, order: int) -> dict[str, Tensor]:
        given = list(model.state_dict().items())[::order]
        return dict(twin_tensors(architecture, SHAPE, given, CPU, torch.float32, seed))

    first, again, other = tensors(1, 1), tensors(1, -1), tensors(2, 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_sources_and_shapes_that_do_not_fit_are_refused() -> None:
    small = Architecture.from_config({**SMALL, "model_type": "llama"})
    with pytest.raises(ModelError, match="qkv_bias"):
        twin_architecture(Architecture.from_config({**SMALL, "model_type": "qwen2"}), SHAPE)
    with pytest.raises(ModelError, match="qk_norm"):
        next(random_weights(Architecture.from_config({**SMALL, "model_type": "qwen3"}), CPU, torch.float32, 0))
    for field, value, message in [
        ("hidden", 40, "width 40, but the source has 48"),
        ("layers", 2, "layers 2, but the source has 3"),
        ("mlp", 64, "MLP width"),
        ("vocab_size", 96, "vocabulary"),
        ("key_value_width", 16, "key-value heads 1, but the source has 2"),
        ("key_value_width", 96, "query heads per key-value head 2, but the source has 3"),
        ("key_value_width", 40, "whole groups of heads 16 wide"),
    ]:
        with pytest.raises(ModelError, match=message):
            twin_architecture(small, dataclasses.replace(SHAPE, **{field: value}))
    with pytest.raises(ModelError, match="does not have"):
        list(
            twin_tensors(
                small, SHAPE, [("model.layers.0.self_attn.q_proj.bias", torch.zeros(1))], CPU, torch.float32, 0
            )
        )
    with pytest.raises(ModelError, match="has shape"):
        list(twin_tensors(small, SHAPE, [("model.norm.weight", torch.zeros(1))], CPU, torch.float32, 0))


def test_named_shapes_have_the_size_they_are_named_after() -> None:
    def billions(a: Architecture) -> float:
        return sum(math.prod(tensor_shape(a, axes)) for _, axes in tensor_axes(a)) / 1e9

    default = SHAPES["135m"]
    big, small = (twin_architecture(default, TWINS[name]) for name in ("8b", "1b"))
    assert billions(SHAPES["8b"]) == pytest.approx(8.03, abs=0.01)
    assert billions(SHAPES["1b"]) == pytest.approx(1.24, abs=0.01)
    assert billions(default) == pytest.approx(0.1345, abs=0.0001)
    assert (big.heads, big.kv_heads, big.head_dim) == (64, 16, 64)
    assert (big.kv_width, billions(big)) == (SHAPES["8b"].kv_width, billions(SHAPES["8b"]))
    # The embedding is never read whole; what a pass reads is the same within a hundredth.
    assert billions(small) - 128_256 * 2048 / 1e9 == pytest.approx(billions(SHAPES["1b"]), rel=0.01)


def test_random_weights_run_and_stay_finite() -> None:
    shape = dataclasses.replace(SHAPES["135m"], vocab_size=512)
    weights = random_weights(shape, CPU, torch.bfloat16, seed=3)
    model = NativeDecoder.load(shape, weights, BF16, max_batch=1, max_context=64, threads=1)
    slot = model.open()
    logits = model.forward([Rows.chain(slot, range(40))])
    assert torch.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


@pytest.fixture(scope="module", params=["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def default_twin(request: pytest.FixtureRequest, default_checkpoint: Checkpoint) -> tuple[LLM, LanguageModel]:
    """The default model, and its twin of twice the size."""
    llm = LLM(drafter="none", dtype=request.param, max_batch=4, max_context=256, device="cpu")
    place = placement(device="cpu", dtype=request.param, bitwise=None, threads=None, max_batch=4, max_context=256)
    return llm, load_twin(default_checkpoint, TWINS["tiny"], place)


def texts(llm: LLM, engine: Engine, temperature: float) -> tuple[list[list[int]], int]:
    """Token ids of some prompts decoded by `engine`, and how many of them were drafted."""
    prompts = [PROMPTS[i] for i in (0, 9, 10, 31)]
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=16, ignore_eos=True)
    done = over_engine(llm, engine).generate(prompts, params)
    return [each.token_ids for each in done], sum(each.accepted for each in done)


def test_the_default_models_twin(default_twin: tuple[LLM, LanguageModel]) -> None:
    """fp32: the source's logits and text. Any dtype: its own plain text, whatever is drafted."""
    llm, twin = default_twin
    plain, _ = texts(llm, Engine(twin, NoDrafter(), FixedLength(0)), 0.0)
    drafted, accepted = texts(llm, Engine(twin, SuffixDrafter(), FixedLength(6)), 0.0)
    assert drafted == plain
    assert accepted > 10
    if llm.model.dtype == torch.float32:  # type: ignore[attr-defined]
        assert plain == texts(llm, Engine(llm.model, NoDrafter(), FixedLength(0)), 0.0)[0]
        tokens = llm.tokenizer.encode(PROMPTS[3])
        ours, theirs = (model.forward([Rows.chain(model.open(), tokens)]) for model in (twin, llm.model))
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) < 1e-4
    else:
        sampled, _ = texts(llm, Engine(twin, NoDrafter(), FixedLength(0)), 0.8)
        assert texts(llm, Engine(twin, SuffixDrafter(), FixedLength(6)), 0.8)[0] == sampled


def test_a_twins_configuration_says_what_its_weights_are(default_checkpoint: Checkpoint) -> None:
    for name, shape in TWINS.items():
        twin = twin_checkpoint(default_checkpoint, shape, CPU)
        architecture = twin_architecture(Architecture.from_config(default_checkpoint.config), shape)
        assert Architecture.from_config(twin.config) == architecture, name
        assert twin.name == "twin of smollm2-135m"
        assert twin.weights.parameters == sum(
            math.prod(tensor_shape(architecture, axes)) for _, axes in tensor_axes(architecture)
        )


def _small_head() -> HeadCheckpoint:
    torch.manual_seed(4)
    config = HeadConfig.beside(
        Architecture.from_config({**SMALL, "model_type": "llama"}), 20, 2, aux_hidden_layers=(0, 2, 3)
    )
    module = HeadModule(config)
    for name, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2, mean=float("norm" in name))
    ids = torch.arange(20) * 4 + 1
    return HeadCheckpoint(config, {**module.state_dict(), "d2t": ids - torch.arange(20)}, {})


def head_difference(plant: Callable[[str, Tensor], Tensor] | None = None) -> float:
    """Largest difference of any logit the head of a model and the grown one of its twin give, states passed on."""
    model = source("untied")
    source_decoder = TorchDecoder.load(
        Architecture.from_config(model.config.to_dict()), model.state_dict().items(), torch.float32, CPU,
        max_batch=1, max_context=64, bitwise=False,
    )  # fmt: skip
    twin = running(*grown(model), TorchDecoder)
    assert isinstance(twin, CutVocabulary)
    head = grown_head(_small_head(), SHAPE, CPU, torch.float32)
    if plant is not None:
        head = dataclasses.replace(head, tensors={name: plant(name, tensor) for name, tensor in head.tensors.items()})
    tokens = random.Random(2).choices(range(VOCAB), k=12)
    found = []
    for target, placed in (
        (source_decoder, place_head(_small_head(), source_decoder)),
        (twin, place_head(head, twin.model)),
    ):
        target.forward([Rows.chain(target.open(), tokens[:-1], logits=())])
        slot = placed.open()
        first = placed.forward([Rows.chain(slot, tokens[1:])], features=target.features)
        placed.commit(slot, range(11))
        own = placed.forward([Rows.chain(slot, [7])], states=first.states[-1:])
        found.append(torch.cat([first.logits, own.logits])[:, :20])
        assert placed.ids.tolist()[:20] == [4 * i + 1 for i in range(20)]
        assert min(placed.ids.tolist()[20:], default=VOCAB) >= VOCAB
    return float((found[0] - found[1]).abs().max())


def test_a_grown_head_computes_its_sources_function() -> None:
    assert head_difference() < 1e-4


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.mlp.down_proj.weight", "layers.0.hidden_norm.weight"])
def test_planted_errors_in_a_grown_head_are_caught(name: str) -> None:
    """A state beyond the source's width, and a norm that was not scaled."""

    def plant(each: str, tensor: Tensor) -> Tensor:
        if each != name:
            return tensor
        return tensor * 1.1 if tensor.dim() == 1 else tensor.index_fill(0, torch.tensor([79]), 0.1)

    assert head_difference(plant) > 1e-3
