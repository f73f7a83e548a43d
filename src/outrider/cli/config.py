"""`--config FILE`: options of a command out of a TOML file; what is given on the command line goes first.

Keys are the options' names (`max-tokens` or `max_tokens`). Those in a table belong to the command of that name
(`[serve]`, `[models.cost]`); those before any table to every command that has such an option.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import InvalidRequest


def _use(context: typer.Context, path: Path | None) -> Path | None:
    """Make what the file says the defaults of the command under way."""
    if path is not None and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **_options(context, path, _read(path))}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_use,
        help="Take options from this TOML file; those on the command line go first (docs/config.md).",
    ),
]


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option `--config`, which comes last."""
    own = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config)

    def run(*, config: Path | None, **values: Any) -> None:
        command(**values)

    signature = own.replace(parameters=[*own.parameters.values(), option])
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return run


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"config: {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"config: {path} is not TOML: {error}") from error


def _options(context: typer.Context, path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says to this command, by the names of its parameters."""
    known = _names(context.command)
    anywhere = {name for command in _commands(context.find_root().command) for name in _names(command)}
    everywhere = {name: value for name, value in said.items() if not isinstance(value, Mapping)}
    for name in everywhere:
        if _plain(name) not in anywhere:
            raise InvalidRequest(f"config: {path}: no command has an option {name}; see outrider COMMAND --help")
    own: Any = said
    for part in context.command_path.split()[1:]:
        own = own.get(part, {})
        if not isinstance(own, Mapping):
            raise InvalidRequest(f"config: {path}: {part} must be a table of options, [{part}]")
    own = {name: value for name, value in own.items() if not isinstance(value, Mapping)}  # not of commands below it
    for name in own:
        if _plain(name) not in known:
            raise InvalidRequest(f"config: {path}: {context.command_path} has no option {name}")
    return {known[_plain(name)]: value for name, value in (everywhere | own).items() if _plain(name) in known}


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _commands(command: Any) -> Iterator[Any]:
    """A command and all below it. `Any`: typer's command classes differ from version to version."""
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _commands(below)


def _names(command: Any) -> dict[str, str]:
    """The parameters of its options, by their own names and by what people type; --config is none of them."""
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in ("config", "help")]
    typed = {_plain(flag.removeprefix("--")): p.name for p in options for flag in p.opts if flag.startswith("--")}
    return {p.name: p.name for p in options} | typed
