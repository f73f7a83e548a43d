"""`NativeHead`: a drafting head in the compiled pass, beside the `NativeDecoder` whose states it reads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, byref, pointer, sizeof
from dataclasses import dataclass
from struct import pack

import torch
from torch import Tensor

from outrider.core.model import DraftHead, HeadOutput, NoiseKey, Rows, TopK, WantedTree
from outrider.errors import DrafterError
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights
from outrider.models.memory import lazy_zeros
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import MOST_RANKED, Drafts, Fusion, Node, Noise, Partial, Ranking
from outrider.models.native.packing import PackedLayer, PackedMatrix, Packer
from outrider.models.native.stack import MAX_ROWS, NativeStack, described
from outrider.models.precision import FP32, INT8

LEAST_SCREENED = 2048
"""Draft ids from which on most logits are computed in 4 bits (gemm_screen.h): of fewer, that leaves out hardly any."""


@dataclass(frozen=True, slots=True)
class PackedHead:
    """A head's weights as the kernels read them, one matrix behind the other in the order of a pass."""

    fc: PackedMatrix
    layers: list[PackedLayer]
    head: PackedMatrix
    state_norm: Tensor
    norm: Tensor
    ids: Tensor
    """As `HeadWeights.ids`."""

    @staticmethod
    def of(weights: HeadWeights) -> PackedHead:
        """Weights in int8, or in fp32, which is for comparison."""
        packer = Packer()
        fc = packer.matrix(weights.fc.values, None, weights.fc.scales)
        layers = [packer.layer(layer) for layer in weights.layers]
        values, scales = weights.lm_head.values, weights.lm_head.scales  # two thirds of all
        if scales is not None and len(values) >= LEAST_SCREENED:
            head = packer.screened(values, scales)
        else:
            head = packer.matrix(values, None, scales)
        return PackedHead(fc, layers, head, weights.hidden_norm, weights.norm, weights.ids)


class NativeHead(NativeStack, DraftHead):
    """On the CPU; it also ranks what may follow."""

    most_ranked = MOST_RANKED
    drafts_trees = True

    def __init__(self, config: HeadConfig, weights: PackedHead, target: NativeDecoder) -> None:
        """`target` keeps what the config reads from now on."""
        int8 = weights.fc.scales is not None
        shape = target._model.shape
        super().__init__(
            config.architecture,
            weights.layers,
            INT8 if int8 else FP32,
            max_batch=target.max_batch,
            max_context=target.max_context,
            threads=shape.threads,
            kernels=target.kernels,
            integers=int8,
        )
        self.config = config
        self.acceptance = config.acceptance
        self.aux_hidden_layers = config.aux_hidden_layers
        self.ids = weights.ids
        self._target = target  # its embedding is pointed into
        target.keep_hidden_layers(config.aux_hidden_layers)
        m = self._model
        m.norm = self._keep(weights.norm)
        m.head = self._matrix(weights.head)
        self._fusion = Fusion(
            target=pointer(target._model),
            fc=self._matrix(weights.fc),
            state_norm=self._keep(weights.state_norm),
            features=self._keep(torch.zeros(MAX_ROWS, weights.fc.depth, dtype=torch.float32 if int8 else self.dtype)),
            embedded=self._keep(torch.zeros(MAX_ROWS, config.hidden)),
            normed_residual=config.norm_before_residual,
        )
        m.fusion = addressof(self._fusion)
        self._make_workspace([m.head, self._fusion.fc])
        self.keep_hidden_layers([len(weights.layers)])  # the states that come out
        columns = self._keep(weights.ids.to(torch.int32))
        partials = self._keep(torch.zeros(shape.threads * MAX_ROWS * sizeof(Partial), dtype=torch.uint8))
        # What `rank` uses again and again: a pass is short, and making these would be a good part of it.
        self._ranking = Ranking(columns=config.draft_vocab, ids=columns, partials=partials)
        self._states = torch.zeros(2, MAX_ROWS, config.hidden)
        self._logits = lazy_zeros((MAX_ROWS, m.head.columns), torch.float32, self.device)
        self._states_at, self._logits_at = self._states.data_ptr(), self._logits.data_ptr()
        self._given_width = config.feature_width

    def open(self) -> int:
        """The target gives its states as this head reads them from now on: heads that read other layers can take turns
        beside one target, not run at the same time."""
        self._target.keep_hidden_layers(self.aux_hidden_layers)
        return super().open()

    def reopen(self, slot: int, length: int) -> None:
        self._target.keep_hidden_layers(self.aux_hidden_layers)
        super().reopen(slot, length)

    def fork(self, source: int, length: int) -> int:
        self._target.keep_hidden_layers(self.aux_hidden_layers)
        return super().fork(source, length)

    def forward(
        self, batch: Sequence[Rows], *, features: Tensor | None = None, states: Tensor | None = None
    ) -> HeadOutput:
        given = self._given(sum(len(rows.tokens) for rows in batch), features, states)
        run = self._run(batch)
        logits = self._room(run)
        for start, _, step in run.passes(logits.data_ptr(), 4 * logits.shape[1]):
            step.features, step.states = given.at(start)
        return HeadOutput(logits[:, : self.config.draft_vocab], run.hidden)

    def _given(self, rows: int, features: Tensor | None, states: Tensor | None) -> _Given:
        if features is not None and (kept := self._target.kept_hidden_layers) != self.aux_hidden_layers:
            raise DrafterError(
                f"two heads that read other layers ({kept} and {self.aux_hidden_layers}) cannot draft beside one "
                "target at the same time; use one of them, or train them with the same --taps"
            )
        return _Given(features, states, (rows, self.config.hidden if features is None else self.config.feature_width))

    def rank(
        self,
        batch: Sequence[Rows],
        keys: Sequence[NoiseKey | None],
        count: int,
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[list[TopK], Tensor]:
        given = self._given(sum(len(rows.tokens) for rows in batch), features, states)
        run = self._run(batch)
        total = run.wanted
        assert len(keys) == total, "a key for every row wanted"
        assert count <= MOST_RANKED
        size = 8 * count
        noise = array("B", b"".join([_noise(key) for key in keys]))
        tokens, shares = array("i", bytes(size * total)), array("f", bytes(size * total))
        at = noise.buffer_info()[0], tokens.buffer_info()[0], shares.buffer_info()[0]
        ranking = self._ranking
        ranking.count = count
        for start, wanted, step in run.passes(self._logits_at, 0):
            step.features, step.states = given.at(start)
            ranking.noise = at[0] + sizeof(Noise) * wanted
            ranking.tokens, ranking.shares = at[1] + size * wanted, at[2] + size * wanted
            if step.wanted:
                step.ranking = addressof(ranking)
        found = list(zip(tokens, shares, strict=True))
        followers = []
        for start in range(0, len(found), 2 * count):
            likely, drawn = found[start : start + count], found[start + count : start + 2 * count]
            if likely[-1][0] < 0:  # the vocabulary is smaller
                likely, drawn = ([pair for pair in side if pair[0] >= 0] for side in (likely, drawn))
            followers.append(TopK(likely, drawn))
        return followers, run.hidden

    def draft(
        self, batch: Sequence[Rows], wanted: Sequence[WantedTree], *, features: Tensor
    ) -> list[tuple[list[int], list[int], list[float]]]:
        rows = self._entered(batch)
        given = self._given(len(rows), features, None)
        count, levels, width = len(wanted), max([tree.depth for tree in wanted]), sum([tree.width for tree in wanted])
        assert max(len(rows), width) <= MAX_ROWS, "one pass a level"
        spans = [span for _, span, _, want in rows if want]
        ends = [span.end + (tree.depth - 1) * tree.width for span, tree in zip(spans, wanted, strict=True)]
        assert max(ends) <= self.max_context, "room for all but the last level"
        numbers, step = described(rows)
        step.logits, step.features = self._logits_at, given.at(0)[0]
        step.tapped = self._states_at + 4 * MAX_ROWS * self.config.hidden  # as every level's are
        self._ranking.count = max([tree.branching for tree in wanted])
        step.ranking = addressof(self._ranking)
        asked = array("B", b"".join([_wanted(tree) for tree in wanted]))
        noise = array("B", b"".join([_level_noise(tree, level) for level in range(levels) for tree in wanted]))
        # What C answers, and what it works with.
        size = sum([tree.nodes for tree in wanted])
        looked_at = sum([tree.branching * (1 + (tree.depth - 1) * tree.width) for tree in wanted])
        integers = array("i", bytes(4 * (count + 2 * size + width * levels)))
        doubles = array("d", bytes(8 * size + sizeof(Node) * looked_at))
        at, sure = integers.buffer_info()[0], doubles.buffer_info()[0]
        drafts = Drafts(
            first=pointer(step),
            wanted=asked.buffer_info()[0],
            noise=noise.buffer_info()[0],
            sizes=at,
            tokens=at + 4 * count,
            parents=at + 4 * (count + size),
            confidence=sure,
            looked_at=sure + 8 * size,
            paths=at + 4 * (count + 2 * size),
            states=self._states_at,
        )
        self._kernels.outrider_draft(byref(self._model), byref(drafts))
        del numbers, asked, noise  # which C has read
        drafted, start = [], 0
        for tree, nodes in zip(wanted, integers[:count], strict=True):
            first = count + start
            tokens, parents = (integers[place : place + nodes].tolist() for place in (first, first + size))
            drafted.append((tokens, parents, doubles[start : start + nodes].tolist()))
            start += tree.nodes
        return drafted


_GREEDY = pack("fiII", 1.0, 0, 0, 0)


def _noise(key: NoiseKey | None) -> bytes:
    """A `Noise`."""
    return _GREEDY if key is None else pack("fiII", 1.0 / key.temperature, 1, key.low, key.high)


def _level_noise(tree: WantedTree, level: int) -> bytes:
    return _noise(tree.keys[level]) if tree.keys and level < tree.depth else _GREEDY


def _wanted(tree: WantedTree) -> bytes:
    """A `Wanted`."""
    sureness = tree.floor, tree.expand_node, tree.expand_level
    return pack("3d4i", *sureness, tree.nodes, tree.depth, tree.branching, tree.width)


class _Given:
    """Where the rows' features or states lie."""

    def __init__(self, features: Tensor | None, states: Tensor | None, shape: tuple[int, int]) -> None:
        given = states if features is None else features
        assert given is not None, "features or states"
        assert given.shape == shape, "one of them for every row, as wide as the head says"
        self._fused = features is not None
        self._tensor = given if given.dtype == torch.float32 and given.is_contiguous() else given.float().contiguous()

    def at(self, row: int) -> tuple[int | None, int | None]:
        """Addresses of the features and of the states from `row` on; one of the two."""
        address = self._tensor.data_ptr() + 4 * self._tensor.shape[1] * row
        return (address, None) if self._fused else (None, address)
