"""A real browser for the tests: where it is, and `python tests/support/browser.py` (`make browser`) to get one.
Also gets axe, which looks for what keeps people out of a page.

Debian's chromium is taken if it is there, or any Chrome on the path, or the one playwright downloads for itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT = 300_000
"""Milliseconds, for a machine that is busy with something else: waiting for what does come takes no longer."""
AXE = Path(sys.prefix) / "share" / "axe-core"
"""It lies in the environment and never with the project: it is nobody's to ship."""
_AXE_VERSION = "4.14.0"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    """The browser's program, or None."""
    on_path = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return on_path or _downloaded()


def missing() -> str | None:
    """Why no browser can be driven, as a reason to skip; None where one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed; `make browser` gets it"
    if found() is None:
        return "there is no chromium; `make browser` gets one"
    return None


def axe() -> str | None:
    """Its program, to be run in a page; None where it is not there."""
    file = AXE / "package" / "axe.min.js"
    return file.read_text() if file.exists() else None


@contextmanager
def launched() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox; the only pages opened are our own.
        browser = playwright.chromium.launch(executable_path=found(), args=["--no-sandbox"], timeout=WAIT)
        try:
            yield browser
        finally:
            browser.close()


def page(browser: Browser, **options: Any) -> Page:
    """A page of its own, and patient. Closing its context closes it."""
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT)
    return context.new_page()


def _downloaded() -> str | None:
    if find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _get() -> None:
    """Try what this machine allows, in turn; say what is left to do where nothing worked."""
    if find_spec("playwright") is None:
        _tried(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "playwright")
    if found() is None and shutil.which("apt-get"):
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        _tried(*root, "apt-get", "install", "--yes", "--quiet", "chromium") or (
            _tried(*root, "apt-get", "update") and _tried(*root, "apt-get", "install", "--yes", "--quiet", "chromium")
        )
    if find_spec("playwright") is not None and found() is None:
        _tried(sys.executable, "-m", "playwright", "install", "chromium")
    if axe() is None and shutil.which("npm"):
        AXE.mkdir(parents=True, exist_ok=True)
        package = f"axe-core-{_AXE_VERSION}.tgz"
        at = str(AXE)
        _tried("npm", "pack", "--silent", "--pack-destination", at, f"axe-core@{_AXE_VERSION}") and _tried(
            "tar", "-xzf", str(AXE / package), "-C", at
        )
    print(f"The browser tests will be skipped: {reason}" if (reason := missing()) else f"Browser: {found()}")


def _tried(*command: str) -> bool:
    print("==>", *command, flush=True)
    try:
        return subprocess.run(command, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    _get()
