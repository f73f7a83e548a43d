"""The draft trees of a step's lanes, once they are grown: run by the target, judged, and what was accepted kept."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.step import StepShape
from outrider.models.cuda.kernels import trees as kernels
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, OUT, STRIDE, WIDTH, Lanes
from outrider.models.cuda.network import Network
from outrider.models.cuda.tables import PATH

_ENTRY = kernels.ROWS.value + WIDTH


class Trees:
    """Of up to `MAX_LENGTH` nodes each, whose tokens are in `Lanes.drafts`; see `kernels/trees.py`."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

        def room(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=lanes.records.device)

        self.parents, self.depths, self._claims = (room(lanes.most, MAX_LENGTH) for _ in range(3))
        self.claims = self._claims.view(torch.float32)
        self._moves = room(lanes.most, _ENTRY)

    def place(self, network: Network, lanes: int, shape: StepShape) -> None:
        """Describe the rows of the target's pass."""
        board, t = self._lanes, network.tables
        kernels.place_tree_kernel[(lanes,)](
            board.records,
            board.numbers,
            board.text,
            board.drafts,
            self.parents,
            self.depths,
            *t.columns,
            t.wanted,
            t.paths,
            board.noise.words,
            board.noise.numbers,
            shape.nodes,
            shape.verified,
            board.capacity,
            network.tokens,
            LONGEST=MAX_LENGTH,
            PATH=PATH,
            AHEAD=NOISE_AHEAD,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=2,
        )

    def accept(self, chosen: Tensor, lanes: int, shape: StepShape) -> None:
        """Walk down each tree by what the target has chosen, and advance the lane."""
        board = self._lanes
        kernels.accept_tree_kernel[(lanes,)](
            board.records,
            board.text,
            board.drafts,
            self.parents,
            self._claims,
            chosen,
            self._moves,
            board.out,
            shape.nodes,
            board.capacity,
            board.target_spare,
            LONGEST=MAX_LENGTH,
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )

    def keep(self, network: Network, lanes: int) -> None:
        """Move the accepted rows together in the target's cache."""
        pool, table = network.cache.pool, network.cache.table
        sides, layers, blocks, heads, block, width = pool.shape
        kernels.move_kernel[(lanes, sides * layers * heads)](
            self._moves,
            pool,
            table,
            blocks,
            table.shape[1],
            ENTRY=_ENTRY,
            KV_HEADS=heads,
            BLOCK=block,
            DIM=width,
            num_warps=1,
        )

    def keep_features(self, features: Tensor, ring: Tensor, lanes: int, shape: StepShape) -> None:
        """Put those of the accepted rows into a head's ring [lanes, places, width], by their positions."""
        _, places, width = ring.shape
        kernels.wait_tree_kernel[(lanes * (shape.verified + 1), -(-width // 1024))](
            self._moves,
            features,
            ring,
            shape.verified,
            shape.nodes,
            width,
            ENTRY=_ENTRY,
            RING=places,
            BLOCK=1024,
        )
