"""Level B on a real model: whole short requests drawn with and without speculation have one distribution.

A two-sample chi-squared test at false-alarm rate 1e-3. Its power is computed, not hoped for: the samples are large
enough that a rule off by 0.1 in total variation would be missed less than one time in a hundred. A rule broken on
purpose (the recovered token drawn from p instead of the residual) must be caught by the same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from pace import cut_model
from scipy import stats

from outrider import LLM, SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT, Draft, Verdict
from outrider.core.model import LanguageModel
from outrider.drafters.model import ModelDrafter, ModelDrafterConfig
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import load_model, placement
from outrider.sampling.random_source import RandomSource, Stream
from outrider.verify import RULES, Target

PROMPT = "The weather"
"""Two tokens: every sample reads them again."""
TOKENS = 3
"""The first comes with the prompt's pass, and the last but one is drafted."""
SAMPLES = 3200
BATCH = 50
FALSE_ALARM = 1e-3
SHIFT = 0.1
"""Total variation the test must not miss."""

Sample = tuple[int, ...]


@pytest.fixture(scope="module")
def llm(cut_checkpoint: Checkpoint) -> LLM:
    return LLM(str(cut_checkpoint.path), drafter="none", dtype="bf16", max_batch=BATCH, max_context=64)


@pytest.fixture(scope="module")
def draft_model(cut_checkpoint: Checkpoint, cut_layers: int, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """Two thirds of the target's layers."""
    folder = cut_model(cut_checkpoint, tmp_path_factory.mktemp("draft"), layers=max(1, 2 * cut_layers // 3))
    place = placement(device="cpu", dtype="bf16", bitwise=None, threads=None, max_batch=BATCH, max_context=64)
    return load_model(open_checkpoint(str(folder), SilentProgress()), place)


def draw(llm: LLM, engine: Engine, first_seed: int) -> Counter[Sample]:
    """Independent samples: a fresh seed each. Of the tokens after the first, for which nothing is drafted."""
    llm._engine = engine
    params = [
        SamplingParams(
            temperature=1.3, top_k=3, max_tokens=TOKENS, seed=first_seed + i, ignore_eos=True, verify="rejection"
        )
        for i in range(SAMPLES)
    ]
    return Counter(tuple(c.token_ids[1:]) for c in llm.generate([PROMPT] * SAMPLES, params))


@pytest.fixture(scope="module")
def plain(llm: LLM) -> Counter[Sample]:
    return draw(llm, Engine(llm.model, NoDrafter(), FixedLength(0)), 1_000_000)


def cells(a: Counter[Sample], b: Counter[Sample]) -> list[list[Sample]]:
    """Outcomes common enough to stand alone, the rest pooled, so that chi-squared holds."""
    common = [[s] for s in sorted(a | b) if a[s] + b[s] >= 40]
    rest = [s for s in sorted(a | b) if a[s] + b[s] < 40]
    return [*common, rest] if rest else common


def p_value(a: Counter[Sample], b: Counter[Sample]) -> float:
    table = [[sum(side[s] for s in cell) for cell in cells(a, b)] for side in (a, b)]
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def power(a: Counter[Sample], shift: float) -> float:
    """Chance to notice that mass `shift` moved, in the way hardest to notice: spread in proportion."""
    p = np.array([sum(a[s] for s in cell) for cell in cells(a, a)]) / SAMPLES
    half = np.cumsum(p) < 0.5  # a set of about half the mass loses what the other half gains
    moved = np.where(half, -shift * p / p[half].sum(), shift * p / p[~half].sum())
    noncentrality = SAMPLES * float((moved**2 / (2 * p + moved)).sum())
    limit = stats.chi2.isf(FALSE_ALARM, len(p) - 1)
    return float(stats.ncx2.sf(limit, len(p) - 1, noncentrality))


@pytest.mark.parametrize("branching", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_sequences_have_the_targets_distribution(
    llm: LLM, draft_model: LanguageModel, plain: Counter[Sample], branching: int
) -> None:
    drafter = ModelDrafter(draft_model, ModelDrafterConfig(branching))
    fast = draw(llm, Engine(llm.model, drafter, FixedLength(2 * branching)), 5_000_000 * branching)
    assert power(plain, SHIFT) > 0.99
    assert p_value(plain, fast) > FALSE_ALARM


def no_residual(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """Broken on purpose: a refused draft is replaced by a sample of p, as if nothing had been refused."""
    path: list[int] = []
    node = ROOT
    while True:
        p = target.logp(node).exp()
        children: Sequence[int] = draft.children(node)
        assert draft.q is not None or not children
        for child in children[:1]:
            x = draft.tokens[child]
            q = float(draft.q[child][x].exp()) if draft.q is not None else 1.0
            if chance.bernoulli(min(1.0, float(p[x]) / q), Stream.ACCEPT, child):
                path.append(child)
                node = child
                break
        else:
            return Verdict(tuple(path), chance.categorical(p / p.sum(), Stream.TARGET, node))


def test_a_broken_rule_is_caught(llm: LLM, draft_model: LanguageModel, plain: Counter[Sample]) -> None:
    drafter, controller = ModelDrafter(draft_model), FixedLength(2)
    host = HostExecutor(llm.model, drafter, controller, {**RULES, "rejection": no_residual})
    broken = draw(llm, Engine(llm.model, drafter, controller, executor=host), 7_000_000)
    assert p_value(plain, broken) < FALSE_ALARM
