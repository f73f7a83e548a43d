"""What a drafting head is: its own layers, and where it reads the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.errors import DrafterError
from outrider.models.architecture import Architecture, LayerShape


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """`architecture` describes the head's own layers: Llama's, except that the first takes the embedding beside the
    state and so is twice as wide at its input; its vocabulary is the draft vocabulary.

    `taps`: which of the target's states are read. Tap i is the residual stream after i layers (before layer i).
    """

    architecture: Architecture
    taps: tuple[int, ...]
    target_hidden: int
    target_vocab: int
    target_layers: int
    norm_before_residual: bool = False
    """Whether the normalised state, instead of the state itself, starts the residual stream."""

    @property
    def hidden(self) -> int:
        return self.architecture.hidden

    @property
    def draft_vocab(self) -> int:
        return self.architecture.vocab_size

    @property
    def feature_width(self) -> int:
        return len(self.taps) * self.target_hidden

    @staticmethod
    def beside(target: Architecture, draft_vocab: int, layers: int, taps: Sequence[int] | None = None) -> HeadConfig:
        """A head shaped like `layers` of the target's own layers."""
        count = len(target.layers)
        taps = default_taps(count) if taps is None else tuple(taps)
        if not taps or min(taps) < 0 or max(taps) > count:
            raise DrafterError(
                f"taps {list(taps)} are not layers of a target that has {count}; choose from 0 to {count}"
            )
        own = replace(
            target,
            family="llama",
            vocab_size=draft_vocab,
            layers=(LayerShape(rope=0, window=0),) * layers,
            ropes=target.ropes[:1],
            tied=False,
            activation="silu",
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=False,
            norm_offset=0.0,
            sandwich_norms=False,
            embed_scale=1.0,
            attention_scale=target.head_dim**-0.5,
        )
        return HeadConfig(own, taps, target.hidden, target.vocab_size, count)

    def check_target(self, target: Architecture) -> None:
        """Raise `DrafterError` unless the head reads states of this shape and drafts for this vocabulary."""
        pairs = (
            ("hidden states", self.target_hidden, target.hidden, "wide"),
            ("a vocabulary", self.target_vocab, target.vocab_size, "tokens large"),
            ("a depth", self.target_layers, len(target.layers), "layers"),
        )
        for what, wanted, found, unit in pairs:
            if wanted != found:
                raise DrafterError(
                    f"the head was made for another target: {what} {wanted} {unit}, this one has {found}; "
                    "train a head for this target with `outrider train`"
                )


def default_taps(layers: int) -> tuple[int, ...]:
    """Low, middle and high, as the field has it."""
    return tuple(dict.fromkeys((min(2, layers), layers // 2, max(layers - 3, 0))))
