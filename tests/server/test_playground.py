"""The playground in a real browser, against a live server with the default model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import browser as chromium
import playground_site
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = [
    pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing())),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
QUESTION = "Why is the sky blue?"
OTHERS = ("Tell a story about a fox.", "Name the planets.", "How is bread made?")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("fastapi", reason='the server is an extra: pip install "outrider[serve]"')
    # A fixed length: whether drafting pays on this machine is not what these tests are about.
    with playground_site.live("--api-key", playground_site.KEY, "--draft-length", "4") as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page with its key entered. Ends with a look at the console: nothing may have been complained about."""
    width = getattr(request, "param", 1280)
    page = chromium.page(browser, viewport={"width": width, "height": 800}, has_touch=width < 800)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(address)
    # Without the key the page says what to do; the browser notes the 401s by itself.
    page.get_by_text("asks for an API key").wait_for()
    complaints = [said for said in complaints if "401" not in said]
    options(page, key=playground_site.KEY, temperature="0", max_tokens="32")
    page.locator("#model", has_text="smollm2-135m").wait_for()
    yield page
    page.context.close()
    assert [said for said in complaints if "400" not in said and "401" not in said] == []


def options(page: Page, **values: str) -> None:
    settings = page.locator("#settings")
    if settings.get_attribute("open") is None:
        settings.locator("summary").click()
    for name, value in values.items():
        page.locator(f"#controls [name={name}]").fill(value)
        page.locator(f"#controls [name={name}]").dispatch_event("change")


def ask(page: Page, question: str = QUESTION) -> Locator:
    """The answer, once it is complete."""
    before = page.locator(".assistant").count()
    page.locator("#prompt").fill(question)
    page.locator("#send").click()
    answer = page.locator(".assistant").nth(before)
    answer.locator(".figures:not(:empty)").wait_for()
    return answer


def fits(page: Page) -> bool:
    """Whether nothing sticks out to the right, so that there is no horizontal scrolling."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_a_chat_shows_tokens_by_origin(page: Page) -> None:
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    answer = ask(page)
    drafted = answer.locator(".token:is(.by-head, .by-suffix)")
    assert drafted.count() > 0
    assert answer.locator(".token.by-target").count() > 0
    plain, coloured = (
        token.evaluate("(token) => getComputedStyle(token).backgroundColor")
        for token in (answer.locator(".by-target").first, drafted.first)
    )
    assert plain != coloured
    counts = [int(re.match(r"\d+", text)[0]) for text in page.locator("#legend .count").all_inner_texts()]  # type: ignore[index]
    written = int(re.match(r"\d+", answer.locator(".figures").inner_text())[0])  # type: ignore[index]
    assert sum(counts) == written > 20
    assert float(page.locator("#length-chart output").inner_text()) > 1
    assert float(page.locator("#rate-chart output").inner_text()) > 1
    assert page.locator("#length-chart .average").get_attribute("d")

    # The next question carries the conversation, the answer as it was shown included.
    options(page, system="Be brief.")
    ask(page, "Thank you.")
    assert [message["role"] for message in sent[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert sent[-1]["messages"][2]["content"] == answer.locator(".answer").evaluate("(text) => text.textContent")


def test_refused_drafts_are_seen_with_pointer_and_keyboard(page: Page) -> None:
    tip = page.locator("#tip")

    def refusal() -> tuple[Locator, int]:
        for question in OTHERS:
            steps = ask(page, question).locator(".step:not([hidden])")
            for index in range(steps.count()):
                if not steps.nth(index).inner_text().strip():  # a line end cannot be pointed at
                    continue
                steps.nth(index).hover()
                tip.wait_for()
                if tip.locator("s").count():
                    return steps, index
        raise AssertionError("no step with a refused draft")

    steps, refused = refusal()
    words = tip.inner_text()
    assert re.search(r"Step \d+ · \d+ drafted, \d+ kept · \d+ ms", words)
    assert re.search(r"The target (wrote instead|added):|ended inside the draft", words)
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")

    steps.first.focus()
    for _ in range(refused):
        page.keyboard.press("ArrowRight")
    assert tip.inner_text() == words
    assert steps.nth(refused).get_attribute("aria-describedby") == "tip"
    assert page.locator(".assistant").last.locator("[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_the_race_ends_identical(page: Page) -> None:
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    options(page, temperature="0.8")
    page.locator("#prompt").fill(QUESTION)
    page.locator("#race").click()
    page.locator(".verdict b", has_text="identical").wait_for()
    # Read the prompt, then one side after the other, with one seed; the plain one last, so that nothing is copied.
    assert [each["outrider"]["speculate"] for each in sent] == [False, True, False]
    assert len({each["seed"] for each in sent}) == 1
    verdict = page.locator(".verdict").inner_text()
    assert re.fullmatch(r"\d+\.\d\d× as fast, and the text is identical: (\d+) of \1 tokens\.", verdict)
    plain, speculative = page.locator(".lane .answer").all()
    assert plain.inner_text() == speculative.inner_text() != ""
    assert plain.locator(".token:not(.by-target)").count() == 0
    assert speculative.locator(".token:not(.by-target)").count() > 0
    assert [float(rate) > 1 for rate in page.locator(".lane .rate").all_inner_texts()] == [True, True]
    # The same again, and skipped before any of it is shown: for this page no time passes.
    page.evaluate("() => { window.requestAnimationFrame = (then) => setTimeout(() => then(0)); }")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Skip").click()
    page.locator(".verdict b", has_text="identical").wait_for()
    assert page.locator(".verdict").inner_text() == verdict


def test_nothing_is_claimed_that_the_trace_does_not_show(page: Page) -> None:
    """The answer was given before, but no drafter knew it; then nothing is drafted at all, and that is said."""
    options(page, max_tokens="24")
    ask(page)
    page.locator("#race").click()
    verdict = page.locator(".verdict", has=page.locator("b", has_text="identical"))
    verdict.wait_for()
    assert re.fullmatch(r"\d+\.\d\d× as fast, and the text is identical: \d+ of \d+ tokens\.", verdict.inner_text())
    options(page, max_nodes="0")
    assert "nothing was drafted" in ask(page, "Say hello.").locator(".figures").inner_text()
    page.locator("#race").click()
    verdict.nth(1).wait_for()
    assert "Nothing was drafted: both sides wrote one token a pass." in verdict.nth(1).inner_text()
    assert "before" not in page.locator("#log").inner_text()


def test_with_the_keyboard_alone(page: Page) -> None:
    def tab_to(selector: str, key: str = "Tab") -> None:
        for _ in range(40):
            if page.locator(f"{selector}:focus").count():
                # What has the focus must be seen to have it.
                ring = "(e) => getComputedStyle(e).outlineStyle + getComputedStyle(e.closest('form') ?? e).borderColor"
                assert page.locator(selector).first.evaluate(ring)
                return
            page.keyboard.press(key)
        raise AssertionError(f"{selector} cannot be reached with {key}")

    tab_to("#prompt")
    page.keyboard.type("Say hello.")
    page.keyboard.press("Enter")
    page.locator(".figures:not(:empty)").wait_for()
    tab_to(".step", "Shift+Tab")
    page.locator("#tip").wait_for()
    tab_to("#race")
    page.keyboard.press("Enter")  # with an empty box: the last question again
    page.locator(".verdict b", has_text="identical").wait_for()
    tab_to("#clear")
    page.keyboard.press("Space")
    assert page.locator("#welcome").is_visible()


def test_errors_are_words_and_leave_the_page_usable(page: Page) -> None:
    options(page, max_tokens="0")
    page.locator("#prompt").fill("Hello")
    page.locator("#send").click()
    assert "max_tokens" in page.get_by_role("alert").inner_text()
    assert page.locator("#prompt").input_value() == "Hello"
    options(page, max_tokens="8")
    assert ask(page, "Hello").locator(".token").count() > 0


def test_stop_keeps_what_was_written(page: Page) -> None:
    def longer(route: Route) -> None:
        asked: Any = route.request.post_data_json
        route.continue_(post_data={**asked, "ignore_eos": True})

    page.route("**/v1/chat/completions", longer)  # or it may have ended by the time it is stopped
    options(page, max_tokens="4000")
    page.locator("#prompt").fill("Write a very long story, with many chapters.")
    page.locator("#send").click()
    page.locator(".step:not([hidden])").nth(8).wait_for()
    page.locator("#stop").click()
    page.locator("#send").wait_for()
    text = page.locator(".answer").inner_text()
    page.wait_for_timeout(300)
    assert page.locator(".answer").inner_text() == text != ""
    assert page.get_by_role("alert").count() == 0


def test_an_answer_is_copied_and_asked_for_again(page: Page) -> None:
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page)
    options(page, temperature="1")
    answer = ask(page, "Tell me more.")
    copy = answer.get_by_role("button", name="Copy")
    copy.evaluate("""(button) => {
      const heard = () => (document.body.dataset.said += button.textContent);  // it says so for a moment only
      new MutationObserver(heard).observe(button, {childList: true});
    }""")
    copy.click()
    page.locator("body[data-said*=Copied]").wait_for()
    first = answer.locator(".answer").evaluate("(text) => text.textContent")
    assert page.evaluate("navigator.clipboard.readText()") == first
    assert page.get_by_role("button", name="Regenerate").count() == 1, "of the last answer alone"
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".actions").nth(1).wait_for()
    assert page.locator(".assistant").count() == page.locator(".user").count() == 2
    assert sent[-1]["messages"] == sent[-2]["messages"], "the question, and not the answer that was there"
    assert page.locator(".assistant .answer").last.evaluate("(text) => text.textContent") != first
    ask(page, "Thank you.")
    assert len(sent[-1]["messages"]) == 5, "what came last is what was said"


def test_a_schema_and_a_prediction(page: Page) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["vermilion", "turquoise"]}}, "required": ["colour"]}
    options(page, schema=json.dumps(schema))
    answer = ask(page, "Name a colour.")
    assert json.loads(answer.locator(".answer").inner_text())["colour"] in ("vermilion", "turquoise")
    assert answer.locator(".by-grammar").count() > 0, "what the schema leaves no choice about"
    options(page, schema="{")
    page.locator("#prompt").fill("Name a colour.")
    page.locator("#send").click()
    assert "JSON schema under Settings is not JSON" in page.get_by_role("alert").inner_text()
    assert page.locator("[name=schema]").get_attribute("aria-invalid") == "true"
    options(page, schema="")
    page.locator("#clear").click()
    text = ask(page).locator(".answer").inner_text()
    page.locator("#clear").click()
    options(page, prediction=text)
    again = ask(page)
    assert again.locator(".answer").inner_text() == text
    assert again.locator(".by-prediction").count() > 0
    page.locator("#legend").get_by_text("prediction").wait_for()


def test_words_explain_themselves(page: Page) -> None:
    tip = page.locator("#tip")
    for name, said in (("head", "small network"), ("suffix", "stood in this conversation"), ("target", "model itself")):
        page.locator(f"#legend [data-term={name}]").hover()
        tip.get_by_text(said).wait_for()
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")
    page.get_by_role("button", name="What are nodes?").focus()
    tip.get_by_text("tokens guessed for one step").wait_for()
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")
    # Whoever points at a word keeps it while its count grows.
    entry = page.locator("#legend [data-term=target]").element_handle()
    ask(page)
    assert entry.evaluate("(entry) => entry.isConnected")
    assert page.locator("#legend li", has_text="target").locator(".count").inner_text() != "–"


def test_tabs(page: Page) -> None:
    page.locator("#answer-tab").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#costs-tab").get_attribute("aria-selected") == "true"
    assert page.locator("#costs-tab:focus").count() == 1
    page.locator("#costs").wait_for()  # which is empty until the costs have come
    assert page.locator("#this-answer").is_hidden()
    page.get_by_text("drafts a fixed number of tokens").wait_for()
    page.keyboard.press("ArrowRight")
    assert page.locator("#this-answer").is_visible()


@pytest.mark.parametrize("page", [360], indirect=True)
def test_on_a_phone(page: Page) -> None:
    assert fits(page)
    page.reload()  # with nothing opened
    tops = [page.locator(name).bounding_box() for name in ("#welcome", "#composer", "#speculation", "#settings")]
    heights = [box["y"] for box in tops if box is not None]
    assert heights == sorted(heights)
    assert len(heights) == 4
    assert not any(each.is_visible() for each in page.locator("#length-chart, #controls").all()), "folded"
    options(page, key=playground_site.KEY, temperature="0", max_tokens="32")
    page.locator("#settings summary").click()
    answer = ask(page, "w" * 90 + " " + QUESTION)
    answer.locator(".step:not([hidden])", has_text=re.compile(r"\S")).first.tap()
    page.locator("#tip").wait_for()
    tip = page.locator("#tip").bounding_box()
    assert tip is not None
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= 360
    page.locator("#race").click()
    page.locator(".verdict b", has_text="identical").wait_for()
    assert fits(page)
