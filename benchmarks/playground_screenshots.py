"""Takes the playground's screenshots in docs/ from a real run: `python benchmarks/playground_screenshots.py`.

It starts `outrider serve` with the default model and drives a browser (tests/support/browser.py); nothing is staged
but the questions and the seed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT / "tests" / "support"))

import browser as chromium  # noqa: E402
import playground_site  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT = 60_000
SKY, SHORT = "Why is the sky blue?", "What is a rainbow?"


def opened(browser: Browser, address: str, width: int, height: int, scheme: str) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.locator("#model", has_text="smollm2").wait_for()
    if width < 800:  # folded there
        page.locator("#settings summary").click()
    page.locator("[name=seed]").fill("7")
    if width < 800:
        page.locator("#settings summary").click()
    return page


def ask(page: Page, question: str) -> None:
    before = page.locator(".figures:not(:empty)").count()
    page.locator("#prompt").fill(question)
    page.locator("#send").click()
    page.locator(".figures:not(:empty)").nth(before).wait_for(timeout=WAIT)


def point_at_refusal(page: Page) -> None:
    """At a step in the middle that kept some of its draft and refused some."""
    steps, tip = page.locator(".step:not([hidden])"), page.locator("#tip")
    for index in range(steps.count() // 4, steps.count()):
        if not steps.nth(index).inner_text().strip():  # a line end cannot be pointed at
            continue
        steps.nth(index).hover()
        if tip.locator("s").count() and tip.locator(".tree .token").count():
            return


def main() -> None:
    if reason := chromium.missing():
        sys.exit(reason)
    docs = _ROOT / "docs"
    with playground_site.live() as address, chromium.launched() as browser:
        page = opened(browser, address, 1280, 800, "light")
        ask(page, SKY)
        point_at_refusal(page)
        page.screenshot(path=docs / "playground.png")

        page = opened(browser, address, 360, 740, "dark")
        ask(page, SHORT)
        page.screenshot(path=docs / "playground-phone.png")

        # Last: by now it is known what passes cost here.
        page = opened(browser, address, 1280, 800, "light")
        page.get_by_role("button", name="Rename a function").click()
        page.locator("#race").click()
        page.get_by_text("Replaying").wait_for(timeout=WAIT)
        page.locator(".verdict .times").wait_for(timeout=WAIT)
        page.locator(".race").evaluate("(card) => card.scrollIntoView({block: 'end'})")
        page.screenshot(path=docs / "playground-race.png")
        print(page.locator(".verdict").inner_text())


if __name__ == "__main__":
    main()
