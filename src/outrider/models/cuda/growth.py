"""Growing draft trees with a head, all on the device: a fixed number of passes over a fixed number of rows.

As `drafters/best_first_tree.py`, level by level: of each level the `WIDTH` most promising nodes are run, `BRANCH`
tokens that may follow each are looked at, and of all those seen the most promising make the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.step import Manner, StepShape
from outrider.models.cuda.chooser import BLOCK
from outrider.models.cuda.head_network import HeadNetwork
from outrider.models.cuda.kernels import candidates, growth
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, STRIDE, Lanes
from outrider.models.cuda.tables import PATH
from outrider.models.cuda.trees import Trees

WIDTH = 8
"""Nodes of a level that are run: their rows share a pass, which takes little longer than one row."""
BRANCH = 8
"""Children of a node that are looked at."""
LEVELS = 8
"""Most of a tree."""
_POOL = BRANCH + (LEVELS - 1) * WIDTH * BRANCH


class TreeGrowth:
    """Among the first `columns` columns of the head's logits, whose tokens are `ids`."""

    def __init__(self, network: HeadNetwork, lanes: Lanes, trees: Trees, columns: int, ids: Tensor) -> None:
        self._network, self._lanes, self._trees = network, lanes, trees
        self._columns, self._ids = columns, ids.to(lanes.records.device, torch.int32)
        self._blocks = -(-columns // BLOCK)
        self._wide = 1 << (self._blocks - 1).bit_length()
        rows = lanes.most * WIDTH

        def room(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=lanes.records.device)

        self._best = room(rows, self._blocks, BRANCH, dtype=torch.int64)
        self._peak, self._total, self._crest = room(3, rows, self._blocks, dtype=torch.float32)
        self._mass = room(rows, BRANCH + 1, self._blocks, dtype=torch.float32)
        self._count = room(rows, BRANCH, self._blocks)
        self._which, self._found = room(2, rows, BRANCH)
        """What may follow each row: columns, and tokens."""
        self._weights = room(rows, BRANCH, dtype=torch.float32)
        self._pool = room(3, lanes.most, _POOL)
        """Tokens, parents, and where each of those kept stands in its tree."""
        self._claims = room(lanes.most, _POOL, dtype=torch.float32)
        front = LEVELS + 1, lanes.most, WIDTH
        self._front, self._front_claims = room(*front), room(*front, dtype=torch.float32)
        self._roads = room(*front, LEVELS)
        self._index = room(rows)

    def begin(self, lanes: int, last: Tensor, manner: Manner) -> None:
        """The head has run each lane's last token, in row `last` of its pass: the first level."""
        self._look(lanes, 0, last, manner)

    def grow(self, lanes: int, shape: StepShape, last: Tensor, manner: Manner) -> None:
        """The others, and the tree."""
        network = self._network
        for level in range(1, shape.drafted):
            network.run(lanes * WIDTH, True, network.states, self._index)
            self._look(lanes, level, last, manner)
        tokens, parents, places = self._pool
        trees = self._trees
        growth.keep_kernel[(lanes,)](
            tokens,
            parents,
            self._claims,
            places,
            self._lanes.drafts,
            trees.parents,
            trees.depths,
            trees.claims,
            BRANCH + (shape.drafted - 1) * WIDTH * BRANCH,
            shape.nodes,
            WIDTH=WIDTH,
            BRANCH=BRANCH,
            LONGEST=MAX_LENGTH,
            POOL=_POOL,
            WIDE=1 << (_POOL - 1).bit_length(),
            SOME=32,
            num_warps=8,
        )

    def _look(self, lanes: int, level: int, last: Tensor, manner: Manner) -> None:
        """At what may follow the rows run last, and choose those to run next."""
        network, board, t = self._network, self._lanes, self._network.tables
        each = WIDTH if level else 1
        network.head(lanes * each)
        logits, noise, best = network.logits, board.noise, (self._best, self._peak, self._total)
        sizes = {"ROWS": each, "BRANCH": BRANCH}
        candidates.sift_kernel[(lanes, self._blocks)](
            logits,
            self._ids,
            noise.words,
            noise.numbers,
            *best,
            self._crest,
            logits.stride(0),
            self._columns,
            DRAWN=manner >= Manner.DRAWN,
            BLOCK=BLOCK,
            **sizes,
            num_warps=8 if level else 4,
        )
        found = self._which, self._found, self._weights
        candidates.rank_kernel[(lanes,)](*best, self._ids, *found, self._blocks, BLOCKS=self._wide, **sizes)
        if manner >= Manner.DRAWN:
            shared = logits, self._which, self._crest, noise.numbers, self._mass, self._count
            candidates.measure_kernel[(lanes, self._blocks)](
                *shared, logits.stride(0), self._columns, BLOCK=BLOCK, BLOCKS=self._wide, **sizes
            )
            candidates.trim_kernel[(lanes,)](
                *shared, self._weights, logits.stride(0), self._blocks, BLOCKS=self._wide, **sizes
            )
        tokens, parents, _ = self._pool
        growth.grow_kernel[(lanes,)](
            board.records,
            board.numbers,
            self._found,
            self._weights,
            tokens,
            parents,
            self._claims,
            self._front,
            self._front_claims,
            self._roads,
            *t.columns,
            t.wanted,
            t.paths,
            board.noise.words,
            board.noise.numbers,
            self._index,
            last,
            level,
            board.most,
            network.tokens,
            WIDTH=WIDTH,
            BRANCH=BRANCH,
            LEVELS=LEVELS,
            POOL=_POOL,
            PATH=PATH,
            AHEAD=NOISE_AHEAD,
            STRIDE=STRIDE,
            num_warps=1,
        )
