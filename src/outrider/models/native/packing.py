"""Weights in the layout the matrix kernel streams: see gemm.h, gemm_int8.h and gemm_screen.h."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.errors import ModelError
from outrider.models.memory import Arena
from outrider.models.native.library import library
from outrider.models.native.readers import Readers
from outrider.models.native.screen import LEVELS, coded
from outrider.models.precision import BLOCK, blocks
from outrider.models.stored import KINDS, Stored
from outrider.models.weights import LayerWeights, MLPWeights, StoredRows, write

PANEL = 16
PAIR = 32
DEPTH, INTEGER_DEPTH = 32, 64
FOUR = WORD = 4
_WORDS = {torch.float32: torch.float32, torch.bfloat16: torch.int32}
"""What a word of each is called."""


def packed(weight: Tensor, arena: Arena) -> Tensor:
    """[columns, depth] in the order the kernel reads: fp32 [panel, depth, 16], bf16 [panel, depth/2, 16] with two
    neighbouring inputs in one int32, int8 [panel, depth/4, 16, 4]."""
    weight = _deepened(weight).contiguous()
    rows, depth = weight.shape
    turned = arena.zeros(_panels(weight, -(-rows // PAIR) * PAIR // PANEL, depth), _word(weight))
    compiled = library()
    assert compiled is not None, "ask unsupported_reason() first"
    compiled.outrider_turn(weight.data_ptr(), rows, depth * weight.itemsize // WORD, turned.data_ptr())
    return turned


def _panels(weight: Tensor, panels: int, depth: int) -> tuple[int, ...]:
    """The shape of so many with numbers as these."""
    lanes = (FOUR,) if weight.itemsize == 1 else ()
    return panels, depth * weight.itemsize // WORD, PANEL, *lanes


def _word(weight: Tensor) -> torch.dtype:
    return torch.int8 if weight.itemsize == 1 else _WORDS[weight.dtype]


def packed_codes(codes: Tensor, arena: Arena) -> Tensor:
    """uint8 [columns, depth] below 16 as [panel, depth/8, 16, 4]: of the fours of inputs of `packed`, two to a byte."""
    order = _in_fours(_filled(codes))
    low, high = order[:, 0::2], order[:, 1::2]
    return _copied(high, arena).mul_(16).add_(low)


def packed_scales(scales: Tensor, columns: int, depth: int) -> Tensor:
    """[rows] or [rows, blocks] as bf16 [panel, blocks, 16]."""
    return stored_scales(scales, columns, depth).view(-1, PANEL, blocks(depth)).transpose(1, 2).contiguous()


def stored_scales(scales: Tensor, columns: int, depth: int) -> Tensor:
    """[rows] or [rows, blocks] as bf16 [columns, blocks]."""
    each = scales if scales.dim() == 2 else scales[:, None].expand(-1, blocks(depth))
    return pad(each.to(torch.bfloat16), (0, 0, 0, columns - len(scales))).contiguous()


def _in_fours(weight: Tensor) -> Tensor:
    return weight.view(-1, PANEL, weight.shape[1] // FOUR, FOUR).transpose(1, 2)


def _filled(weight: Tensor) -> Tensor:
    """With zeros, to whole pairs of panels and steps over depth."""
    missing = (0, -weight.shape[1] % _step(weight), 0, -weight.shape[0] % PAIR)
    return pad(weight, missing) if any(missing) else weight  # padding copies even where there is nothing to pad


def _deepened(weight: Tensor) -> Tensor:
    """With zeros, to whole steps over depth."""
    missing = -weight.shape[1] % _step(weight)
    return pad(weight, (0, missing)) if missing else weight


def _step(weight: Tensor) -> int:
    return INTEGER_DEPTH if weight.dtype.itemsize == 1 else DEPTH


def _copied(order: Tensor, arena: Arena) -> Tensor:
    return arena.zeros(tuple(order.shape), order.dtype).copy_(order)


def interleaved(gate_up: Tensor) -> Tensor:
    """[gate; up] rows as alternating panels, so that a pair holds 16 gate columns and the matching 16 up columns."""
    halves = [pad(half, (0, 0) * (half.dim() - 1) + (0, -half.shape[0] % PANEL)) for half in gate_up.chunk(2)]
    panels = [half.view(-1, PANEL, *half.shape[1:]) for half in halves]
    return torch.stack(panels, dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A linear map ready for the kernel; `columns` and `depth` count the padding."""

    data: Tensor | None
    """None: see `strips`."""
    scales: Tensor | None
    """Of int8 columns, bf16."""
    bias: Tensor | None
    columns: int
    depth: int
    inputs: int
    """Depth without the padding."""
    screen: PackedScreen | None = None
    """Then `data` is int8 [columns, depth] and `scales` [columns, blocks]."""
    strips: tuple[PackedStrip, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedStrip:
    """Columns of a matrix as a file stores them, one of `KINDS`: panel p is panel first + p * step of the matrix."""

    data: Tensor
    kind: str
    panels: int
    first: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class PackedScreen:
    """By their names in the C structure; `columns` without the padding."""

    codes: Tensor
    scales: Tensor
    levels: Tensor
    stretch: Tensor
    mean: Tensor
    columns: int


@dataclass(frozen=True, slots=True)
class PackedMLP:
    gate_up: PackedMatrix
    down: PackedMatrix


@dataclass(frozen=True, slots=True)
class PackedLayer:
    qkv: PackedMatrix
    o: PackedMatrix
    mlps: tuple[PackedMLP, ...]
    """One, or those among which the router chooses."""
    router: PackedMatrix | None
    norms: dict[str, Tensor | None]
    """By their names in the C structure."""


class Packer:
    """Packs matrices one behind the other, in the order a pass will read them."""

    def __init__(self, stored: bool = False, readers: Readers | None = None) -> None:
        """`stored`: all in strips, as a file has them or as numbers. `readers`: they read what is in files meanwhile;
        until they are done, its matrices hold zeros."""
        self._arena = Arena()
        self._stored = stored
        self._readers = readers

    def matrix(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None) -> PackedMatrix:
        columns = -(-weight.shape[0] // PAIR) * PAIR
        depth = -(-weight.shape[1] // _step(weight)) * _step(weight)
        data = packed(weight, self._arena)
        units = None if scales is None else packed_scales(scales, columns, depth)
        widened = None if bias is None else pad(bias.float(), (0, columns - len(bias)))
        return PackedMatrix(data, units, widened, columns, depth, weight.shape[1])

    def read(
        self, like: Tensor, bias: Tensor | None, scales: Tensor | None, stored: StoredRows, halves: int = 1
    ) -> PackedMatrix:
        """As `matrix` of all these rows, in numbers as they are or in int8 (`scales`); `like` and `scales` tell no more
        than form and shape. `halves` 2: as `matrix` of both `interleaved`; the bias is so already."""
        rows, inputs = like.shape
        half, depth = rows // halves, -(-inputs // _step(like)) * _step(like)
        panels = -(-halves * -(-half // PANEL) // 2) * 2
        data = self._arena.zeros(_panels(like, panels, depth), _word(like))
        units = None if scales is None else torch.zeros(panels, blocks(depth), PANEL, dtype=torch.bfloat16)
        for start, own in stored.items():
            which, offset = divmod(start, half)
            assert offset % PANEL == 0, "heads are whole panels"
            first = which + halves * (offset // PANEL)
            for part in own.parts(_TASK):
                self._gather(part, data[first:], None if units is None else units[first:], depth, halves)
                first += halves * (_TASK // PANEL)
        columns = panels * PANEL
        widened = None if bias is None else pad(bias.float(), (0, columns - len(bias)))
        return PackedMatrix(data, units, widened, columns, depth, inputs)

    def _gather(self, part: Stored, data: Tensor, units: Tensor | None, depth: int, step: int) -> None:
        """Rows of a file to every `step`-th panel of these."""
        compiled = library()
        assert compiled is not None, "ask unsupported_reason() first"
        form = KINDS.index(part.kind), part.shape[1], depth, BLOCK, step

        def gather() -> None:
            done, (kind, *others) = 0, form
            to = data.data_ptr(), None if units is None else units.data_ptr()
            for piece in part.pieces(_ROWS):
                own, end = piece.contiguous(), done + len(piece)
                compiled.outrider_gather(own.data_ptr(), own.shape[1], kind, done, end, *others, *to)
                done = end

        if self._readers is None:
            gather()
        else:
            self._readers.do(gather)

    def strip(self, rows: Tensor | Stored, depth: int, first: int = 0, step: int = 1) -> PackedStrip:
        """Rows of a file in the order stored.h says; or of fp32 numbers."""
        compiled = library()
        assert compiled is not None, "ask unsupported_reason() first"
        kind, pieces = (
            (rows.kind, rows.pieces(_ROWS)) if isinstance(rows, Stored) else ("F32", torch.split(rows, _ROWS))
        )
        number, panels = KINDS.index(kind), -(-rows.shape[0] // PANEL)
        data = self._arena.zeros((panels, compiled.outrider_panel_bytes(number, depth)), torch.uint8)
        done = 0
        for piece in pieces:
            own = piece.contiguous()
            end, pitch = done + len(own), own.stride(0) * own.itemsize
            compiled.outrider_pack(own.data_ptr(), pitch, number, done, end, rows.shape[1], depth, data.data_ptr())
            done = end
        return PackedStrip(data, kind, panels, first, step)

    def stored(self, numbers: Tensor, bias: Tensor | None, stored: StoredRows, halves: int = 1) -> PackedMatrix:
        """A matrix of which a file's rows stay as they are, and the others come from fp32 `numbers`. `halves` 2: gate
        and up, whose panels take turns; the bias does so already."""
        rows, inputs = numbers.shape
        half = rows // halves
        cuts = {half * i for i in range(halves + 1)} | set(stored) | {at + len(own) for at, own in stored.items()}
        depth = -(-inputs // INTEGER_DEPTH) * INTEGER_DEPTH
        strips = []
        for start, end in pairwise(sorted(cuts)):
            which, offset = divmod(start, half)
            if offset % PANEL:
                raise ModelError(f"dtype: parts of {offset} rows cannot stay as the file quantised them; use fp32")
            part = stored.get(start, numbers[start:end])
            strips.append(self.strip(part, depth, which + halves * (offset // PANEL), halves))
        columns = halves * -(-half // PANEL) * PANEL
        columns = -(-columns // PAIR) * PAIR
        widened = None if bias is None else pad(bias.float(), (0, columns - len(bias)))
        return PackedMatrix(None, None, widened, columns, depth, inputs, strips=tuple(strips))

    def screened(self, weight: Tensor, scales: Tensor) -> PackedMatrix:
        """int8 [columns, depth] of which only the largest results matter."""
        narrow = coded(weight, scales)
        data = _filled(weight)
        columns, depth = data.shape
        screen = PackedScreen(
            codes=packed_codes(narrow.codes, self._arena),
            scales=pad(narrow.scales, (0, columns - len(narrow.scales))),
            levels=torch.tensor(LEVELS, dtype=torch.int8),
            stretch=pad(narrow.stretch, (0, depth - weight.shape[1])),
            mean=pad(narrow.mean, (0, depth - weight.shape[1])),
            columns=weight.shape[0],
        )
        rows, units = _copied(data, self._arena), stored_scales(scales, columns, depth)
        return PackedMatrix(rows, units, None, columns, depth, weight.shape[1], screen=screen)

    def layer(self, w: LayerWeights) -> PackedLayer:
        qkv = self.linear(w.qkv, w.qkv_bias, w.qkv_scales, w.stored.get("qkv", {}))
        o = self.linear(w.o, w.o_bias, w.o_scales, w.stored.get("o", {}))
        router = None if w.router is None else self._router(w.router, qkv.depth)
        return PackedLayer(
            qkv=qkv,
            o=o,
            mlps=tuple(self._mlp(own) for own in w.each_mlp()),
            router=router,
            norms={
                "attention_norm": w.attention_norm if len(w.attention_norm) else None,
                "mlp_norm": w.mlp_norm if len(w.mlp_norm) else None,
                "attention_norm_bias": w.attention_norm_bias,
                "mlp_norm_bias": w.mlp_norm_bias,
                "q_norm": w.q_norm,
                "k_norm": w.k_norm,
                "attention_out_norm": w.attention_out_norm,
                "mlp_out_norm": w.mlp_out_norm,
            },
        )

    def linear(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, stored: StoredRows) -> PackedMatrix:
        if self._stored:
            return self.stored(weight, bias, stored)
        if _all_of(weight, stored):
            return self.read(weight, bias, scales, stored)
        write(stored, weight, scales)
        return self.matrix(weight, bias, scales)

    def _router(self, router: Tensor, depth: int) -> PackedMatrix:
        """Its inputs are the rows that other matrices read, `depth` apart."""
        return self.matrix(pad(router, (0, depth - router.shape[1])), None, None)

    def _mlp(self, w: MLPWeights) -> PackedMLP:
        return PackedMLP(self._gate_up(w), self.linear(w.down, w.down_bias, w.down_scales, w.stored_down))

    def _gate_up(self, w: MLPWeights) -> PackedMatrix:
        bias = None if w.gate_up_bias is None else interleaved(w.gate_up_bias)
        if self._stored:
            return self.stored(w.gate_up, bias, w.stored_gate_up, halves=2)
        if _all_of(w.gate_up, w.stored_gate_up):
            return self.read(w.gate_up, bias, w.gate_up_scales, w.stored_gate_up, halves=2)
        write(w.stored_gate_up, w.gate_up, w.gate_up_scales)
        scales = None if w.gate_up_scales is None else interleaved(w.gate_up_scales)
        return self.matrix(interleaved(w.gate_up), bias, scales)


def _all_of(matrix: Tensor, stored: StoredRows) -> bool:
    """Whether all its rows are still in the file, and in a form that can be read into panels."""
    kinds = {own.kind for own in stored.values()}
    read = matrix.dtype == torch.int8 or kinds == {_READ.get(matrix.dtype)}
    return read and sum(map(len, stored.values())) == len(matrix)


_READ = {torch.float32: "F32", torch.bfloat16: "BF16"}
"""What numbers of each are called in a file."""
_ROWS = 1024
"""Of a file, read and packed at once."""
_TASK = 4096
"""Rows that are read by one thread."""
