"""Where a result comes from: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outrider import __version__
from outrider.bench.measured_model import MeasuredModel
from outrider.models.cpu import cpu_name


def provenance(target: MeasuredModel, threads: int) -> dict[str, Any]:
    """Taken before the run; `arms` fills as they come up, with what each runs on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("OUTRIDER_COMMIT") or _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if target.device != "cpu" and torch.cuda.is_available() else None,
        "threads": threads,
        "dtype": target.dtype,
        "device": target.device,
        "load_average_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "model": target.model,
        "model_sha256": target.checksum,
        "versions": {
            "python": platform.python_version(),
            "outrider": __version__,
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "arms": {},
    }


def _git(*arguments: str) -> str | None:
    """Of the checkout this package is run from; None for an installed one."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
