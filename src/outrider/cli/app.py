"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider import __version__
from outrider.cli.bench import bench
from outrider.cli.chat import chat
from outrider.cli.config import configured
from outrider.cli.doctor import doctor
from outrider.cli.generate import generate
from outrider.cli.help import CONTEXT, HeadedCommand
from outrider.cli.models import models
from outrider.cli.serve import serve
from outrider.cli.train import train

app = typer.Typer(
    name="outrider",
    help="Exact speculative decoding: the text your model would have written, sooner.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
for command in (generate, chat, serve, train, doctor):
    app.command(cls=HeadedCommand)(configured(command))
app.add_typer(models, name="models")
app.add_typer(bench, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...
