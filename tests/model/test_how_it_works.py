"""The example in docs/how-it-works.md is what really happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_traced_example_is_real() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    block = re.search(r"```console\n\$ (.*?--max-tokens 12)\n(.*?)```", page, re.DOTALL)
    assert block is not None
    command, shown = block.groups()
    start = f"{sys.executable} -c 'from outrider.cli.main import main; main()'"
    run = f'outrider() {{ {start} "$@"; }}\n{command}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, env=environment, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert "\n".join(lines).strip() == shown.strip(), done.stdout
