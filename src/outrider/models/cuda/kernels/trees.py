"""The tree of a step: its rows, the verdict, and what is kept of it.

A tree is the tokens of its nodes (`drafts`, -1: none), each node's parent (-1: the lane's last token) and its depth.
Parents come before their children. Row 0 of a lane is its last token, row 1 + i node i; they lie in the cache one
behind the other, wherever in the tree they stand, until those that were accepted are moved together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.steps import LENGTH, TARGET_SLOT, advance, choose_by

SLOT = tl.constexpr(0)
COUNT = tl.constexpr(1)
FIRST = tl.constexpr(2)
ROWS = tl.constexpr(3)
"""Of an entry of `moves`: the slot; how many rows follow the first; the cache index of that; which rows they are, the
first among them."""


@triton.jit(do_not_specialize=["nodes", "levels", "capacity", "vocab"])
def place_tree_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    numbers_ptr,  # the same as fp64
    text_ptr,  # int32 [lanes, capacity]: the token at each position
    drafts_ptr,  # int32 [lanes, LONGEST] each: the tree
    parents_ptr,
    depths_ptr,
    tokens_ptr,  # the tables of the pass
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    paths_ptr,
    row_words_ptr,  # how its rows are chosen by
    row_numbers_ptr,
    nodes,
    levels,
    capacity,
    vocab,
    LONGEST: tl.constexpr,
    PATH: tl.constexpr,
    AHEAD: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The rows of one lane. Nodes of one depth share their position, and so their noise."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    real = i <= nodes
    node = i - 1
    drafted = real & (i > 0)
    state = lanes_ptr + lane * STRIDE
    length = tl.load(state + LENGTH)
    depth = tl.load(depths_ptr + lane * LONGEST + node, mask=drafted, other=0)
    token = tl.load(drafts_ptr + lane * LONGEST + node, mask=drafted, other=0)
    token = tl.where(i == 0, tl.load(text_ptr + lane * capacity + length), tl.maximum(token, 0))
    row = lane * (nodes + 1) + i
    tl.store(tokens_ptr + row, tl.minimum(token, vocab - 1), mask=real)
    tl.store(slots_ptr + row, tl.load(state + TARGET_SLOT) + 0 * i, mask=real)
    tl.store(positions_ptr + row, length + depth, mask=real)
    tl.store(indices_ptr + row, length + i, mask=real)
    tl.store(bases_ptr + row, length + 1 + 0 * i, mask=real)
    tl.store(wanted_ptr + row, row, mask=real)
    at = node
    for above in range(levels):
        there = drafted & (above < depth)
        tl.store(paths_ptr + row * PATH + depth - 1 - above, length + 1 + at, mask=there)
        at = tl.load(parents_ptr + lane * LONGEST + at, mask=there & (at >= 0), other=-1)
    choose_by(state, numbers_ptr + lane * STRIDE // 2, row_words_ptr, row_numbers_ptr, row, depth, real, AHEAD)


@triton.jit
def _child(drafts, parents, i, node, token):
    """The child of a node that is this token; -1: there is none."""
    return tl.max(tl.where((drafts >= 0) & (drafts == token) & (parents == node), i, -1), axis=0)


@triton.jit(do_not_specialize=["nodes", "capacity", "spare"])
def accept_tree_kernel(
    lanes_ptr,
    text_ptr,
    drafts_ptr,  # the tree
    parents_ptr,
    claims_ptr,  # int32 [lanes, LONGEST]: the bits of what each node claims
    chosen_ptr,  # int32 [lanes, nodes + 1]: the target's choices after the last token and after each node
    moves_ptr,  # int32 [lanes, ROWS + WIDTH]: what to keep of the rows
    out_ptr,  # int32 [lanes, OUT]: as `accept_kernel` leaves it, then parents and claims
    nodes,
    capacity,
    spare,
    LONGEST: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The coupled rule on a tree: follow the target's choices for as long as the tree has them."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    mine = i < nodes
    drafts = tl.load(drafts_ptr + lane * LONGEST + i, mask=mine, other=-1)
    parents = tl.load(parents_ptr + lane * LONGEST + i, mask=mine, other=-1)
    chosen = chosen_ptr + lane * (nodes + 1)
    token = tl.load(chosen)
    gained = tl.where(i == 0, token, -1)
    rows = tl.zeros([WIDTH], dtype=tl.int32)
    accepted = tl.zeros([], dtype=tl.int32)
    child = _child(drafts, parents, i, -1, token)
    while child >= 0:  # it comes after its parent
        accepted += 1
        token = tl.load(chosen + 1 + child)
        gained = tl.where(i == accepted, token, gained)
        rows = tl.where(i == accepted, 1 + child, rows)
        child = _child(drafts, parents, i, child, token)
    state = lanes_ptr + lane * STRIDE
    moves = moves_ptr + lane * (ROWS + WIDTH)
    tl.store(moves + SLOT, tl.load(state + TARGET_SLOT))
    tl.store(moves + COUNT, accepted)
    tl.store(moves + FIRST, tl.load(state + LENGTH))
    tl.store(moves + ROWS + i, rows)
    advance(state, text_ptr + lane * capacity, gained, i, accepted, spare)
    out = out_ptr + lane * OUT
    tl.store(out, accepted)
    tl.store(out + 1 + i, gained, mask=i <= LONGEST)
    told = out + 2 + LONGEST + i
    tl.store(told, drafts, mask=mine)
    tl.store(told + LONGEST, parents, mask=mine)
    tl.store(told + 2 * LONGEST, tl.load(claims_ptr + lane * LONGEST + i, mask=mine, other=0), mask=mine)
    tl.store(out + OUT - 1, 0)


@triton.jit(do_not_specialize=["blocks", "columns"])
def move_kernel(
    moves_ptr,  # int32 [lanes, entry]: see ROWS
    pool_ptr,  # [2, layers, blocks, KV_HEADS, BLOCK, DIM]
    table_ptr,  # int32 [slots, columns]: the blocks of each slot
    blocks,
    columns,
    ENTRY: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    DIM: tl.constexpr,
):
    """Of one lane, and one head of one layer's keys or values: row j of those kept moves to where the j-th token of the
    text belongs. None moves up, and each is read before another takes its place: they move in order."""
    lane, plane = tl.program_id(0), tl.program_id(1)
    moves = moves_ptr + lane * ENTRY
    table = table_ptr + tl.load(moves + SLOT) * columns
    first = tl.load(moves + FIRST)
    side, head = plane // KV_HEADS, plane % KV_HEADS  # keys of each layer, then values
    home = pool_ptr + (side.to(tl.int64) * blocks * KV_HEADS + head) * BLOCK * DIM + tl.arange(0, DIM)
    for j in range(1, tl.load(moves + COUNT) + 1):
        row = tl.load(moves + ROWS + j)
        if row != j:
            source, target = first + row, first + j
            from_block, to_block = tl.load(table + source // BLOCK).to(tl.int64), tl.load(table + target // BLOCK)
            kept = tl.load(home + (from_block * KV_HEADS * BLOCK + source % BLOCK) * DIM)
            tl.store(home + (to_block.to(tl.int64) * KV_HEADS * BLOCK + target % BLOCK) * DIM, kept)


@triton.jit(do_not_specialize=["levels", "nodes", "width"])
def wait_tree_kernel(
    moves_ptr,
    features_ptr,  # [lanes * (nodes + 1), width]
    ring_ptr,  # [lanes, RING, width]
    levels,
    nodes,
    width,
    ENTRY: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Keep the features of the rows that are kept, by their positions."""
    lane, j = tl.program_id(0) // (levels + 1), tl.program_id(0) % (levels + 1)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    moves = moves_ptr + lane * ENTRY
    if j <= tl.load(moves + COUNT):
        row = lane * (nodes + 1) + tl.load(moves + ROWS + j)
        place = (tl.load(moves + FIRST) + j) % RING
        features = tl.load(features_ptr + row.to(tl.int64) * width + column, mask=column < width)
        tl.store(ring_ptr + (lane * RING + place).to(tl.int64) * width + column, features, mask=column < width)
