"""The playground where the server itself decides what is drafted: it says what it goes by, and why nothing was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import browser as chromium
import playground_site
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing())),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
QUESTIONS = ("Why is the sky blue?", "Name the planets.", "Tell a story about a fox.")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    pytest.importorskip("fastapi", reason='the server is an extra: pip install "outrider[serve]"')
    with playground_site.live() as address, chromium.launched() as browser:
        page = chromium.page(browser)
        page.goto(address)
        page.locator("#model", has_text="smollm2-135m").wait_for()
        page.locator("[name=max_tokens]").fill("32")
        yield page


STEPS = """
  async (answer) => {
    const {stepOf} = await import("/playground/answer.js");
    return [...answer.querySelectorAll(".step")].map((span) => stepOf(span).step).filter(Boolean);
  }
"""
"""What the server has told the page of an answer."""


def ask(page: Page, question: str) -> Locator:
    before = page.locator(".actions").count()
    page.locator("#prompt").fill(question)
    page.locator("#send").click()
    page.locator(".actions").nth(before).wait_for()
    return page.locator(".assistant").last


def test_an_answer_that_was_mostly_plain_says_why(page: Page) -> None:
    """Whatever is decided on this machine, the page says what the trace does."""
    for question in QUESTIONS:
        answer = ask(page, question)
        taken: list[Any] = answer.evaluate(STEPS)
        plain = [step for step in taken if not step["drafted"]]
        assert taken, "no test"  # few steps may do where drafts are good
        reason = answer.locator(".why")
        if len(plain) >= 0.75 * len(taken):
            said = plain[-1]["why"].removeprefix("nothing drafted: ")
            assert said[1:] in reason.inner_text()
        else:
            assert reason.is_hidden()


def test_costs_and_acceptance_are_shown_live(page: Page) -> None:
    page.locator("#costs-tab").click()
    passes, drafters = page.locator("#costs table").nth(0), page.locator("#costs table").nth(1)
    playground_site.ask_until_costs_are_shown(page)
    rows = [row.split() for row in passes.locator("tbody tr").all_inner_texts()]
    assert rows[0] == ["1", "1.00"]
    costs = [float(cost) for _, cost in rows]
    assert costs == sorted(costs)
    assert len(costs) > 5
    assert drafters.locator("tbody tr").count() > 0
    assert "raft" in page.locator("#costs .verdict-now").inner_text()
