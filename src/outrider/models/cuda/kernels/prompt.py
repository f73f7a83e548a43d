"""Attention of a prompt's rows: a tile of them against the cache block by block, with the bits of `attend_kernel`."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.attention import merge, weigh


@triton.jit(do_not_specialize=["window"])
def prompt_kernel(
    qkv_ptr,  # [rows, (HEADS + 2 KV_HEADS) DIM]
    keys_ptr,  # [blocks, KV_HEADS, BLOCK, DIM]
    values_ptr,
    out_ptr,  # [rows, HEADS DIM]
    table_ptr,  # int32 [slots, columns]: the blocks of each slot
    slots_ptr,  # int32 [rows] each
    positions_ptr,
    tiles_ptr,  # int32 [tiles, 2]: a tile's first row, and how many it has: neighbours of one slot, in order
    columns,
    window,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One query head of at most M neighbouring rows whose ancestors all lie in order in their slot.

    Every block of BLOCK positions has its own maximum and is merged into those before it, in the order and by the code
    of `attend_kernel`. A row that sees nothing of a block is left as it was, to the bit.
    """
    head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)  # the longest first
    start, count = tl.load(tiles_ptr + tile * 2), tl.load(tiles_ptr + tile * 2 + 1)
    if count > 0:
        lane = tl.arange(0, M)
        d = tl.arange(0, DIM)
        live = lane < count
        row = (start + lane).to(tl.int64)
        begin = tl.load(positions_ptr + start)
        position = begin + lane
        oldest = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
        first = tl.where(window > 0, tl.maximum(begin + 1 - window, 0), 0) // BLOCK
        end = begin + count
        blocks_ptr = table_ptr + tl.load(slots_ptr + start) * columns
        within = (head // (HEADS // KV_HEADS)) * BLOCK * DIM  # of a block: this key head's part
        q_at = (row * (HEADS + 2 * KV_HEADS) + head)[:, None] * DIM + d[None, :]
        q = tl.load(qkv_ptr + q_at, mask=live[:, None], other=0.0)  # [M, DIM]
        part = tl.zeros([M, DIM], dtype=tl.float32)
        total = tl.zeros([M], dtype=tl.float32)
        peak = tl.full([M], float("-inf"), dtype=tl.float32)
        # Blocks that every row sees as a whole need no mask.
        whole = tl.where(window > 0, tl.minimum(tl.cdiv(tl.maximum(end - window, 0), BLOCK), (begin + 1) // BLOCK), 0)
        whole = tl.maximum(whole, first)
        ragged = tl.maximum((begin + 1) // BLOCK, whole)
        home = tl.load(
            blocks_ptr + first
        )  # found a block ahead, so that keys and values are fetched as far ahead as ever
        for block in range(first, whole):
            following = tl.load(blocks_ptr + block + 1, mask=block + 1 < columns, other=0)
            part, total, peak = _block(
                part, total, peak, q, keys_ptr + within, values_ptr + within, home, block, position, oldest, end,
                scale, KV_HEADS, DIM, BLOCK, True,
            )  # fmt: skip
            home = following
        for block in range(whole, ragged):
            following = tl.load(blocks_ptr + block + 1, mask=block + 1 < columns, other=0)
            part, total, peak = _block(
                part, total, peak, q, keys_ptr + within, values_ptr + within, home, block, position, oldest, end,
                scale, KV_HEADS, DIM, BLOCK, False,
            )  # fmt: skip
            home = following
        for block in range(ragged, (end - 1) // BLOCK + 1):
            following = tl.load(blocks_ptr + block + 1, mask=block + 1 < columns, other=0)
            part, total, peak = _block(
                part, total, peak, q, keys_ptr + within, values_ptr + within, home, block, position, oldest, end,
                scale, KV_HEADS, DIM, BLOCK, True,
            )  # fmt: skip
            home = following
        at = (row * HEADS + head)[:, None] * DIM + d[None, :]
        tl.store(out_ptr + at, part / total[:, None], mask=live[:, None])


@triton.jit
def _block(
    part,
    total,
    peak,
    q,
    keys_ptr,  # of the key head
    values_ptr,
    home,  # the block of the cache
    block,  # the block of the text
    position,
    oldest,
    end,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    there = block * BLOCK + tl.arange(0, BLOCK)
    begin = home.to(tl.int64) * (KV_HEADS * BLOCK * DIM)
    keys_ptr, values_ptr = keys_ptr + begin, values_ptr + begin
    place = tl.arange(0, BLOCK)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    if MASKED:
        k = tl.load(keys_ptr + place, mask=(there < end)[:, None], other=0.0)  # [BLOCK, DIM]
        v = tl.load(values_ptr + place, mask=(there < end)[:, None], other=0.0)
    else:
        k = tl.load(keys_ptr + place)
        v = tl.load(values_ptr + place)
    score = tl.dot(q, tl.trans(k))  # [M, BLOCK]
    if MASKED:
        seen = (there[None, :] <= position[:, None]) & (there[None, :] >= oldest[:, None])
        score = tl.where(seen, score, float("-inf"))
    weight, its_total, its_peak = weigh(score, scale)
    return merge(part, total, peak, tl.dot(weight.to(v.dtype), v), its_total, its_peak)
