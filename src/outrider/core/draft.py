"""What a drafter proposes, and what is decided about it: `Draft`, `Budget`, `Speculation`, `Verdict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

ROOT = -1
"""Parent of the first nodes of a tree: the last committed token."""


@dataclass(slots=True, unsafe_hash=True)  # a value, but not frozen: several are made for every request and step
class Draft:
    """A tree of proposed tokens for one request; a chain is a tree without branches, plain decoding an empty one.
    Nobody changes one that is made.

    Node i proposes `tokens[i]` to follow node `parents[i]` (ROOT: to follow the last committed token).
    Invariants: parents come before children; siblings carry distinct tokens and stand in the order they were drawn.

    `confidence[i]` estimates the chance that node i is accepted (so it never grows along a path); only the
    controller reads it, exactness never depends on it.

    `q` says what the tokens were sampled from. None: point masses, the drafter just proposes. Otherwise row i,
    [nodes, vocab] log-probabilities, is the distribution at node i's parent from which i and its siblings were drawn
    one after the other *without replacement*. Only the rejection rule reads it; declaring it wrongly breaks exactness.

    `source` is the drafter's name. Where a tree was merged, `sources[i]` says whose node i is; names joined by `&`
    proposed the same.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    confidence: Sequence[float] = ()
    source: str = "none"
    q: Tensor | None = None
    sources: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def label(self, node: int) -> str:
        """Who proposed the node, all of them."""
        return self.sources[node] if self.sources else self.source

    def proposer(self, node: int) -> str:
        """Who proposed the node; of several, who did so for less."""
        return self.label(node).partition("&")[0]

    def only(self, nodes: Sequence[int]) -> Draft:
        """Of these nodes alone: rising, and none without its parent. Never of a tree with `q`."""
        if not nodes:
            return _NOTHING
        count = len(nodes)
        if not self.sources and nodes[-1] < count:  # the first ones, as mostly
            source = self.proposer(0)
            return Draft(self.tokens[:count], self.parents[:count], self.confidence[:count], source)
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(nodes)}}
        proposers = dict.fromkeys(map(self.proposer, nodes if self.sources else (0,)))
        return Draft(
            [self.tokens[i] for i in nodes],
            [place[self.parents[i]] for i in nodes],
            [self.confidence[i] for i in nodes],
            "+".join(proposers),
            sources=[self.sources[i] for i in nodes] if self.sources else (),
        )

    def merged(self, other: Draft) -> Draft:
        """Both trees in one, what they have in common once: there the higher claim stands, under both names. Neither
        may have `q`: what was drawn from it may have no other siblings."""
        if not other.tokens or not self.tokens:
            return other if other.tokens else self
        assert self.q is None
        assert other.q is None
        tokens, parents, confidence = list(self.tokens), list(self.parents), list(self.confidence)
        sources = list(self.sources) or [self.source] * len(self)
        names = other.sources or [other.source] * len(other)
        known = {place: node for node, place in enumerate(zip(parents, tokens, strict=True))}
        places = {ROOT: ROOT}  # of the other's nodes in the merged tree
        for i, (token, parent, claim) in enumerate(zip(other.tokens, other.parents, other.confidence, strict=True)):
            at = places[parent], token
            node = places[i] = known.setdefault(at, len(tokens))
            if node < len(tokens):
                confidence[node] = max(confidence[node], claim)
                sources[node] += f"&{names[i]}"
                continue
            tokens.append(token)
            parents.append(at[0])
            confidence.append(claim)
            sources.append(names[i])
        return Draft(tokens, parents, confidence, f"{self.source}+{other.source}", sources=sources)

    def children(self, node: int) -> list[int]:
        """The nodes proposed to follow `node`, in the order they were drawn."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def fault(self, vocab: int, tree: bool) -> str | None:
        """Why no target with such a vocabulary can verify it, in words; None where one can. `tree`: whether branches
        may be verified."""
        count, tokens, parents = len(self.tokens), self.tokens, self.parents
        if len(parents) != count or len(self.confidence) != count:
            return f"{count} tokens have {len(parents)} parents and {len(self.confidence)} confidences"
        if self.sources and len(self.sources) != count:
            return f"{count} tokens have {len(self.sources)} sources"
        if not count:
            return None
        if min(tokens) < 0 or max(tokens) >= vocab:
            token = next(token for token in tokens if not 0 <= token < vocab)
            return f"token {token} is not among the target's {vocab}"
        for node, parent in enumerate(parents):
            if not ROOT <= parent < node:
                return f"node {node} follows node {parent}, which does not come before it"
            if parent != node - 1 and not tree:
                return f"node {node} branches off, and only a single path can be verified"
        if len(set(zip(parents, tokens, strict=True))) < count:
            return "two nodes propose the same token in the same place"
        if self.q is not None and tuple(self.q.shape) != (count, vocab):
            return f"q is {list(self.q.shape)}, not [{count}, {vocab}]"
        return None

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node` itself; empty for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


_NOTHING = Draft()


@dataclass(slots=True, unsafe_hash=True)  # as `Draft`
class Budget:
    """What a drafter may spend on one request in one step. Nobody changes one that is made.

    At most `nodes` nodes, none deeper than `depth`, none whose confidence is below `floor` (it would cost more
    than it is expected to bring), and a single path where `tree` is false. A drafter that makes passes makes none for
    a level whose nodes are together less likely than `expand_level`, and where it may choose which to follow up, not
    those less likely than `expand_node`.
    """

    nodes: int
    depth: int
    floor: float = 0.0
    tree: bool = True
    expand_node: float = 0.0
    expand_level: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request may be drafted for; it can change the speed, never the text.

    At most `max_nodes` nodes a step (None: as many as the controller likes; 0: none, plain decoding), by the drafter
    named (None: the engine's own). `prediction`: what the caller expects the answer to be, as tokens to draft from.
    `forced`: whether tokens that a grammar leaves no choice about are drafted, by nobody and for nothing.
    """

    max_nodes: int | None = None
    drafter: str | None = None
    prediction: tuple[int, ...] = ()
    forced: bool = True


class Verdict(NamedTuple):
    """What an acceptance rule decided: the accepted nodes in path order, and the token the target adds."""

    path: tuple[int, ...]
    token: int
