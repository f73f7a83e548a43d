"""How much of a GPU caches get: what is left of the part they may have, once all weights and buffers are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from outrider.errors import InvalidRequest
from outrider.models.cuda.cache import SLACK, blocks_of
from outrider.models.cuda.kernels.attention import BLOCK

LEAST = 512
"""Tokens of a context that are worth running a model for."""


class CacheMemory(NamedTuple):
    """`fraction` of the whole card, for weights, buffers and cache together. `context`: tokens of one request that must
    fit; None: as many as do. `before`: bytes that were in use before the model came."""

    fraction: float
    context: int | None = None
    before: int = 0

    @staticmethod
    def on(device: torch.device, fraction: float, context: int | None) -> CacheMemory | None:
        """As it is now; None where nothing can be measured, since there is no GPU."""
        if device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(device)
        return CacheMemory(fraction, context, total - free)


class Waiting(Protocol):
    """A network whose cache has no blocks yet."""

    max_batch: int
    max_context: int
    memory: CacheMemory | None
    """None: as many blocks as its slots could fill."""
    device: torch.device

    @property
    def block_bytes(self) -> int: ...
    def provide(self, blocks: int, max_context: int) -> None:
        """It has so many from now on, for contexts of at most so many tokens."""
        ...


def divide(networks: Sequence[Waiting], late: bool) -> None:
    """Give all of these on one GPU their blocks: as many to each, since they hold the same texts, but to none more than
    it could ever fill. A context that nobody asked for is cut to what fits. `late`: others that they work with have
    theirs already, and may have taken all; half of what is free is theirs then."""
    measured = sorted((each for each in networks if each.memory), key=_most)
    for network in networks:
        if not network.memory:
            network.provide(_most(network), network.max_context)
    if not measured:
        return
    torch.cuda.empty_cache()
    limits = [each.memory for each in measured if each.memory]
    left = bytes_left(*torch.cuda.mem_get_info(measured[0].device), limits, late)
    for i, network in enumerate(measured):
        blocks = min(_most(network), max(0, left) // sum(each.block_bytes for each in measured[i:]))
        network.provide(blocks, context_of(network, blocks))
        left -= blocks * network.block_bytes


def bytes_left(free: int, total: int, limits: Sequence[CacheMemory], late: bool) -> int:
    """What caches may take of a card; recorded launches need some of the rest."""
    own = total - free - min(limit.before for limit in limits)
    allowed = min(int(min(limit.fraction for limit in limits) * total) - own, free - total // 20)
    return max(allowed, free // 2) if late else allowed


def context_of(network: Waiting, blocks: int) -> int:
    """The longest of its contexts that so many blocks hold."""
    fits, memory = blocks * BLOCK - SLACK, network.memory
    asked = memory.context if memory else None
    if memory and fits < min(LEAST if asked is None else asked, network.max_context):
        room = blocks * network.block_bytes / 2**30
        raise InvalidRequest(
            f"a context of {asked or LEAST} tokens does not fit the {room:.1f} GiB that weights and buffers leave of "
            f"{memory.fraction:.0%} of the GPU's memory; raise gpu_memory, or lower max_context"
        )
    return min(fits, network.max_context)


def _most(network: Waiting) -> int:
    """Blocks that all its slots together could ever fill."""
    return network.max_batch * blocks_of(network.max_context)
