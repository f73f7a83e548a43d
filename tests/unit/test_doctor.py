"""`outrider doctor`, and what is kept on the disk."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.cli import doctor as doctor_module
from outrider.cli.app import app
from outrider.errors import ModelError
from outrider.models.checkpoints import disk
from outrider.models.checkpoints.catalog import DEFAULT_MODEL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of a person who has a little of everything."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, size in {
        f"own/models/{DEFAULT_MODEL}/v1/model.gguf": 3_000_000,
        f"own/models/{DEFAULT_MODEL}/v0/model.gguf": 2_000_000,
        "own/costs/table.json": 500,
        "hub/models--org--name/blobs/abc": 4_000_000,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\0" * size)
    (tmp_path / "hub/models--org--name/snapshots").mkdir()
    (tmp_path / "hub/models--org--name/snapshots/model").symlink_to("../blobs/abc")
    return tmp_path


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_kernels_that_this_cpu_has_not_are_a_finding_among_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", "sse9")
    done = ask("doctor")
    assert done.exit_code == 1
    assert "! kernels" in done.stdout
    assert "this CPU has no 'sse9'" in done.stdout
    assert "cache" in done.stdout


def test_doctor_tells_of_every_part(cache: Path) -> None:
    done = ask("doctor", "--json")
    found = {each["part"]: each for each in json.loads(done.stdout)["findings"]}
    compiled = {"kernels", "sampler", "lookup"}
    assert compiled | {"outrider", "CPU", "GPU", "serve", "grammar", "head", "network"} <= set(found)
    assert done.exit_code == (0 if all(each["good"] for each in found.values()) else 1)
    shown = ask("doctor").stdout
    assert "kernels" in shown
    assert f"model {DEFAULT_MODEL}: 5 MB" in shown


def test_what_is_missing_is_said_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = doctor_module._library("kernels", lambda: None, str, "PyTorch decodes")
    (finding,) = missing
    assert not finding.good
    assert "C compiler" in finding.advice

    def stale() -> object:
        raise ModelError("it does not fit")

    (finding,) = doctor_module._library("kernels", stale, str, "PyTorch decodes")
    assert (finding.good, finding.told) == (False, "it does not fit")


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, packages in doctor_module._EXTRAS.items():
        declared = {entry.split(">")[0] for entry in extras[name]}
        assert set(packages) <= declared


def test_disk_use_counts_what_is_linked_once(cache: Path) -> None:
    sizes = {place.what.split(" (")[0]: place.bytes for place in disk.places()}
    assert sizes[f"model {DEFAULT_MODEL}"] == 5_000_000
    assert sizes["measured costs"] == 500
    assert 4_000_000 <= sizes["models from the hub"] < 4_000_100


def test_models_are_removed_by_name_and_by_hub_id(cache: Path) -> None:
    told = ask("models", "rm", DEFAULT_MODEL, "org/name", "--dry-run")
    assert told.exit_code == 0, told.output
    assert (cache / "own/models" / DEFAULT_MODEL).exists()
    assert ask("models", "rm", DEFAULT_MODEL, "org/name", "costs").exit_code == 0
    assert not (cache / "own/models" / DEFAULT_MODEL).exists()
    assert not (cache / "hub/models--org--name").exists()
    assert not (cache / "own/costs").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [("nobody/here", "is not here"), ("..", "no model '..'"), ("/etc", "no model '/etc'"), ("a/../../b", "no model")],
)
def test_nothing_else_is_removed(cache: Path, name: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        disk.remove(name)
