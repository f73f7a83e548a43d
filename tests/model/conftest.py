"""A tiny model, and a decoder of it that has few slots and reads prompts in pieces: what engines are tested over."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_engine import small_decoder
from tiny_models import reference

from outrider.models.native.decoder import NativeDecoder


@pytest.fixture(scope="module")
def source() -> Any:
    return reference("llama")


@pytest.fixture
def model(source: Any) -> NativeDecoder:
    made = small_decoder(source)
    made.chunk = 24  # prompts take several steps
    return made
