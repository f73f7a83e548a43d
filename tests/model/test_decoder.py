"""The decoders against transformers' own implementation, and their cache against a fresh prefill."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from integers import narrowed
from tiny_models import ARCHITECTURES, decoder_of, logits_of, reference

from outrider.core.model import LanguageModel, Rows
from outrider.models.architecture import Architecture
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import kernels_here
from outrider.models.native.stack import unsupported_reason
from outrider.models.precision import FP16, INT8, blocks, dequantised, quantise
from outrider.models.torch_decoder import TorchDecoder


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def model(request: pytest.FixtureRequest) -> Any:
    return reference(request.param)


@pytest.fixture(scope="module", params=["torch", "torch-bitwise", "native"])
def pair(request: pytest.FixtureRequest, model: Any) -> tuple[Any, LanguageModel]:
    return model, decoder_of(model, request.param, threads=2)


def test_logits_match_transformers(pair: tuple[Any, LanguageModel]) -> None:
    model, decoder = pair
    tokens = random.Random(1).choices(range(97), k=40)
    slot = decoder.open()
    ours = decoder.forward([Rows.chain(slot, tokens)])
    decoder.close(slot)
    torch.testing.assert_close(ours, logits_of(model, tokens), atol=1e-4, rtol=0)


def test_tree_rows_see_their_own_path_only(pair: tuple[Any, LanguageModel]) -> None:
    """Each node's logits equal transformers' on prefix + path, in a ragged batch, and after committing a branch."""
    model, decoder = pair
    rng = random.Random(2)
    prefixes = [rng.choices(range(97), k=k) for k in (5, 23)]
    parents = [-1, 0, 0, 1, 2, 4]
    nodes = rng.choices(range(97), k=6)
    slots = [decoder.open() for _ in prefixes]
    for slot, prefix in zip(slots, prefixes, strict=True):
        decoder.forward([Rows.chain(slot, prefix, logits=[])])
        decoder.commit(slot, range(len(prefix)))
    ours = decoder.forward([Rows(slot, nodes, parents) for slot in slots]).view(2, 6, 97)
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 2, 4, 5]]
    for prefix, rows in zip(prefixes, ours, strict=True):
        for path, row in zip(paths, rows, strict=True):
            expected = logits_of(model, prefix + [nodes[i] for i in path])[-1]
            torch.testing.assert_close(row, expected, atol=1e-4, rtol=0)
    for slot, prefix in zip(slots, prefixes, strict=True):
        decoder.commit(slot, [0, 2, 4])
        after = decoder.forward([Rows.chain(slot, [11])])[0]
        expected = logits_of(model, [*prefix, nodes[0], nodes[2], nodes[4], 11])[-1]
        torch.testing.assert_close(after, expected, atol=1e-4, rtol=0)
        decoder.rollback(slot, 3)
        again = decoder.forward([Rows.chain(slot, [12])])[0]
        torch.testing.assert_close(again, logits_of(model, [*prefix[:3], 12])[-1], atol=1e-4, rtol=0)
        decoder.close(slot)


def test_a_row_by_itself_has_the_same_bits(pair: tuple[Any, LanguageModel]) -> None:
    """Level C in every family: one token a pass against all in one."""
    _, decoder = pair
    assert isinstance(decoder, NativeDecoder | TorchDecoder)
    if not decoder.bitwise:
        pytest.skip("the fast PyTorch decoder does not promise it")
    tokens = random.Random(4).choices(range(97), k=20)
    slot = decoder.open()
    together = decoder.forward([Rows.chain(slot, tokens)]).clone()
    decoder.commit(slot, [])
    for token, row in zip(tokens, together, strict=True):
        assert torch.equal(decoder.forward([Rows.chain(slot, [token])])[0], row)
        decoder.commit(slot, [0])
    decoder.close(slot)


def rounded(model: Any) -> Any:
    """The model with every matrix replaced by what its int8 form stands for, and so what goes into it."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            values = torch.empty(module.weight.shape, dtype=torch.int8)
            scales = torch.empty(len(values), blocks(values.shape[1]))
            quantise(module.weight.data, values, scales)
            module.weight = torch.nn.Parameter(dequantised(values, scales))
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, given: (narrowed(given[0]),))
    return model


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("name", ["llama-bias", "qwen3", "gemma3"])
def test_int8_is_the_rounded_model(name: str, kernels: str) -> None:
    """int8 weights and inputs, tied and untied, with biases. What is left is the cache in bf16, and inputs that round
    the other way by it; the products themselves are held to the bit by test_products.py."""
    tokens = random.Random(3).choices(range(97), k=24)
    decoder = decoder_of(reference(name), "native", INT8, kernels, threads=2)
    ours = decoder.forward([Rows.chain(decoder.open(), tokens)])
    exact = logits_of(rounded(reference(name)), tokens)
    assert (ours - exact).std() < 0.03 * exact.std()


@pytest.mark.parametrize("name", ["gemma3", "olmo2", "granite", "stablelm", "gemma2"])
def test_threads_change_no_bit(name: str) -> None:
    """With few rows in int8 every thread adds and normalises all of them for itself."""
    model = reference(name)
    alone, together = (decoder_of(model, "native", INT8, threads=threads) for threads in (1, 3))
    slots = alone.open(), together.open()
    for tokens in ([1, 2, 3], [4], [5, 6, 7, 8, 9], list(range(40))):
        one, three = (
            decoder.forward([Rows.chain(slot, tokens)]) for decoder, slot in zip((alone, together), slots, strict=True)
        )
        assert torch.equal(one, three)


def test_results_are_kept_while_someone_looks_at_them() -> None:
    """Memory of logits is used again, but never under a tensor that is still alive, views of it included."""
    decoder = decoder_of(reference("llama"), "native")
    slot = decoder.open()
    first = decoder.forward([Rows.chain(slot, [1, 2, 3])])
    row, copy, address = first[1], first[1].clone(), first.data_ptr()
    del first
    second = decoder.forward([Rows.chain(slot, [4, 5, 6])])
    assert torch.equal(row, copy)
    assert second.data_ptr() != address
    del row
    assert decoder.forward([Rows.chain(slot, [7])]).data_ptr() == address


def test_int8_is_refused_where_only_the_pytorch_decoder_runs() -> None:
    architecture = Architecture.from_config(reference("llama").config.to_dict())
    odd = dataclasses.replace(architecture, hidden=40)
    assert "40" in str(unsupported_reason(odd, INT8))
    assert unsupported_reason(architecture, INT8) is None
    assert "fp16" in str(unsupported_reason(architecture, FP16))
