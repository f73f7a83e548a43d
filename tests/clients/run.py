"""Clients that people have, each as it comes, against a live server: `make test-clients`.

They are installed into environments of their own (`.venv-clients`, or the folder given, and one in it), where nothing
of ours is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "support"))

import playground_site  # noqa: E402

from outrider.models.checkpoints.checkpoint import open_checkpoint  # noqa: E402
from outrider.models.checkpoints.progress import SilentProgress  # noqa: E402

MODEL = "smollm2-135m"


def environment(folder: Path, requirements: Path) -> Path:
    """Its interpreter, once it has what the requirements name."""
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    python, mark = folder / "bin" / "python", folder / ".requirements"
    if not mark.exists() or mark.read_text() != wanted:
        print(f"==> Installing clients into {folder.name}", flush=True)
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(requirements)], check=True)
        mark.write_text(wanted)
    return python


def main() -> int:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv-clients"
    python = environment(place, HERE / "requirements.txt")
    agents = environment(place / "agents", HERE / "agents.txt")
    folder = open_checkpoint(MODEL, SilentProgress()).path
    # No configuration of ours: only the server's address, and where a tokenizer lies.
    command = [str(python), "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-c", os.devnull]
    with playground_site.live("--max-batch", "4", "--max-context", "4096") as address:
        told = {
            "OUTRIDER_URL": address,
            "OUTRIDER_TOKENIZER": str(folder),
            "OUTRIDER_AGENTS": str(agents.parent),
            "HF_HUB_OFFLINE": "1",
        }
        scope = ["--rootdir", str(HERE), "--confcutdir", str(HERE), str(HERE), *sys.argv[2:]]
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([*command, *scope], env={**ours, **told}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
