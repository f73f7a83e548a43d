"""The steps of a generation, for people (a table) and for programs (JSON)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.cli.screen import rich_colour
from outrider.core.draft import ROOT

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from outrider.core.request import StepTrace
    from outrider.models.checkpoints.tokenizer import Tokenizer

Word = Callable[[int], str]
"""Shows a token id to a person."""


def words(tokenizer: Tokenizer) -> Word:
    """Tokens as readable words: spaces, line ends and broken bytes get a face, special tokens their name."""

    def word(token: int) -> str:
        text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
        if not text:
            return tokenizer.token(token) or f"[{token}]"
        named = re.sub(" {3,}", lambda run: f"␣×{len(run[0])}", text)
        named = named.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in named)

    return word


def table(steps: Sequence[StepTrace], word: Word) -> Table:
    """One row per target pass. Trees are drawn with one line per branch, refused tokens dimmed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("step", "drafted", "accepted", "the target adds", "drafted by"):
        shown.add_column(heading, justify="right" if heading == "step" else "left", overflow="fold")
    for number, step in enumerate(steps, start=1):
        draft = step.draft
        accepted = Text(" ").join(
            Text(word(draft.tokens[node]), rich_colour(draft.proposer(node))) for node in step.path
        )
        shown.add_row(
            str(number),
            _drawn(step, word),
            accepted or "-",
            f"{word(step.token)} ({step.kind})" if step.token is not None else "- (ended inside the draft)",
            draft.source if len(draft) else "-",
        )
    return shown


def as_json(steps: Sequence[StepTrace], word: Word) -> list[dict[str, Any]]:
    """The same steps: drafts as tokens and parents (-1: the last committed token), `accepted` as nodes."""
    return [
        {
            "step": number,
            "drafter": step.draft.source,
            "drafted": {
                "token_ids": list(step.draft.tokens),
                "drafters": [step.draft.proposer(node) for node in range(len(step.draft))],
                "tokens": [word(token) for token in step.draft.tokens],
                "parents": list(step.draft.parents),
            },
            "accepted": list(step.path),
            "token_id": step.token,
            "token": None if step.token is None else word(step.token),
            "kind": step.kind,
            "why": step.why,
        }
        for number, step in enumerate(steps, start=1)
    ]


def _drawn(step: StepTrace, word: Word) -> Text:
    """The draft as text: a run of only children on one line, branches below it, indented."""
    from rich.text import Text

    drawn, accepted = Text(), set(step.path)
    if not len(step.draft):
        return Text("-")

    def write(node: int, indent: str) -> None:
        """`node` and what follows it; the cursor stands where its word goes."""
        drawn.append(
            word(step.draft.tokens[node]), rich_colour(step.draft.proposer(node)) if node in accepted else "dim"
        )
        below(node, indent)

    def below(node: int, indent: str) -> None:
        children = step.draft.children(node)
        if len(children) == 1:
            drawn.append(" " if node != ROOT else "")
            write(children[0], indent)
            return
        for child in children:
            last = child == children[-1]
            drawn.append(
                f"{indent}{'└' if last else '├'} " if not drawn else f"\n{indent}{'└' if last else '├'} ",
                "dim",
            )
            write(child, indent + ("  " if last else "│ "))

    below(ROOT, "")
    return drawn
