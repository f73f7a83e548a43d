"""An arm that is another program: its worker process, spoken to in JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from outrider.bench.environments import PROGRAMS, command, python_of
from outrider.bench.names import ArmName
from outrider.bench.timing import WARM_UP, ArmUnavailable, Sampling, Timing

_WORKER = Path(__file__).parent / "peers" / "worker.py"
_WARM_IDS = list(range(100, 132))
"""Any tokens do: the warm-up is for caches and compilers."""


class PeerArm:
    """`config` is what the peer's `load` is given: folder, gguf, dtype, device, threads, max_context."""

    def __init__(self, name: ArmName, config: dict[str, Any]) -> None:
        self.name = name.text
        self._program = name.program
        self._config = {**config, "method": name.method, "path": name.path}
        if name.dtype is not None:
            self._config["dtype"] = name.dtype
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._open = ExitStack()
        self._versions: dict[str, str] = {}

    def prepare(self) -> None:
        python = python_of(self._program)
        if python is None:
            raise ArmUnavailable(f"{self._program} is not installed; `{command(self._program)}` does it")
        needs = "gguf" if self._program in ("llama.cpp", "openvino") else "folder"
        if self._config[needs] is None:
            form = "a GGUF file" if needs == "gguf" else "a Hugging Face folder"
            raise ArmUnavailable(f"{self._program} reads {form}, and this model is not one")
        self._log = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        # A session of its own: Ctrl-C reaches us alone, and we end the workers. Their stdin ends with us.
        self._process = subprocess.Popen(
            [str(python), str(_WORKER), PROGRAMS[self._program].module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": str(self._config["threads"])},
            start_new_session=True,
        )
        self._versions = self._ask(self._config)["ready"]
        self.run(_WARM_IDS, WARM_UP)

    def run(self, prompt: Sequence[int], sampling: Sampling) -> Timing:
        answer = self._ask(
            {
                "ids": list(prompt),
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed,
            }
        )
        return Timing(
            tokens=answer["tokens"],
            token_ids=tuple(answer["token_ids"]),
            passes=tuple(answer["passes"]),
            prefill_seconds=answer["prefill_seconds"],
            decode_seconds=answer["decode_seconds"],
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._open.close()

    @property
    def pids(self) -> Sequence[int]:
        return () if self._process is None else (self._process.pid,)

    @property
    def versions(self) -> dict[str, str]:
        return self._versions

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None, "prepare comes first"
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ArmUnavailable(f"{self._program} died with exit code {process.wait()}{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ArmUnavailable(f"{self._program} failed: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""
