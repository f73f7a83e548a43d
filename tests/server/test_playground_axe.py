"""The playground can be used by everybody, as far as axe can tell: contrast, labels, roles, landmarks, headings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import browser as chromium
import playground_site
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing())),
    pytest.mark.skipif(chromium.axe() is None, reason="axe-core is not there; `make browser` gets it with npm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SCHEMA = '{"type": "object", "properties": {"colour": {"enum": ["vermilion", "turquoise"]}}, "required": ["colour"]}'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("fastapi", reason='the server is an extra: pip install "outrider[serve]"')
    with playground_site.live() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as browser:
        yield browser


def complaints(page: Page) -> list[str]:
    """What axe finds, all its rules applied."""
    page.evaluate(str(chromium.axe()))
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 20, "nothing was looked at, and nothing is shown"
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nobody_is_kept_out(browser: Browser, address: str, width: int, scheme: str) -> None:
    page = chromium.page(browser, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(address)
    page.locator("#model", has_text="smollm2-135m").wait_for()
    assert complaints(page) == [], "at first"

    for fold in ("#speculation", "#settings"):
        if page.locator(fold).get_attribute("open") is None:
            page.locator(f"{fold} summary").click()
    page.locator("[name=max_tokens]").fill("24")
    page.locator("[name=schema]").fill(SCHEMA)
    page.locator("#prompt").fill("Name a colour.")
    page.locator("#send").click()
    page.locator(".actions").wait_for()
    page.locator(".step:not([hidden])").first.focus()
    page.locator("#tip").wait_for()
    assert complaints(page) == [], "with an answer, and what a step held"

    page.locator("[name=schema]").fill("{")
    page.locator("#prompt").fill("Name a colour.")
    page.locator("#send").click()
    page.get_by_role("alert").wait_for()
    page.locator("[name=schema]").fill("")
    page.locator("#race").click()
    page.locator(".verdict b", has_text="identical").wait_for()
    page.locator("#costs-tab").click()
    playground_site.ask_until_costs_are_shown(page)
    page.locator("#costs .term").first.focus()
    assert complaints(page) == [], "with an error, a race, and the costs"
    page.context.close()


def test_axe_would_say(browser: Browser, address: str) -> None:
    page = chromium.page(browser)
    page.goto(address)
    page.locator("#model", has_text="smollm2-135m").wait_for()
    page.evaluate("document.querySelector('[for=prompt]').remove()")
    page.locator("#prompt").evaluate("(box) => box.removeAttribute('placeholder')")
    page.locator("#model").evaluate("(words) => words.style.color = '#ccc'")
    said = " ".join(complaints(page))
    assert "color-contrast" in said
    assert "label" in said
    page.context.close()
