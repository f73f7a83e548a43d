"""Synthetic acceptance has the mean it was asked for, and no way leads from generating text to it."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from enumeration import outcomes
from tiny_gguf import bpe_metadata, write_hf_model
from toy import TableModel, language, request, resolved, rows_of
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import LLM, SamplingParams
from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.synthetic_engine import synthetic_engine
from outrider.cli.main import main
from outrider.core.draft import ROOT, Budget, Draft
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView, VerifyRule
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.errors import InvalidRequest
from outrider.sampling.history import History
from outrider.sampling.random_source import KeyedRandom
from outrider.verify import RULES

VOCAB = 11
TALK = language(VOCAB, seed=4)


@pytest.mark.parametrize("draft_length", [1, 4, 7])
def test_the_mean_is_exact(draft_length: int) -> None:
    """By enumeration of every outcome; each is a possible number of accepted tokens."""
    for mean in [1, 1.001, 1.5, 1.9, (draft_length + 2) / 2, draft_length + 0.3, draft_length + 1]:
        found = list(outcomes(SyntheticAcceptance(draft_length, mean).accepted))
        assert all(0 <= count <= draft_length for count, _ in found)
        assert math.fsum(weight for _, weight in found) == pytest.approx(1, abs=1e-12)
        assert 1 + math.fsum(count * weight for count, weight in found) == pytest.approx(mean, abs=1e-12)


def test_draws_are_keyed_by_seed_and_step() -> None:
    rule = SyntheticAcceptance(4, 2.7)
    counts = [[rule.accepted(KeyedRandom(seed, 0, step)) for step in range(4000)] for seed in (1, 1, 2)]
    assert counts[0] == counts[1] != counts[2]
    # 1 + mean = 2.7 with a spread of sqrt(0.7 · 0.3 / 4000) = 0.007
    assert 1 + sum(counts[0]) / 4000 == pytest.approx(2.7, abs=0.03)


@pytest.mark.parametrize(("draft_length", "mean"), [(4, 0.9), (4, 5.1), (0, 1.5), (4, math.nan), (-1, 1)])
def test_what_cannot_be_had_is_refused(draft_length: int, mean: float) -> None:
    with pytest.raises(InvalidRequest, match="draft"):
        SyntheticAcceptance(draft_length, mean)


def test_a_tree_is_followed_along_its_first_path() -> None:
    seq = request([1, 2], resolved(VOCAB, temperature=0.0))
    draft = Draft([3, 4, 5, 6], [ROOT, ROOT, 0, 0], [0.5] * 4, "test")
    target = rows_of(TALK, seq, draft)
    verdict = SyntheticAcceptance(4, 3)(draft, target, KeyedRandom(0, 0, 0))
    assert verdict.path == (0, 2)
    assert verdict.token == target.choose(2)
    whole = SyntheticAcceptance(4, 5)(draft, target, KeyedRandom(0, 0, 0))
    assert whole.path == (0, 2), "a draft that is too short is accepted whole"


class Nonsense(Drafter):
    """Always a full chain that the target would hardly ever agree with."""

    name = "nonsense"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            Draft([len(s.tokens) % VOCAB] * b.nodes, range(-1, b.nodes - 1), [0.5] * b.nodes, self.name)
            for s, b in zip(requests, budgets, strict=True)
        ]


@pytest.mark.parametrize("verify", list(RULES))
@pytest.mark.parametrize("mean", [1.0, 2.6, 3.0, 5.0])
def test_an_engine_measures_at_the_set_length(mean: float, verify: VerifyRule) -> None:
    tokens = 400
    params = resolved(VOCAB, temperature=0.0, max_tokens=tokens, verify=verify)
    model = TableModel(TALK, VOCAB, max_context=tokens + 8)
    engine = synthetic_engine(model, Nonsense(), SyntheticAcceptance(4, mean))
    run = Request(0, [1, 2], 2, params, tokens, TextStream(lambda token: b".", (), False), History([1, 2]))
    engine.add(run)
    while run.finish_reason is None:
        engine.step()
    assert len(run.completion().token_ids) == tokens
    expected = tokens / (1 + (tokens - 1) / mean)  # the first comes with the prompt's pass
    assert run.completion().mean_acceptance_length == pytest.approx(expected, abs=0.1 if mean == 2.6 else 0.03)


def test_only_exact_rules_have_names() -> None:
    assert set(get_args(VerifyRule)) == set(RULES)
    assert not SyntheticAcceptance.lossless
    for rule in RULES.values():
        assert getattr(rule, "lossless", True)
        assert not isinstance(rule, SyntheticAcceptance)
    for name in ("synthetic", "synthetic-acceptance", SyntheticAcceptance(4, 3.0)):
        with pytest.raises(InvalidRequest, match="verify must be 'coupled' or 'rejection'"):
            SamplingParams(verify=cast(Any, name))


def test_llm_has_no_place_for_it(tmp_path: Path) -> None:
    """No parameter takes rules, and its engine has the exact ones."""
    options = {*inspect.signature(LLM.__init__).parameters, *inspect.signature(LLM.generate).parameters}
    assert not options & {"rules", "rule", "synthetic", "synthetic_acceptance"}
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    write_hf_model(tmp_path / "tiny.gguf", LlamaForCausalLM(config), bpe_metadata())
    llm = LLM(str(tmp_path / "tiny.gguf"), device="cpu")
    executors = [value.executor for value in vars(llm).values() if isinstance(value, Engine)]
    assert [each.rules for each in executors if isinstance(each, HostExecutor)] == [RULES]


def test_commands_do_not_know_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by option nor by name, and what generates text never loads the module."""
    for arguments in (["--verify", "synthetic"], ["--synthetic-acceptance", "3"]):
        monkeypatch.setattr(sys, "argv", ["outrider", "generate", "x", *arguments])
        with pytest.raises(SystemExit) as exit_code:
            main()
        assert exit_code.value.code == 2
        assert arguments[0] in capsys.readouterr().err
    loaded = "import sys, outrider.llm, outrider.cli.generate, outrider.cli.chat; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "outrider.llm" in modules
    assert "outrider.bench.synthetic" not in modules
