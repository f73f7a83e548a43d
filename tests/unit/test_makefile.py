"""The environment is made again whenever anything it was built from has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
BUILT_FROM = sorted({path for module in MODULES for path in [*module["sources"], *module["depends"]]})


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("changed", ["pyproject.toml", "setup.py", *BUILT_FROM])
def test_setup_follows_the_sources(tmp_path: Path, changed: str) -> None:
    for name in ["Makefile", "pyproject.toml", "setup.py", *BUILT_FROM]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    ready = tmp_path / ".venv" / ".ready"
    ready.parent.mkdir()
    ready.touch()

    def is_up_to_date() -> bool:
        asked = subprocess.run(["make", "-q", ".venv/.ready"], cwd=tmp_path, capture_output=True, check=False)
        assert asked.returncode in (0, 1), asked.stderr
        return asked.returncode == 0

    assert is_up_to_date()
    later = ready.stat().st_mtime + 10
    os.utime(tmp_path / changed, (later, later))
    assert not is_up_to_date()


def test_every_c_file_is_built() -> None:
    """What the package would ship and nobody compile, or compile without noticing that it changed."""
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "src").glob("outrider/*/native/*.[ch]")}
    assert there == set(BUILT_FROM)
