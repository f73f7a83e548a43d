"""What a compiled pass costs, timed on a part of it: a few layers, and a slice of the vocabulary.

The parts are others every time, so that weights stream from memory as they do in a pass, and they read and write caches
of their own, several by turns, so that those come from memory, too, and no request notices.
"""

from __future__ import annotations

from array import array
from ctypes import Array, byref, memset, pointer
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.models.memory import lazy_zeros
from outrider.models.native.library import Layer, Matrix, Model, Pass, Strip
from outrider.models.native.packing import PAIR, PANEL
from outrider.models.precision import blocks

if TYPE_CHECKING:
    from outrider.models.native.stack import NativeStack

_SLICES = 8
"""Of a large vocabulary, of which one is timed."""
_LARGE = 8192
_FEW_ROWS, _MORE_LAYERS = 4, 3
"""With few rows a layer takes so little that several are timed together."""
_CACHES = 8
"""By turns: what was timed in between has driven the first out of the processor's own."""
_POSITIONS = 64
"""Caches have room for whole times so many."""
_STRIDE = 10_007
"""Between tokens: prime, so that they are from all over a vocabulary."""


class Timer:
    """Of one decoder, or of a head (`features`: how wide what it is given is), whose single layer is timed whole."""

    def __init__(self, stack: NativeStack, features: int = 0) -> None:
        self._stack, self._features = stack, features
        model, a = stack._model, stack.architecture
        self._layers = len(a.layers)
        self._turn = 0
        self._caches: dict[int, list[Tensor]] = {}
        """By the positions there is room for: [2, kv heads, positions * depth of a head] each."""
        self._layer = 0
        slices = _SLICES if model.head.columns >= _LARGE else 1
        self._columns = model.head.columns // slices // PAIR * PAIR
        self._slices = slices
        self._whole: float = model.head.columns / self._columns
        """How many times what is timed the vocabulary is."""

    def seconds(self, rows: int, context: int) -> float:
        """Of a pass of `rows` rows behind `context` tokens."""
        capacity = self._stack._model.shape.capacity
        context = min(context, capacity - rows)
        room = min(capacity, -(-(context + rows) // _POSITIONS) * _POSITIONS)  # there is a workspace for no more
        self._turn += 1
        if self._features:
            return self._time(*self._part(self._layers, room), rows, context, wanted=rows)
        count = min(self._layers, _MORE_LAYERS if rows <= _FEW_ROWS else 1)
        layers = self._time(*self._part(count, room), rows, context, wanted=0)
        vocabulary = self._time(*self._part(0, room), rows, context, wanted=rows)
        return layers * (self._layers / count) + vocabulary * self._whole

    def _time(self, model: Model, layers: Array[Layer], rows: int, context: int, wanted: int) -> float:
        """The pass of this model, which points into these layers."""
        zeros, bases, each = array("i", [0] * rows), array("i", [context] * rows), array("i", range(rows + 1))
        paths = array("i", range(context, context + rows))  # siblings, right behind the context
        held = (self._tokens(rows), zeros, bases, each, paths, each)  # tokens, slots, bases, starts, paths, rows wanted
        step = Pass(rows, wanted, *(numbers.buffer_info()[0] for numbers in held))
        logits = torch.empty(max(1, wanted), model.head.columns)
        given = torch.zeros(rows, self._features)
        step.logits, step.features = logits.data_ptr(), given.data_ptr() if self._features else None
        started = perf_counter()
        self._stack._kernels.outrider_forward(byref(model), byref(step))
        return perf_counter() - started

    def _tokens(self, rows: int) -> array[int]:
        """Different ones where rows choose experts, others every time, so that weights are read as in a text. Elsewhere
        one will do: embeddings are read once in a pass, not once for every layer as here."""
        a = self._stack.architecture
        first = self._turn * _STRIDE if a.experts else 0
        return array("i", [(first + i * _STRIDE) % a.vocab_size if a.experts else 0 for i in range(rows)])

    def _part(self, count: int, room: int) -> tuple[Model, Array[Layer]]:
        """The model with `count` of its layers and caches of our own; with none, and a slice of its vocabulary."""
        model = Model.from_buffer_copy(self._stack._model)
        layers = (Layer * max(1, count))()
        for i in range(len(layers)):
            layers[i] = self._stack._layers[(self._turn * len(layers) + i) % self._layers]
            cache = self._next_cache(room)
            layers[i].keys, layers[i].values = cache[0].data_ptr(), cache[1].data_ptr()
        model.tap_count, model.shape.layers, model.layers, model.shape.capacity = 0, count, layers, room
        if not count and self._slices > 1:
            model.head = self._slice(model.head)
        return model, layers

    def _next_cache(self, room: int) -> Tensor:
        """The one that was read longest ago."""
        stack, self._layer = self._stack, self._layer + 1
        if room not in self._caches:
            shape = (2, stack.architecture.kv_heads, room * stack._depth)
            self._caches[room] = [_written(lazy_zeros(shape, stack.dtype, stack.device)) for _ in range(_CACHES)]
        return self._caches[room][self._layer % _CACHES]

    def _slice(self, head: Matrix) -> Matrix:
        first = self._turn % self._slices * self._columns
        if head.strips:  # one, which begins before the slice then
            whole = head.strips[0]
            strip = Strip(whole.data, whole.kind, whole.panels, -first // PANEL, 1)
            return Matrix(None, None, None, self._columns, head.depth, head.inputs, None, pointer(strip), 1)
        size = 1 if head.scales else self._stack.dtype.itemsize
        scales = head.scales + 2 * first * blocks(head.depth) if head.scales else None
        data = head.data + first * head.depth * size
        return Matrix(data, scales, None, self._columns, head.depth, head.inputs, None)


def _written(zeros: Tensor) -> Tensor:
    """The same, each page its own: what nobody has written is one page for all, which the processor would have at hand.
    Not by PyTorch, whose threads would go on waiting for more to do while the next pass is timed."""
    memset(zeros.data_ptr(), 0, zeros.nbytes)
    return zeros
