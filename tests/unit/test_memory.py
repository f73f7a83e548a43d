"""Recycled memory: never handed out while anything looks at it, and handed out again once nothing does."""

from __future__ import annotations

import pytest
import torch

from outrider.models.memory import Recycled


@pytest.mark.parametrize("hold", [lambda t: t, lambda t: t[1:2], lambda t: t.numpy()[0], lambda t: t[:, 3]])
def test_memory_in_use_is_left_alone(hold: object) -> None:
    assert callable(hold)
    recycled = Recycled()
    first = recycled.empty(2, 5).fill_(1.0)
    address = first.data_ptr()
    kept = hold(first)
    del first
    second = recycled.empty(2, 5).fill_(2.0)
    assert second.data_ptr() != address
    assert torch.as_tensor(kept).eq(1.0).all()
    del kept
    assert recycled.empty(2, 5).data_ptr() == address


def test_no_rows() -> None:
    assert Recycled().empty(0, 7).shape == (0, 7)
