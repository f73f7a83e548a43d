"""What the training loop asks of whatever it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from outrider.train.batch import Texts


@dataclass(frozen=True, slots=True)
class Evaluation:
    loss: float
    """Of the next token, held out."""
    acceptance_length: float
    """Tokens per target pass, greedy chains."""
    per_position: list[float]
    """The chance that draft j is accepted, given that all before it were."""


class Student(Protocol):
    kind: str

    def parameters(self) -> Iterator[nn.Parameter]: ...
    @property
    def vocabulary(self) -> Tensor:
        """Of these the one that has a row per token."""
        ...

    def loss(self, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        """To be minimised, and statistics that are not waited for."""
        ...

    def evaluate(self, batches: Iterable[Texts]) -> Evaluation: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def export(self, folder: Path, about: Mapping[str, Any], texts: Iterable[Texts]) -> None:
        """`texts`: held out; to see what a smaller form of it may leave out."""
        ...
