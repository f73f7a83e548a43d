"""Attention of a pass: queries and keys rotated, the cache written, and read by rows or by tiles of prompts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.cuda.cache import BlockCache
from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.attention import BLOCK, TILE, attend_kernel
from outrider.models.cuda.kernels.chain_attention import attend_chains_kernel
from outrider.models.cuda.kernels.chain_hopper import REGISTERS as FEW_REGISTERS
from outrider.models.cuda.kernels.chain_hopper import ROWS as GROUP_ROWS
from outrider.models.cuda.kernels.chain_hopper import chain_hopper_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.prompt import prompt_kernel
from outrider.models.cuda.kernels.prompt_hopper import prompt_hopper_kernel
from outrider.models.cuda.kernels.rows import rotate_kernel
from outrider.models.cuda.kernels.wide_hopper import REGISTERS
from outrider.models.cuda.launches import dependent, power_of_two, swizzled
from outrider.models.cuda.tables import PATH, Tables
from outrider.models.cuda.tiling import prompt_tiling
from outrider.models.rotary import rotation_table
from outrider.models.weights import LayerWeights

ROTATED = 8
"""Heads a program rotates."""

SCRATCH = 1 << 26
"""Attention's scratch, in floats, for the blocks of a pass: of an 8B model 4,096 for each key head, as 64 rows have
behind 8,192 tokens. Rows that find none left are attended to without, by fewer programs each; there are many then."""

PROGRAMS = 1024
"""Programs of attention that fill a GPU; more would mostly find nothing to do where contexts are short."""

SPREAD = 64
"""Those that share out one row's blocks, at most, for the same reason."""

ENOUGH = 264
"""Rows times key heads from which on chains are attended to as such where no groups of warps do that: a program takes
all blocks of one where they are few, one after the other, and among fewer rows most multiprocessors would have nothing
to do."""

FEW_BLOCKS = 8
"""Blocks of a chain that one program folds as they come, where chains are many: sharing them out would take longer."""

WIDEST = 64
"""Query vectors that a program takes of a chain, at most."""

SHARING = 4
"""Programs that share out the blocks of a row, one to a multiprocessor, at least: with fewer to each there are rows
enough to fill the GPU, and a long one among short ones would have too few of its programs."""

FOLDED = 5
"""Blocks of a chain that one of them folds as they come."""

AHEAD = 3
"""Blocks whose keys and values such a program has room for; 2 where chains are more than that, and 1 where several
programs are to share a multiprocessor."""

PATIENCE = 100
"""How often it looks whether the others are done before it leaves the merging to them."""

LOG2E = 1 / math.log(2)


class Attention:
    """Of all layers of one network, over its cache and the tables of its passes."""

    def __init__(
        self,
        architecture: Architecture,
        gpu: GPU,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        capacity: int,
        max_rows: int,
        narrow: int,
    ) -> None:
        """`narrow`: rows of a pass of any kind."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._architecture = a = architecture
        self._launch = dependent(gpu)
        self._slots = slots
        known = gpu.interpreted or a.head_dim in (64, 128)
        self._prompt = prompt_tiling(a.head_dim, gpu.shared) if gpu.widens(dtype) and known else None
        self._apart = self._prompt is not None and gpu.multiplies_apart and a.head_dim == 128
        """Whether groups of warps take a tile of a prompt, and rows that are few."""
        self._multiprocessors = gpu.multiprocessors
        self._meetings = room(narrow * a.kv_heads if self._apart else 0, dtype=torch.int32)
        """Of each chain and key head: how many programs are done with their blocks."""
        block = 2 * BLOCK * a.head_dim * dtype.itemsize  # bytes of its keys and values
        self._stages = 2 if 3 * block <= gpu.shared else 1
        """Of a chain's loop: whether the next block is fetched while this one is looked at."""
        self.tiles = room(1 + max_rows // self.tile_rows + slots if self.tile_rows else 0, 2, dtype=torch.int32)
        """Of a tiled pass: how many rows it has; then the first row of each tile and how many it has, 0 for none."""
        self.attended = room(max_rows, a.q_width, dtype=dtype)
        self._rotations = [rotation_table(rope, capacity, device) for rope in a.ropes]
        self._blocks = -(-capacity // BLOCK)
        self._cells = min(SCRATCH // (a.kv_heads * TILE * a.head_dim), narrow * self._blocks)
        self._partial = room(a.kv_heads * self._cells * TILE * a.head_dim)
        self._stats = room(a.kv_heads * self._cells * TILE * 2)
        self._counter = room(narrow * a.kv_heads, dtype=torch.int32)
        self.scratch = room(narrow + 1, dtype=torch.int32)
        """Of each group of rows that are attended to together: the first cell that is its own; then all they need."""

    def group(self, rows: int, together: bool, chain: int) -> int:
        """Neighbouring rows that are attended to at once. `chain`: as of `run`."""
        if self._shared(rows, chain) or self._tile(rows, chain):
            return chain
        return TILE // power_of_two(self._architecture.heads // self._architecture.kv_heads) if together else 1

    def _shared(self, rows: int, chain: int) -> int:
        """Multiprocessors for the blocks of each of so few chains; 0: they are attended to otherwise."""
        a = self._architecture
        if not self._apart or not chain or chain * power_of_two(a.heads // a.kv_heads) > GROUP_ROWS:
            return 0
        each = min(self._multiprocessors // (rows // chain * a.kv_heads), self._blocks)
        return each if each >= SHARING else 0

    def _tile(self, rows: int, chain: int) -> int:
        """Query vectors of a program that takes such chains; 0: none does."""
        a = self._architecture
        if not chain or (rows * a.kv_heads < ENOUGH and not self._apart):
            return 0
        tile = max(TILE, power_of_two(chain) * power_of_two(a.heads // a.kv_heads))
        return tile if tile <= WIDEST else 0

    @property
    def tile_rows(self) -> int:
        """Rows of one request, next to each other and in order, that a tiled pass attends to together; 0: there are no
        such passes."""
        return self._prompt.rows if self._prompt else 0

    def most_tiles(self, rows: int) -> int:
        """Those that a tiled pass of so many rows has room for: enough where each slot has its rows in one place."""
        return rows // self.tile_rows + self._slots

    def run(
        self,
        i: int,
        layer: LayerWeights,
        qkv: Tensor,
        cache: BlockCache,
        tables: Tables,
        rows: int,
        together: bool,
        tiled: bool,
        chain: int,
    ) -> None:
        """Layer `i` of the first `rows` rows, from `qkv` into `attended`. `chain`: they come in chains of so many, as
        `Network.body` has them; 0: anyhow."""
        a = self._architecture
        keys, values = cache.pool[0, i], cache.pool[1, i]
        rotate_kernel[(rows, -(-(a.heads + 2 * a.kv_heads) // ROTATED))](
            qkv,
            *self._rotations[a.layers[i].rope],
            layer.q_norm,
            layer.k_norm,
            keys,
            values,
            cache.table,
            tables.slots,
            tables.positions,
            tables.indices,
            self._meetings if not tiled and self._apart and chain else None,
            self._blocks,
            a.norm_eps,
            HEADS=a.heads,
            KV_HEADS=a.kv_heads,
            DIM=a.head_dim,
            BLOCK=BLOCK,
            TOGETHER=ROTATED,
            **self._launch,
        )
        if tiled:
            self._by_tiles(i, qkv, cache, tables, rows)
        elif each := self._shared(rows, chain):
            self._apart_by_chains(i, qkv, cache, tables, rows, chain, each)
        elif self._tile(rows, chain):
            if self._apart and (chain > 1 or rows * a.kv_heads <= self._multiprocessors):
                self._apart_by_chains(i, qkv, cache, tables, rows, chain, 0)
            else:
                self._by_chains(i, qkv, cache, tables, rows, chain)
        else:
            self._by_rows(i, qkv, cache, tables, rows, together)

    def _by_tiles(self, i: int, qkv: Tensor, cache: BlockCache, tables: Tables, rows: int) -> None:
        """Rows that only fill up the pass are in no tile: they keep what they had."""
        a, cut = self._architecture, self._prompt
        assert cut is not None, "heads too large for tiled passes"
        tiles = self.tiles[1:]
        programs = a.heads, min(len(tiles), self.most_tiles(rows))
        where = self.attended, cache.table, tables.slots, tables.positions, tiles, self._blocks
        how = a.layers[i].window, a.attention_scale * LOG2E
        shape = {"HEADS": a.heads, "KV_HEADS": a.kv_heads, "DIM": a.head_dim, "M": cut.rows, "BLOCK": BLOCK, **UNFUSED}
        keys, values = cache.pool[0, i], cache.pool[1, i]
        if self._apart:
            prompt_hopper_kernel[programs](
                swizzled(qkv, cut.rows, a.head_dim),
                swizzled(keys.view(-1, a.head_dim), BLOCK, a.head_dim),
                swizzled(values.view(-1, a.head_dim), BLOCK, a.head_dim),
                *where,
                *how,
                STAGES=2,
                num_warps=4,
                maxnreg=REGISTERS,
                launch_pdl=True,
                **shape,
            )
            return
        prompt_kernel[programs](qkv, keys, values, *where, *how, num_warps=cut.warps, num_stages=cut.stages, **shape)

    def _apart_by_chains(
        self,
        i: int,
        qkv: Tensor,
        cache: BlockCache,
        t: Tables,
        rows: int,
        chain: int,
        each: int,
    ) -> None:
        """By `each` multiprocessors; 0: there are more chains than that allows."""
        a, chains = self._architecture, rows // chain
        tile, programs = max(TILE, chain * power_of_two(a.heads // a.kv_heads)), chains * a.kv_heads
        given, shape = self._of_chains(i, cache, t, self._meetings, chain, tile)
        chain_hopper_kernel[(chains, a.kv_heads, each or self._spread(programs))](
            qkv,
            swizzled(cache.pool[0, i].view(-1, a.head_dim), BLOCK, a.head_dim),
            swizzled(cache.pool[1, i].view(-1, a.head_dim), BLOCK, a.head_dim),
            *given,
            FOLDED if each else FEW_BLOCKS,
            **shape,
            M=GROUP_ROWS,
            STAGES=AHEAD if each else 2 if programs <= self._multiprocessors else 1,
            PATIENCE=PATIENCE if each else 0,
            EVEN=not each,
            num_warps=4,
            maxnreg=FEW_REGISTERS,
            launch_pdl=True,
            **UNFUSED,
        )

    def _spread(self, programs: int) -> int:
        """Programs for the blocks of each chain and key head, where there are so many of those."""
        return max(1, min(self._blocks, SPREAD, PROGRAMS // programs))

    def _by_chains(self, i: int, qkv: Tensor, cache: BlockCache, t: Tables, rows: int, chain: int) -> None:
        a, tile, chains = self._architecture, self._tile(rows, chain), rows // chain
        given, shape = self._of_chains(i, cache, t, self._counter, chain, tile)
        attend_chains_kernel[(chains, a.kv_heads, self._spread(chains * a.kv_heads))](
            qkv,
            cache.pool[0, i],
            cache.pool[1, i],
            *given,
            **shape,
            FEW=FEW_BLOCKS,
            num_stages=self._stages,
            **self._launch,
        )

    def _of_chains(
        self, i: int, cache: BlockCache, t: Tables, counter: Tensor, chain: int, tile: int
    ) -> tuple[tuple[object, ...], dict[str, int]]:
        """What both kernels for chains take behind keys and values, and the sizes they are compiled for."""
        a = self._architecture
        where = self.attended, cache.table, t.slots, t.positions, self.scratch, self._partial, self._stats, counter
        how = self._blocks, self._cells * TILE // tile, a.layers[i].window, a.attention_scale * LOG2E
        heads = {"HEADS": a.heads, "KV_HEADS": a.kv_heads, "DIM": a.head_dim}
        return (*where, *how), {**heads, "PER": chain, "TILE": tile, "BLOCK": BLOCK}

    def _by_rows(self, i: int, qkv: Tensor, cache: BlockCache, t: Tables, rows: int, together: bool) -> None:
        a, group = self._architecture, self.group(rows, together, 0)
        groups = -(-rows // group)
        spread = min(self._blocks, SPREAD, max(4, PROGRAMS // (groups * a.kv_heads * group)))
        attend_kernel[(groups, a.kv_heads, spread * group)](
            qkv,
            cache.pool[0, i],
            cache.pool[1, i],
            self.attended,
            cache.table,
            t.slots,
            t.positions,
            t.bases,
            t.paths,
            self.scratch,
            self._partial,
            self._stats,
            self._counter,
            rows,
            self._blocks,
            self._cells,
            a.layers[i].window,
            a.attention_scale * LOG2E,
            PATH=PATH,
            TOGETHER=group,
            TILE=TILE,
            BLOCK=BLOCK,
            HEADS=a.heads,
            KV_HEADS=a.kv_heads,
            DIM=a.head_dim,
            **self._launch,
        )
