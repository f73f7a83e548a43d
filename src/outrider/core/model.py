"""`LanguageModel` and `DraftHead`: networks over a cache of slots. What one can do beyond passes it says by fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from outrider.core.step import Recording, Stepper

if TYPE_CHECKING:
    from torch import Tensor


class Rows(NamedTuple):
    """Tokens to run for one cache slot: each follows row `parents[i]` of the slot's pending rows (ROOT: the committed
    prefix). Pending rows are numbered from the last commit on, earlier forwards included, so a tree can be grown level
    by level. `logits` names the rows of *this* call whose logits are wanted (None: all)."""

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int]
    logits: Sequence[int] | None = None

    @staticmethod
    def chain(slot: int, tokens: Sequence[int], logits: Sequence[int] | None = None) -> Rows:
        return Rows(slot, tokens, range(-1, len(tokens) - 1), logits)


class Runner(NamedTuple):
    """Threads that a model keeps and lends between its passes."""

    function: int
    """Address of a C function, `Runner` in sampler.h."""
    threads: int


class CachedNetwork(ABC):
    """A network over a cache of `max_batch` slots, each holding up to `max_context` tokens.

    Per slot the cache is a committed prefix plus pending rows. A pass appends pending rows, `commit` keeps one root
    path of them (renumbering it contiguously) and drops the rest, `rollback` cuts the prefix and drops all pending.
    Invariant: after any history the next results are those of a fresh prefill of the committed tokens.
    """

    max_context: int
    max_batch: int
    supports_trees: bool
    chunk: int
    """Rows per pass that prefill should use."""

    keeps_prefixes: bool = False
    """Whether closed slots still hold their tokens until they are opened again: by `open`, which takes the one unused
    for longest, or with what they hold (`epoch`, `reopen`, `fork`)."""
    measurable: bool = False
    """Whether it can tell what its passes cost (`measure`)."""
    steps_on_device: bool = False
    """Whether it takes part in whole steps on a device, which are told to it afterwards (`advance`)."""

    @abstractmethod
    def open(self) -> int:
        """A free slot, empty."""

    @abstractmethod
    def close(self, slot: int) -> None: ...

    @abstractmethod
    def length(self, slot: int) -> int:
        """Committed tokens in the slot."""

    @abstractmethod
    def commit(self, slot: int, path: Sequence[int]) -> None: ...

    @abstractmethod
    def rollback(self, slot: int, length: int) -> None: ...

    @property
    def held(self) -> int:
        """Open slots: when nothing runs, none may be."""
        return 0

    @property
    def cache_tokens(self) -> int:
        """Those that the cache has room for, in all slots together."""
        return self.max_batch * self.max_context

    def make_room(self, beside: Sequence[CachedNetwork] = ()) -> int:
        """Take the memory that the cache is to have, before the first slot is opened; together with these networks,
        which are to work with it. Returns `max_context`, which may be less from now on."""
        return self.max_context

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether the cache has room for requests of so many tokens in slots of its own, and for what a step may add to
        each; one alone it always has."""
        return True

    def reserve(self, lengths: Mapping[int, int]) -> Mapping[int, int]:
        """Have room in these slots for so many tokens each, before a step on a device is launched that may write them;
        returns for how many there is."""
        return dict.fromkeys(lengths, self.max_context)

    def epoch(self, slot: int) -> int:
        """How often the slot was opened: while this stays, a closed slot holds what it held when it was closed."""
        raise NotImplementedError

    def reopen(self, slot: int, length: int) -> None:
        """Open this closed slot with the first `length` tokens it still holds."""
        raise NotImplementedError

    def fork(self, source: int, length: int) -> int:
        """Open a slot with a copy of the first `length` committed tokens of `source`. That one stays as it is, open or
        closed, unless it is closed and no other is left: then it is opened itself."""
        raise NotImplementedError

    @property
    def cost_key(self) -> str:
        """What its costs depend on, besides the machine: two networks that differ in it are measured apart."""
        return type(self).__name__

    def measure(self, rows: int, context: int) -> float:
        """Seconds of a pass of so many rows behind so many tokens, timed on a part of it. Changes nothing that any
        request can see, and takes but a fraction of that pass."""
        raise NotImplementedError

    def advance(self, grown: Mapping[int, int]) -> None:
        """Note that steps on the device have committed so many more rows to each of these slots."""
        raise NotImplementedError

    def tune(self, note: Callable[[str], None]) -> Iterator[None]:
        """Find out, before anything is recorded, how this device computes fastest, where nobody has yet; yields now and
        then. `note`: what a person should read."""
        return iter(())

    def recordings(self) -> Iterator[Recording]:
        """Passes to compile and record before the first request, so that none is while it waits; those that are not
        yet."""
        return iter(())

    @property
    def late(self) -> int:
        """Those that were recorded while one waited all the same: 0, unless there is a mistake somewhere."""
        return 0

    def recovers(self, error: Exception) -> bool:
        """Whether this was an error of the device that the network runs on, not of who asked; it works again then
        (`DeviceLost` where it does not), but what the cache held may be gone: every slot is to be closed."""
        return False


class LanguageModel(CachedNetwork):
    """A causal model."""

    vocab_size: int

    gives_features: bool = False
    """Whether its hidden states can be read (`keep_hidden_layers`, `features`)."""
    features: Tensor
    """[rows of the last `forward`, layers * hidden]; valid until the next one."""
    runner: Runner | None = None
    """Threads of its own that others may use between passes."""

    @property
    def kernels(self) -> str | None:
        """The instruction set that its compiled kernels use; None: it has none of ours."""
        return None

    @abstractmethod
    def forward(self, batch: Sequence[Rows]) -> Tensor:
        """fp32 logits [rows wanted, vocab], in the order of the batch."""

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        """Keep these states in every `forward` from now on: i is the residual stream after i layers."""
        raise NotImplementedError

    def stepper(self, draft: CachedNetwork | None, vocab_size: int | None = None) -> Stepper | None:
        """What takes whole steps, alone or with a draft model or head of its own kind; None where the two cannot step
        together. `vocab_size`: choose among so many tokens only."""
        return None


class HeadOutput(NamedTuple):
    logits: Tensor
    """fp32 [rows wanted, draft vocabulary]"""
    states: Tensor
    """[rows, hidden]: the head's guess of the state that follows each row."""


class NoiseKey(NamedTuple):
    """A temperature above 0 and the noise to draw with, as the target will: the two words of `noise.row_key`."""

    temperature: float
    low: int
    high: int


class TopK(NamedTuple):
    """The best tokens to follow a row with their probabilities, best first: by probability, and as noise draws them."""

    likely: Sequence[tuple[int, float]]
    drawn: Sequence[tuple[int, float]]


class WantedTree(NamedTuple):
    """A tree to be drafted, by the terms of a `Budget`. One of a single child a node is a chain."""

    nodes: int
    """At most, and at least 1."""
    depth: int
    """At most, and at least 1; not more than nodes."""
    branching: int
    """Children of a node, at most."""
    width: int
    """Nodes of a level that are followed up, at most."""
    floor: float
    expand_node: float
    expand_level: float
    keys: Sequence[NoiseKey] | None = None
    """Of each level; None: greedily."""


class DraftHead(CachedNetwork):
    """A small network that reads the target's features and drafts on from its own states.

    A row is a token with the state *before* it. That state is true where the target has run the token before
    (`features`, which the head fuses into a state), else the head's own guess from the row before (`states`). The row's
    logits are for the token after its own.
    """

    aux_hidden_layers: tuple[int, ...]
    """The target's states it reads."""
    acceptance: tuple[float, ...]
    """How often each level of its chains was right on held-out text, where those before were; empty: not known."""
    ids: Tensor
    """[draft vocabulary] int64, rising: which of the target's tokens each column of logits stands for."""
    most_ranked: int = 0
    """The most tokens that `rank` finds to follow a row; 0: it hands out logits only."""
    drafts_trees: bool = False
    """Whether it drafts whole trees (`draft`)."""

    @abstractmethod
    def forward(
        self, batch: Sequence[Rows], *, features: Tensor | None = None, states: Tensor | None = None
    ) -> HeadOutput:
        """Exactly one of `features` [rows, layers * target hidden] and `states` [rows, hidden] is given."""

    def rank(
        self,
        batch: Sequence[Rows],
        keys: Sequence[NoiseKey | None],
        count: int,
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[list[TopK], Tensor]:
        """As `forward`, with at most `count` (up to `most_ranked`) followers instead of logits, per row wanted, and its
        states. `keys` per row wanted; None: greedily, so that what is drawn is what is likely."""
        raise NotImplementedError

    def draft(
        self, batch: Sequence[Rows], wanted: Sequence[WantedTree], *, features: Tensor
    ) -> list[tuple[list[int], list[int], list[float]]]:
        """As `rank` once a level: tokens, parents and confidence of a tree behind every row wanted, to the bit as
        `BestFirstTree` grows it. At most `chunk` rows, and as many nodes of a level. Rows of drafted tokens are
        dropped."""
        raise NotImplementedError
