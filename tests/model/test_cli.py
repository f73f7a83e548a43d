"""The command line as a person runs it. What a process of its own adds (streams, signals, a terminal) is tested in one;
the rest in this process, so that torch is imported once. The default model where its text matters."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import command
from tiny_gguf import BPE_TOKENS, bpe_metadata, write_hf_model
from tiny_llm import tiny_gguf
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import __version__
from outrider.cli.main import main
from outrider.cli.options import DEFAULT_MODEL
from outrider.cli.reference import page
from outrider.models.checkpoints import catalog
from outrider.models.checkpoints.checkpoint import Checkpoint

ROOT = Path(__file__).parents[2]
OUTRIDER = [sys.executable, "-c", "from outrider.cli.main import main; main()"]
PROMPT = "One two three four five. One two three four five. One two three"
DRAFTED = ["--raw", "--temperature", "0", "--draft-length", "4"]
"""Drafts of PROMPT are made, and good, whether or not they pay on this machine."""
FIELDS = {
    *("text", "token_ids", "finish_reason", "seconds", "tokens_per_second", "steps", "drafted", "accepted"),
    *("mean_acceptance_length", "drafter", "model", "prompt_tokens", "seed"),
}


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TERM": "xterm", **extra}


def outrider(*arguments: str, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OUTRIDER, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(**extra),
        check=False,
    )


Answered = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answered:
    """Runs a command with `--json`; returns the objects on its lines, and there must be nothing else on stdout."""

    def run(*arguments: str, stdin: str = "") -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert command(*arguments, "--json") == 0, capsys.readouterr().err
        shown = capsys.readouterr().out
        assert shown.endswith("\n")
        return [json.loads(line) for line in shown.splitlines()]

    return run


# Without a model


HELP = ["--help", "generate --help", "chat --help", "models --help", "models pull --help", "bench --help", "--version"]


@pytest.mark.parametrize("arguments", HELP)
def test_help_imports_no_torch(arguments: str) -> None:
    code = (
        "import sys\n"
        "from outrider.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    assert not done.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "outrider" in done.stdout


def spent(*command: str) -> float:
    """Seconds of a processor, so that a busy machine does not matter; the least of three times."""

    def once() -> float:
        before = os.times()
        subprocess.run(command, env=environment(), capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    return min(once() for _ in range(3))


def test_help_is_instant() -> None:
    """Beside what PyTorch alone takes here, which a slow machine takes longer for, too."""
    assert spent(*OUTRIDER, "generate", "--help") < 0.5 * spent(sys.executable, "-c", "import torch")


def test_version() -> None:
    assert outrider("--version").stdout == f"outrider {__version__}\n"


def test_reference_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m outrider.cli.reference > docs/cli.md"


def test_default_model_is_the_catalog_s() -> None:
    assert DEFAULT_MODEL == catalog.DEFAULT_MODEL


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", ""], ["prompt", "empty"]),
        (["generate", "x", "--temperature", "-1"], ["--temperature"]),
        (["generate", "x", "--temperature", "inf"], ["temperature"]),
        (["generate", "x", "--top-p", "0"], ["top_p"]),
        (["generate", "x", "--max-tokens", "0"], ["--max-tokens"]),
        (["generate", "x", "--max-tokens", "4", "--min-tokens", "5"], ["min_tokens", "max_tokens"]),
        (["generate", "x", "--logit-bias", "7"], ["--logit-bias", "ID=BIAS"]),
        (["generate", "x", "--draft-length", "many"], ["--draft-length", "auto"]),
        (["generate", "x", "--stop", ""], ["stop"]),
        (["generate", "x", "--verify", "sloppily"], ["--verify", "coupled", "rejection"]),
        (["generate", "x", "--device", "abacus"], ["device", "cpu"]),
        (["generate", "x", "--model", "no-such-model"], ["no-such-model", "smollm2-135m"]),
        (["generate", "x", "--model", "/no/such/file.gguf"], ["/no/such/file.gguf"]),
        (["generate", "x", "--drafter", "clairvoyant"], ["drafter", "clairvoyant", "suffix"]),
        (["generate", "x", "--drafter", "model"], ["model:PATH"]),
        (["generate", "x", "--drafter", "model:/no/such/folder"], ["/no/such/folder"]),
        (["generate", "x", "--logit-bias", "999999=1"], ["logit_bias", "999999"]),
        (["generate", "one two three four", "--raw", "--max-context", "2"], ["prompt", "context"]),
        (["chat", "--top-p", "2"], ["--top-p"]),
        (["models", "path", "no-such-model"], ["no-such-model", "smollm2-135m"]),
        (["models", "pull", "--from", "/no/such/file.whl"], ["/no/such/file.whl"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, so that torch is imported once; what a new process adds is tested below."""
    if arguments[:2] == ["models", "pull"]:
        monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    sentences = [line for line in shown.err.splitlines() if re.match("(?i)error: ", line)]
    assert len(sentences) == 1, shown.err
    assert all(word in sentences[0] for word in words), sentences[0]


def test_error_in_a_process() -> None:
    done = outrider("generate", "x", "--model", "no-such-model")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: no model 'no-such-model'")


def test_stdin_that_is_not_text_is_refused() -> None:
    done = subprocess.run(
        [*OUTRIDER, "generate", "-"], input=b"\xff\xfe", capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"error: prompt: stdin is not valid UTF-8; convert it first\n"


def test_model_without_a_chat_template_continues_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlamaConfig(
        vocab_size=len(BPE_TOKENS),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
    )
    write_hf_model(tmp_path / "tiny.gguf", LlamaForCausalLM(config), bpe_metadata(), **{"rope.freq_base": 1e4})
    arguments = [
        "generate",
        "the hell",
        "--model",
        str(tmp_path / "tiny.gguf"),
        "--json",
        "--max-tokens",
        "4",
    ]
    monkeypatch.setattr(sys, "argv", ["outrider", *arguments, "--ignore-eos", "--compare"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert "no chat template" in shown.err
    result = json.loads(shown.out)
    assert result["identical"] is True
    assert result["prompt_tokens"] < 10


def test_models_list_and_path(default_checkpoint: Checkpoint) -> None:
    listed = outrider("models", "list")
    assert DEFAULT_MODEL in listed.stdout
    assert "yes, " in listed.stdout
    assert Path(outrider("models", "path").stdout.strip()) == default_checkpoint.path


# With the default model


def test_json_has_every_field_and_streams_nothing_else(default_checkpoint: Checkpoint, answered: Answered) -> None:
    asked = ("--max-tokens", "16", "--compare", "--trace", "--logprobs", "2")
    (result,) = answered("generate", PROMPT, *DRAFTED, *asked)
    assert set(result) >= FIELDS | {"plain", "identical", "trace", "logprobs", "origins"}
    assert set(result["plain"]) >= FIELDS
    assert result["identical"] is True
    assert result["plain"]["token_ids"] == result["token_ids"]
    assert result["text"] == default_checkpoint.tokenizer.decode(result["token_ids"])
    assert result["accepted"] > 0, "a text that repeats itself must be drafted well"
    assert result["steps"] < result["plain"]["steps"] == len(result["token_ids"])
    assert sum(origin in ("head", "suffix") for origin in result["origins"]) == result["accepted"]
    gained = [len(step["accepted"]) + (step["token_id"] is not None) for step in result["trace"]]
    assert sum(gained) == len(result["token_ids"])
    assert [entry["token_id"] for entry in result["logprobs"]] == result["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in result["logprobs"])


def test_sampled_text_is_plain_decoding_s_too(answered: Answered) -> None:
    sampling = ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01", "--seed", "7"]
    penalties = ["--repetition-penalty", "1.1", "--frequency-penalty", "0.2", "--presence-penalty", "0.1"]
    asked = ("--drafter", "ngram", "--compare", "--max-tokens", "16")
    (result,) = answered("generate", "-", *sampling, *penalties, *asked, stdin="Say hello, hello, hello.")
    assert result["identical"] is True
    assert result["seed"] == 7
    assert result["drafter"] == "ngram"


def test_text_goes_to_stdout_and_the_rest_to_stderr() -> None:
    done = outrider("generate", PROMPT, *DRAFTED, "--max-tokens", "8", "--trace", "--compare")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" four five.")
    assert "\x1b" not in done.stdout + done.stderr
    for word in ("step", "drafted", "accepted"):
        assert word in done.stdout
    assert "head" in done.stdout or "suffix" in done.stdout, "every step says who drafted"
    for words in ("tokens/s", "per target pass", "accepted", "drafter head", "seed", "same 8 tokens"):
        assert words in done.stderr


def test_chat_remembers_and_resets(answered: Answered) -> None:
    lines = "My name is Ada.\n\nWhat is my name?\n/reset\nWhat is my name?\n/exit\nnever read\n"
    first, second, fresh = answered("chat", "--max-tokens", "12", "--temperature", "0", stdin=lines)
    # The second prompt holds the first turn and its answer; after /reset only the question is left.
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(first["token_ids"])
    assert fresh["prompt_tokens"] < second["prompt_tokens"]


def hear_interrupts() -> None:
    """A shell starts background jobs deaf to Ctrl-C, and their children inherit it: tests may run in one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A process that believes it talks to a person."""

    def __init__(self, *arguments: str, **extra: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*OUTRIDER, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(COLUMNS="120", **extra),
            start_new_session=True,
            preexec_fn=hear_interrupts,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str, beyond: int = 0) -> None:
        """Read until `text` has been shown, and at least `beyond` characters."""
        deadline = time.monotonic() + 240
        while text not in self.seen or len(self.seen) < beyond:
            assert time.monotonic() < deadline, f"never saw {text!r} in {self.seen!r}"
            if select.select([self.ours], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:  # the process has closed its side
                    pytest.fail(f"ended without {text!r}: {self.seen!r}")

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def close(self) -> int:
        code = self.process.wait(timeout=240)
        while select.select([self.ours], [], [], 0)[0]:
            try:
                self.seen += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:
                break
        os.close(self.ours)
        return code


def test_terminal_gets_colour_and_a_legend_unless_refused() -> None:
    arguments = ["generate", PROMPT, "--raw", "--max-tokens", "8", "--temperature", "0", "--drafter", "suffix"]
    arguments += ["--draft-length", "4"]
    coloured = Terminal(*arguments)
    coloured.wait_for("drafted by suffix")
    assert coloured.close() == 0
    assert re.search("\x1b\\[32m[^\x1b]*five", coloured.seen)
    plain = Terminal(*arguments, NO_COLOR="1")
    plain.wait_for("tokens/s")
    assert plain.close() == 0
    # Moving the cursor for a progress bar is fine; colours and weights are not.
    assert not re.search("\x1b\\[[0-9;]*m", plain.seen)


LONG = ("--ignore-eos", "--max-tokens", "30000", "--max-context", "32768")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Where it matters not what is said, and it must be long: a model that is loaded in no time."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return "--model", str(tiny_gguf(tmp_path_factory.mktemp("tiny"), template, context=32768))


def test_interrupt_stops_generation_cleanly(tiny: tuple[str, str]) -> None:
    process = subprocess.Popen(
        [*OUTRIDER, "generate", "Count to a million.", *tiny, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=hear_interrupts,
    )
    assert process.stdout is not None
    process.stdout.read(1)  # it has begun to answer
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_interrupt_in_chat_stops_only_the_answer(tiny: tuple[str, str]) -> None:
    chat = Terminal("chat", *tiny, *LONG, NO_COLOR="1")
    chat.wait_for("> ")
    chat.type("Count to a million.\n")
    chat.wait_for("million", beyond=len(chat.seen) + 100)  # well into the answer
    chat.process.send_signal(signal.SIGINT)
    chat.wait_for("(stopped)")
    chat.type("\x04")  # Ctrl-D
    assert chat.close() == 0
    assert "Traceback" not in chat.seen


def test_reader_that_leaves_is_no_error(tiny: tuple[str, str]) -> None:
    process = subprocess.Popen(
        [*OUTRIDER, "generate", "Count to a million.", *tiny, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=240) != 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
