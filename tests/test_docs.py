"""What the docs show is what really happens, and what they point to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_exactness_names_real_tests() -> None:
    page = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\w+\.py)`", page)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []
