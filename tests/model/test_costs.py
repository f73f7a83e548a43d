"""What passes cost, measured on real kernels: nothing that a request can see changes, and tables are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_engine import TinyParts
from tiny_models import decoder_of, reference

from outrider.control.costs import ROWS, CostTable
from outrider.core.model import Rows
from outrider.drafters.registry import build
from outrider.engine.costs import Costs
from outrider.models.architecture import Architecture
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import BF16, FP32, INT8, Precision


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_measuring_changes_nothing_that_a_sequence_can_see(kind: str) -> None:
    """Sequences stand in every slot; what they say next has the same bits after any passes were timed."""
    source: Any = reference("llama")
    fresh, timed = decoder_of(source, kind), decoder_of(source, kind)
    assert timed.measurable
    said = []
    for model in (fresh, timed):
        slots = [model.open() for _ in range(model.max_batch)]
        for slot in slots:
            model.forward([Rows.chain(slot, range(slot, slot + 20), logits=())])
            model.commit(slot, range(20))
        if model is timed:
            for rows in (1, 5, 32):
                for context in (1, 17, 10**6):
                    assert timed.measure(rows, context) > 0
        said.append(model.forward([Rows.chain(slot, [7, 8]) for slot in slots]))
    assert torch.equal(*said)


@pytest.mark.parametrize("precision", [FP32, BF16, INT8])
@pytest.mark.parametrize("room", [1, 8, 31, 32, 33, 64, 96])
def test_measuring_writes_nothing_behind_its_workspace(room: int, precision: Precision) -> None:
    """What lies behind the scores, made for this context and no more, stays as it was."""
    source = reference("llama")
    tensors = ((name, tensor.to(precision.source)) for name, tensor in source.state_dict().items())
    shape = Architecture.from_config(source.config.to_dict())
    model = NativeDecoder.load(shape, tensors, precision, max_batch=1, max_context=room, threads=1)
    size = model._model.shape.threads * model._model.scores_size
    scores = torch.full((size + 8192,), 123.0)
    model._model.scores = scores.data_ptr()
    for rows in (1, 4, 16, 32):
        for context in (1, 64, 1024):
            assert model.measure(rows, context) > 0
    assert scores[size:].eq(123.0).all()


def test_a_head_is_measured_too() -> None:
    source: Any = reference("llama")
    target = decoder_of(source, "native")
    head = TinyParts(source, target).head("")
    assert head.measurable
    assert all(head.measure(rows, 10) > 0 for rows in (1, 4))


def test_tables_are_kept_by_all_that_costs_depend_on(tmp_path: Path) -> None:
    source: Any = reference("llama")
    model = decoder_of(source, "native")
    drafter = build("head:tiny", TinyParts(source, model))
    costs = Costs(tmp_path, {"threads": 2})
    assert costs.load(model, drafter) is None
    survey = costs.survey(model, drafter)
    assert survey is not None
    table = survey.whole()
    assert list(table.rows) == list(ROWS)
    assert set(table.drafting) == {"head"}
    costs.save(model, drafter, table)  # a restless machine may not have kept it
    kept = costs.load(model, drafter)
    assert kept is not None
    assert kept.pass_seconds(32, 50) == table.pass_seconds(32, 50)
    assert Costs(tmp_path, {"threads": 3}).load(model, drafter) is None
    assert costs.load(model, build("suffix", TinyParts(source, model))) is None, "it has no head to cost anything"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"rows": [1], "contexts": [], "seconds": [], "drafting": {}}', "\0"])
def test_a_broken_table_is_measured_again(tmp_path: Path, text: str) -> None:
    source: Any = reference("llama")
    model = decoder_of(source, "native")
    drafter = build("suffix", TinyParts(source, model))
    costs = Costs(tmp_path, {})
    costs.save(model, drafter, CostTable(ROWS, (1, 2), ([1.0] * len(ROWS),) * 2))
    assert costs.load(model, drafter) is not None
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert costs.load(model, drafter) is None


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file, not a folder")
    source: Any = reference("llama")
    model = decoder_of(source, "native")
    drafter = build("suffix", TinyParts(source, model))
    costs = Costs(tmp_path / "costs", {})
    costs.save(model, drafter, CostTable(ROWS, (1, 2), ([1.0] * len(ROWS),) * 2))
    assert costs.load(model, drafter) is None
