"""What a drafting head is: its own layers, and where it reads the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from outrider.errors import DrafterError
from outrider.models.architecture import Architecture, LayerShape

_UNSAID = 3
"""Layers that a head reads which does not say which."""
_ADVICE = "train a head for this target with `outrider train`"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """`architecture` describes the head's own layers: Llama's, except that the first takes the embedding beside the
    state and so is twice as wide at its input; its vocabulary is the draft vocabulary.

    `aux_hidden_layers`: which of the target's states are read, rising: i is the residual stream after i layers.
    Empty where a head does not say: then they are vLLM's default for the target it is placed beside.
    """

    architecture: Architecture
    aux_hidden_layers: tuple[int, ...]
    target_hidden: int
    target_vocab: int
    target_layers: int
    """0: not known."""
    norm_before_residual: bool = False
    """Whether the normalised state, instead of the state itself, starts the residual stream."""
    acceptance: tuple[float, ...] = ()
    """As `DraftHead.acceptance`."""

    def __post_init__(self) -> None:
        if any(later <= layer for layer, later in pairwise(self.aux_hidden_layers)):
            raise DrafterError(
                f"layers {list(self.aux_hidden_layers)} do not rise; list each layer once, the lowest first"
            )

    @property
    def hidden(self) -> int:
        return self.architecture.hidden

    @property
    def draft_vocab(self) -> int:
        return self.architecture.vocab_size

    @property
    def feature_width(self) -> int:
        return (len(self.aux_hidden_layers) or _UNSAID) * self.target_hidden

    @staticmethod
    def beside(
        target: Architecture, draft_vocab: int, layers: int, aux_hidden_layers: Sequence[int] | None = None
    ) -> HeadConfig:
        """A head shaped like `layers` of the target's own layers."""
        count = len(target.layers)
        read = default_aux_hidden_layers(count) if aux_hidden_layers is None else tuple(aux_hidden_layers)
        if not read or min(read) < 0 or max(read) > count:
            raise DrafterError(
                f"layers {list(read)} are not layers of a target that has {count}; choose from 0 to {count}"
            )
        own = Architecture(
            family="llama",
            vocab_size=draft_vocab,
            hidden=target.hidden,
            heads=target.heads,
            kv_heads=target.kv_heads,
            head_dim=target.head_dim,
            mlp=target.mlp,
            norm_eps=target.norm_eps,
            max_context=target.max_context,
            layers=(LayerShape(rope=0, window=0),) * layers,
            ropes=(replace(target.ropes[0], still=0),),
            tied=False,
            attention_scale=target.head_dim**-0.5,
        )
        return HeadConfig(own, read, target.hidden, target.vocab_size, count)

    def for_target(self, target: Architecture) -> HeadConfig:
        """As read beside this target; `DrafterError` unless its states and vocabulary have the right shape."""
        count = len(target.layers)
        pairs = (
            ("hidden states", self.target_hidden, target.hidden, "wide"),
            ("embeddings", self.hidden, target.hidden, "wide"),
            ("a vocabulary", self.target_vocab, target.vocab_size, "tokens large"),
            ("a depth of", self.target_layers or count, count, "layers"),
        )
        for what, wanted, found, unit in pairs:
            if wanted != found:
                raise DrafterError(
                    f"the head was made for another target: {what} {wanted} {unit}, this one has {found}; {_ADVICE}"
                )
        read = self.aux_hidden_layers or default_aux_hidden_layers(count)
        if max(read) > count or len(read) * target.hidden != self.feature_width:
            raise DrafterError(
                f"the head was made for another target: it reads more layers than this one has ({count}); {_ADVICE}"
            )
        return replace(self, aux_hidden_layers=read)


def spread_aux_hidden_layers(layers: int) -> tuple[int, ...]:
    """What our own heads read: up to two more than the field's three, between them."""
    third = layers * 3 // 10
    return tuple(sorted({*default_aux_hidden_layers(layers), third, layers - third}))


def default_aux_hidden_layers(layers: int) -> tuple[int, ...]:
    """Low, middle and high, as the field has it; fewer where the target has hardly any layers."""
    return tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 0)}))
