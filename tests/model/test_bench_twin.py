"""`outrider bench --twin` on a tiny model: every kind of arm with a head runs the twin with the head grown to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_head import config_of, random_head
from tiny_llm import tiny_gguf

from outrider.bench import measured_model, twin
from outrider.bench.names import parse_all
from outrider.bench.questions import Question
from outrider.bench.run import BenchConfig, run
from outrider.bench.twin import TwinShape
from outrider.bench.waves import Cell
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress


@pytest.mark.parametrize("shape", ["small", None])
def test_arms_with_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str | None) -> None:
    model, head = tiny_gguf(tmp_path), tmp_path / "head"
    architecture = Architecture.from_config(open_checkpoint(str(model), SilentProgress()).config)
    random_head(config_of(architecture, draft_vocab=200, aux_hidden_layers=(0, 1, 2))).write(head)
    grown = TwinShape(hidden=48, layers=3, mlp=64, query_width=64, key_value_width=32, vocab_size=320)
    monkeypatch.setitem(twin.TWINS, "small", grown)
    monkeypatch.setattr(measured_model, "shipped_head", lambda _: head)  # auto finds one
    config = BenchConfig(
        model=str(model),
        arms=parse_all([f"plain,auto,head:{head}:3,head+suffix:{head},head+suffix:{head}:tree6,head+suffix:{head}:2"]),
        questions=[Question("1", "chat", ("hello hello",))],
        suite="one",
        max_tokens=12,
        dtype="fp32",
        twin=shape,
        cells=[Cell(2, "t0.7")],
        rounds=2,
    )
    results = run(config, SilentProgress(), lambda results: None)
    assert results.complete
    assert results.skipped == {}
    said = {each.arm: each.timing.token_ids for each in results.measurements}
    assert set(said) == {arm.text for arm in config.arms}
    assert len(set(map(tuple, filter(None, said.values())))) == 1, "all arms say what plain decoding says"
    cells = results.document()["never_slower"]
    assert [entry["arm"] for entry in cells] == [arm.text for arm in config.arms][1:]
    assert all(entry["identical"] == entry["answers"] for entry in cells)
