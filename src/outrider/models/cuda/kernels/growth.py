"""Growing a draft tree: which nodes are worth another level, and which make the tree.

A node's claim is its chance to be accepted: the product of the weights along its path (`candidates.py`). All that was
looked at lies in a pool of a lane, level by level: BRANCH nodes after the root, BRANCH after each of the WIDTH best
nodes of every level. Neither order nor size depends on what is found there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.candidates import LOWEST, key_of, place_of, score_of
from outrider.models.cuda.kernels.steps import DRAFT_SLOT, GAP, LENGTH, choose_by


@triton.jit(do_not_specialize=["level", "lanes", "vocab"])
def grow_kernel(
    lanes_ptr,  # int32 [lanes, STRIDE]
    numbers_ptr,  # the same as fp64
    found_ptr,  # int32 [rows, BRANCH]: what may follow the nodes of this level, as `rank_kernel` left it
    weights_ptr,
    pool_tokens_ptr,  # int32 [lanes, POOL]
    pool_parents_ptr,  # int32 [lanes, POOL]: by place in the pool; -1: the root
    pool_claims_ptr,  # fp32 [lanes, POOL]
    front_ptr,  # int32 [LEVELS, lanes, WIDTH]: the nodes of each level that were run, by place in the pool
    front_claims_ptr,  # fp32 [LEVELS, lanes, WIDTH]
    roads_ptr,  # int32 [LEVELS, lanes, WIDTH, LEVELS]: which of their level each of them and those before it were
    tokens_ptr,  # the tables of the next pass of the head
    slots_ptr,
    positions_ptr,
    indices_ptr,
    bases_ptr,
    wanted_ptr,
    paths_ptr,
    row_words_ptr,  # how its rows are chosen by
    row_numbers_ptr,
    index_ptr,  # int32 [rows]: the row of the last pass whose state each starts from
    last_ptr,  # int32 [lanes]: of the first pass, the row of the lane's last token
    level,
    lanes,  # that there is room for
    vocab,
    WIDTH: tl.constexpr,
    BRANCH: tl.constexpr,
    LEVELS: tl.constexpr,
    POOL: tl.constexpr,
    PATH: tl.constexpr,
    AHEAD: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Put what was found after the nodes of a level (0: after the root) into the lane's pool, and describe the best of
    that as the next level's rows. They lie in the head's cache behind the text's, level by level: those that are not
    accepted are written over, and so are those that are, by rows made from the target's own features."""
    lane = tl.program_id(0)
    state = lanes_ptr + lane * STRIDE
    here = (level * lanes + lane) * WIDTH
    before = tl.where(level == 0, 1, WIDTH)  # rows of the last pass
    child = tl.arange(0, WIDTH * BRANCH)
    which = child // BRANCH
    real = which < before
    later = which * level + level > 0  # after the root nothing stands in `front`
    source = lane * before * BRANCH + child
    weight = tl.load(weights_ptr + source, mask=real, other=0.0)
    claim = weight * tl.load(front_claims_ptr + here + which, mask=real & later, other=1.0)
    first = tl.where(level == 0, 0, BRANCH + (level - 1) * WIDTH * BRANCH)
    pool = lane * POOL + first + child
    tl.store(pool_tokens_ptr + pool, tl.load(found_ptr + source, mask=real, other=0), mask=real)
    tl.store(pool_parents_ptr + pool, tl.load(front_ptr + here + which, mask=real & later, other=-1), mask=real)
    tl.store(pool_claims_ptr + pool, claim, mask=real)

    i = tl.arange(0, WIDTH)
    best = tl.zeros([WIDTH], dtype=tl.int32)
    claims = tl.zeros([WIDTH], dtype=tl.float32)
    keys = tl.where(real, key_of(claim, child), LOWEST)
    for place in tl.static_range(WIDTH):
        top = tl.max(keys, axis=0)
        keys = tl.where(keys == top, LOWEST, keys)
        best = tl.where(i == place, place_of(top), best)
        claims = tl.where(i == place, score_of(top), claims)
    parent = best // BRANCH
    there = ((level + 1) * lanes + lane) * WIDTH + i
    tl.store(front_ptr + there, first + best)
    tl.store(front_claims_ptr + there, claims)

    row = lane * WIDTH + i
    base = tl.maximum(tl.load(state + LENGTH) - tl.load(state + GAP), 0)
    token = tl.load(found_ptr + lane * before * BRANCH + best)
    tl.store(tokens_ptr + row, tl.minimum(token, vocab - 1))
    tl.store(slots_ptr + row, tl.load(state + DRAFT_SLOT) + 0 * i)
    tl.store(positions_ptr + row, base + level + 0 * i)
    tl.store(indices_ptr + row, base + level * WIDTH + i)
    tl.store(bases_ptr + row, base + 0 * i)
    tl.store(wanted_ptr + row, row)
    tl.store(index_ptr + row, tl.where(level == 0, tl.load(last_ptr + lane), lane * WIDTH + parent))
    numbers = numbers_ptr + lane * STRIDE // 2
    choose_by(state, numbers, row_words_ptr, row_numbers_ptr, row, level + 1, i < WIDTH, AHEAD)

    step = tl.arange(0, LEVELS)[None, :] + 0 * i[:, None]  # [WIDTH, LEVELS]
    road = tl.load(roads_ptr + (here + parent)[:, None] * LEVELS + step, mask=step < level, other=0)
    road = tl.where(step == level, i[:, None], road)
    tl.store(roads_ptr + there[:, None] * LEVELS + step, road)
    tl.store(paths_ptr + row[:, None] * PATH + step, base + step * WIDTH + road, mask=step <= level)


@triton.jit(do_not_specialize=["count", "nodes"])
def keep_kernel(
    pool_tokens_ptr,
    pool_parents_ptr,
    pool_claims_ptr,
    places_ptr,  # int32 [lanes, POOL]: scratch
    drafts_ptr,  # int32 [lanes, LONGEST] each: the tree, as in `trees.Trees`
    parents_ptr,
    depths_ptr,
    claims_ptr,  # fp32
    count,  # nodes in the pool
    nodes,
    WIDTH: tl.constexpr,
    BRANCH: tl.constexpr,
    LONGEST: tl.constexpr,
    POOL: tl.constexpr,
    WIDE: tl.constexpr,
    SOME: tl.constexpr,
):
    """The most promising `nodes` of a lane's pool, in its order. A node claims no more than its parent, which comes
    before it, so they make a tree. Where the pool has fewer, the rest are none: -1, after the root."""
    lane = tl.program_id(0)
    i = tl.arange(0, WIDE)
    pool = lane * POOL + i
    claim = tl.load(pool_claims_ptr + pool, mask=i < count, other=0.0)
    key = key_of(claim, i)
    better = tl.zeros([WIDE], dtype=tl.int32)
    for start in range(0, count, SOME):
        j = start + tl.arange(0, SOME)
        other = key_of(tl.load(pool_claims_ptr + lane * POOL + j, mask=j < count, other=0.0), j)
        better += tl.sum((other[None, :] > key[:, None]).to(tl.int32), axis=1)
    kept = (claim > 0) & (better < nodes)
    place = tl.cumsum(kept.to(tl.int32), axis=0) - 1
    tl.store(places_ptr + pool, place, mask=kept)
    node = tl.arange(0, LONGEST)
    tree = lane * LONGEST
    tl.store(drafts_ptr + tree + node, -1 + 0 * node)
    tl.store(parents_ptr + tree + node, -1 + 0 * node)
    tl.store(depths_ptr + tree + node, 1 + 0 * node)
    tl.debug_barrier()  # every thread's part is written before another reads it, or writes it again
    parent = tl.load(pool_parents_ptr + pool, mask=kept, other=-1)
    parent = tl.load(places_ptr + lane * POOL + parent, mask=kept & (parent >= 0), other=-1)
    depth = tl.where(i < BRANCH, 1, 2 + (i - BRANCH) // (WIDTH * BRANCH))
    tl.store(drafts_ptr + tree + place, tl.load(pool_tokens_ptr + pool, mask=kept, other=0), mask=kept)
    tl.store(parents_ptr + tree + place, parent, mask=kept)
    tl.store(depths_ptr + tree + place, depth, mask=kept)
    tl.store(claims_ptr + tree + place, claim, mask=kept)
