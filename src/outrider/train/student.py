"""What learns, and what it learns from, as the training loop sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
B_contra = TypeVar("B_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """On held-out text. A draft's position counts as accepted with the probability the target would accept it with."""

    loss: float
    acceptance_length: float
    """Tokens per target pass, the target's own included."""
    accepted_per_position: list[float]
    """Share of drafts accepted up to this position at least; falling."""


class Student(Protocol[B_contra]):
    kind: str
    """For people: "head", "draft model"."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those that learn, fp32, in an order that never changes."""
        ...

    def loss(self, batch: B_contra) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss to go down, and numbers worth watching (`acceptance_length` among them), all still on the device."""
        ...

    def evaluate(self, batches: Iterable[B_contra]) -> Evaluation: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> Any: ...
    def export(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Write what `outrider` loads, every file whole or not at all."""
        ...


class Lessons(Protocol[B_co]):
    """The corpus in batches. The batch at a position is always the same one."""

    @property
    def per_epoch(self) -> int: ...
    def batches(self, start: int) -> Iterator[tuple[B_co, int]]:
        """From position `start` on, without end, epoch after epoch: the batch and how many tokens it holds."""
        ...

    def held_out(self) -> Iterable[B_co]: ...
