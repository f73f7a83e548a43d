"""`--config FILE`: what a file says are a command's defaults, and what it cannot say is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer.main
from typer.testing import CliRunner

from outrider.cli.app import app
from outrider.cli.config import configured
from outrider.errors import InvalidRequest


def walk(command: Any) -> list[Any]:
    below = getattr(command, "commands", {}).values()
    return [command, *(each for child in below for each in walk(child))]


def test_every_command_takes_it() -> None:
    commands = walk(typer.main.get_command(app))
    acting = [c for c in commands if not getattr(c, "commands", None) or c.invoke_without_command]
    assert len(acting) >= 12
    assert [c.name for c in acting if "config" not in {p.name for p in c.params}] == []


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A small program: what its command was given."""
    small = typer.Typer()
    given: dict[str, Any] = {}

    @small.callback()
    def root() -> None: ...

    @small.command()
    @configured
    def shout(
        word: str,
        max_tokens: int = 1,
        loud: bool = False,
        stop: Annotated[list[str] | None, typer.Option()] = None,
        seed: int | None = None,
    ) -> None:
        """Say it."""
        given.update(word=word, max_tokens=max_tokens, loud=loud, stop=stop, seed=seed)

    def ran(text: str, *arguments: str) -> dict[str, Any]:
        path = tmp_path / "some.toml"
        path.write_text(text)
        done = CliRunner().invoke(small, ["shout", "hi", "--config", str(path), *arguments], catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return given

    return ran


def test_the_file_gives_defaults_and_the_command_line_goes_first(run: Any) -> None:
    text = 'seed = 3\nmax-tokens = 5\n[shout]\nmax_tokens = 7\nloud = true\nstop = ["a", "b"]\n[other]\nx = 1\n'
    assert run(text) == {"word": "hi", "max_tokens": 7, "loud": True, "stop": ["a", "b"], "seed": 3}
    assert run(text, "--max-tokens", "9", "--no-loud")["max_tokens"] == 9
    assert run("")["max_tokens"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense = 1", "no command has an option nonsense"),
        ("[shout]\nvolume = 1", "shout has no option volume"),
        ("[shout]\nword = 'x'", "shout has no option word"),
        ("shout = 5", "no command has an option shout"),
        ("= 5", "is not TOML"),
    ],
)
def test_what_a_file_cannot_say(run: Any, text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        run(text)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        typer.main.get_command(app)(["models", "list", "--config", "/nowhere.toml"], standalone_mode=False)


@pytest.mark.parametrize(("typed", "offered"), [("outrider mod", "models"), ("outrider serve --max-b", "--max-batch")])
def test_shells_complete_commands_and_options(typed: str, offered: str) -> None:
    environment = {
        "_OUTRIDER_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    done = CliRunner().invoke(app, [], prog_name="outrider", env=environment)
    assert offered in done.stdout.split()
