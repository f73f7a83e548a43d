"""Hostile options of `outrider bench`: a sentence that names what is wrong, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.bench import sampling
from outrider.bench.results import Results
from outrider.bench.waves import parse_concurrency
from outrider.errors import InvalidRequest


@pytest.mark.parametrize("text", ["t0.00001", "t0.7-p0.00001", "t100000000"])
def test_names_of_sampling_methods_are_read_again(text: str) -> None:
    """Cells keep the name, and it is parsed again when they are run: `t1e-05` is not understood then."""
    method = sampling.parse(text)
    assert sampling.parse(method.name) == method


def test_numbers_of_too_many_digits() -> None:
    with pytest.raises(InvalidRequest):
        parse_concurrency("9" * 5000)
    with pytest.raises(InvalidRequest):
        sampling.parse("t1-k" + "9" * 5000)


def test_temperatures_beyond_all_numbers() -> None:
    with pytest.raises(InvalidRequest):
        sampling.parse("t" + "9" * 400)


@pytest.mark.parametrize("settings", [{}, []])
def test_results_without_their_settings(settings: object, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    empty: dict[str, object] = {name: [] for name in ("arms", "skipped", "measurements", "waves")}
    path.write_text(json.dumps({"format": 1, "settings": settings, "provenance": {}, "complete": True} | empty))
    with pytest.raises(InvalidRequest):
        Results.load(path).document()
