"""Where a result comes from: machine, versions, commit. Kept beside every measurement, and in the cards of what is
trained."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from outrider.models.cpu import cpu_name
from outrider.version import __version__


def provenance() -> dict[str, Any]:
    """Taken before a run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        # A machine that was sent the files alone is told the commit they are of.
        "commit": os.environ.get("OUTRIDER_COMMIT") or _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "outrider": __version__}
    for name in ("torch", "transformers", "tokenizers", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    """Of the checkout this package is run from; None for an installed one."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
