"""The parts of the playground that need no model, run by a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import browser as chromium
import playground_site
import pytest

from outrider.control.belief import Belief
from outrider.engine.request_state import Load
from outrider.server.metrics import Metrics

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with playground_site.files() as address, chromium.launched() as browser:
        page = chromium.page(browser)
        page.goto(address)
        yield page


def call(page: Page, module: str, body: str, given: Any = None) -> Any:
    """The result of `body`, a JavaScript function's, with the module as `m` and `given`."""
    return page.evaluate(f"async (given) => {{ const m = await import('/playground/{module}.js'); {body} }}", given)


EVENTS = (
    ': hello\r\ndata: {"a": "žluťoučký 🙂"}\r\n\r\nevent: x\ndata: two\ndata:lines\n\n'
    "id: 1\n\rdata: [DONE]\r\rdata: lost"
)
"""Every line end, comments, other fields, an empty event, two lines of data, and an event that is cut off."""


def test_events_are_the_same_however_the_bytes_are_cut(page: Page) -> None:
    body = """
      const bytes = new TextEncoder().encode(given);
      const read = (size) => {
        const parser = new m.EventParser(), found = [];
        for (let i = 0; i < bytes.length; i += size) found.push(...parser.push(bytes.slice(i, i + size)));
        return [...found, ...parser.end()];
      };
      return [read(bytes.length), ...Array.from({length: 40}, (_, i) => read(i + 1))];
    """
    whole, *cut = call(page, "sse", body, EVENTS)
    assert whole == ['{"a": "žluťoučký 🙂"}', "two\nlines", "[DONE]"]
    assert all(events == whole for events in cut)


ATTRIBUTE = """
  const a = new m.Attribution();
  return given.map(([tokens, content]) =>
    a.take(tokens.map((text, i) => ({text, name: text})), content).map((p) => [p.token?.name ?? null, p.text]));
"""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([[["Hi", " there"], "Hi there"]], [[["Hi", "Hi"], [" there", " there"]]], id="plain"),
        pytest.param([[["Hi", " the"], "Hi"], [["re"], " there"]],
                     [[["Hi", "Hi"]], [[" the", " the"], ["re", "re"]]], id="held back"),
        pytest.param([[["Hello"], "He"], [["!"], "llo!"]], [[["Hello", "He"]], [["Hello", "llo"], ["!", "!"]]],
                     id="held back inside a token"),
        pytest.param([[["a", "\ufffd"], "a"], [["\ufffd", " b"], "🙂 b"]],
                     [[["a", "a"]], [["\ufffd", "🙂"], [" b", " b"]]], id="a character of two tokens"),
        pytest.param([[[" Hi"], "Hi"]], [[[" Hi", "Hi"]]], id="first space stripped"),
        pytest.param([[["<end>"], ""], [["x"], "x"]], [[], [["<end>", "x"]]], id="nothing is lost"),
        pytest.param([[[], "no trace"]], [[[None, "no trace"]]], id="no tokens"),
    ],
)  # fmt: skip
def test_text_is_given_to_its_tokens(page: Page, steps: list[Any], expected: list[Any]) -> None:
    assert call(page, "attribution", ATTRIBUTE, steps) == expected


def test_a_draft_is_drawn_like_the_terminal_does(page: Page) -> None:
    nodes = [{"text": t, "parent": p} for t, p in [("a", -1), ("b", 0), ("c", 0), ("d", 2), ("e", 3), ("f", 3)]]
    drawn = call(page, "tree", "return m.lines(given)", nodes)
    assert drawn == [
        {"indent": "", "nodes": [0]},
        {"indent": "├ ", "nodes": [1]},
        {"indent": "└ ", "nodes": [2, 3]},
        {"indent": "  ├ ", "nodes": [4]},
        {"indent": "  └ ", "nodes": [5]},
    ]
    assert call(page, "tree", "return m.lines([])") == []
    assert call(page, "tree", "return m.face(given)", "     x\n y") == "␣×5x↵␣y"


def test_scales(page: Page) -> None:
    ceilings = call(page, "scale", "return given.map(m.niceCeiling)", [0, 0.07, 1, 2.2, 7.9, 10, 101, 230])
    assert ceilings == pytest.approx([1, 0.08, 1, 3, 8, 10, 200, 300])
    # 10 tokens in 1 s, then 10 in 4 s: 4 tokens/s on average, not 6.25.
    assert call(page, "scale", "return m.movingRatio([10, 10, 6], [1, 4, 2], 2)") == [10, 4, pytest.approx(16 / 6)]
    assert call(page, "scale", "return m.movingRatio([1], [0], 4)") == [None]
    box = {"step": 10, "height": 100, "most": 4}
    assert call(page, "scale", "return m.linePath([1, null, 4, 8], given)", box) == "M5 75M25 0L35 0"
    assert call(page, "scale", "return m.barPath([2, 0], given)", box) == "M1.5 100v-50h7v50z"


ARRIVALS: list[dict[str, Any]] = [
    {"at": at, "tokens": [{"id": i} for i in ids]} for at, ids in [(0.5, [1]), (1.0, [2, 3]), (2.0, [4])]
]


def test_a_race_is_timed_by_what_arrived_when(page: Page) -> None:
    assert call(page, "timing", "return [0, .5, .99, 1, 9].map((t) => m.arrivedBy(given, t))", ARRIVALS) == [
        0,
        1,
        1,
        2,
        3,
    ]
    rates = call(page, "timing", "return [0, .5, 1, 1.5, 2, Infinity].map((t) => m.rateAt(given, t))", ARRIVALS)
    assert rates == [0, 2, 3, 2, 2, 2]
    slower = [{**a, "at": a["at"] * 3} for a in ARRIVALS]
    assert call(page, "timing", "return m.ratio(...given)", [slower, ARRIVALS]) == pytest.approx(3)
    assert call(page, "timing", "return [m.rateAt([], 1), m.ratio([], [])]") == [0, 0]


def test_the_first_difference(page: Page) -> None:
    body = "return m.firstDifference(...given)?.index ?? null"
    regrouped = [{"at": 1, "tokens": [{"id": i} for i in (1, 2, 3, 4)]}]
    assert call(page, "timing", body, [ARRIVALS, regrouped]) is None
    assert call(page, "timing", body, [ARRIVALS, ARRIVALS[:2]]) == 3
    assert call(page, "timing", body, [ARRIVALS, [{"at": 1, "tokens": [{"id": 1}, {"id": 9}]}]]) == 1


def test_a_race_says_where_the_texts_part(page: Page) -> None:
    body = """
      const race = new m.Race(() => {});
      const token = (text) => ({id: text.length, text, origin: "target", kind: "target"});
      const side = (words) => words.map((text, i) => ({at: .02 * i, content: text, tokens: [token(text)], step: null}));
      race.plain.arrivals = side(["One", " fish", " swims"]);
      race.speculative.arrivals = side(["One", " dog", " swims"]);
      document.body.append(race.element);
      await race.replay();
      return [race.note.textContent, [...race.element.querySelectorAll(".differs")].map((t) => t.textContent)];
    """
    verdict, marked = call(page, "race", body)
    assert "identical" not in verdict
    assert "differ from token 2 on: “␣fish” plainly, “␣dog” speculatively" in verdict
    assert marked == [" fish", " dog"]


@pytest.mark.parametrize(("drafts", "nothing"), [([0, 0, 0], True), ([0, 4, 0], False), ([None, None, None], False)])
def test_a_race_says_when_nothing_was_drafted(page: Page, drafts: list[int | None], nothing: bool) -> None:
    body = """
      const race = new m.Race(() => {});
      const token = (id) => ({id, text: "x", origin: "target", kind: "target"});
      const step = (count) => count === null ? null : {drafted: Array(count).fill({text: "y", parent: -1})};
      const side = (of) => of.map((count, id) => ({at: .01 * id, content: "x", tokens: [token(id)],
        step: step(count)}));
      race.plain.arrivals = side([0, 0, 0]);
      race.speculative.arrivals = side(given);
      document.body.append(race.element);
      await race.replay();
      return race.note.textContent;
    """
    verdict = call(page, "race", body, drafts)
    assert "the text is identical: 3 of 3 tokens." in verdict
    assert ("Nothing was drafted" in verdict) == nothing


def test_a_race_is_replayed_at_its_true_speed(page: Page) -> None:
    """By the times that frames are painted at, which are the test's to say."""
    body = """
      const race = new m.Race(() => {});
      const token = (id) => ({id, text: "x", origin: "target", kind: "target"});
      const side = (times) => times.map((at, id) => ({at, content: "x", tokens: [token(id)], step: null}));
      race.plain.arrivals = side([.2, .4, .6]);
      race.speculative.arrivals = side([.1, .2, .3]);
      document.body.append(race.element);
      const real = window.requestAnimationFrame, shown = [];
      try {
        let paint;
        window.requestAnimationFrame = (then) => { paint = then; };
        const done = race.replay();
        for (const ms of [0, ...given]) {
          paint(5000 + ms);
          await new Promise((resolve) => setTimeout(resolve));
          shown.push([race.plain.answer.text, race.speculative.answer.text, race.running]);
        }
        await done;
      } finally {
        window.requestAnimationFrame = real;
      }
      return [shown, race.note.textContent];
    """
    shown, verdict = call(page, "race", body, [99, 101, 350, 599, 601])
    assert shown == [
        ["", "", True],
        ["", "", True],
        ["", "x", True],
        ["x", "xxx", True],
        ["xx", "xxx", True],
        ["xxx", "xxx", False],
    ]
    assert verdict == "2.00× as fast, and the text is identical: 3 of 3 tokens."


def test_model_output_is_text_never_markup(page: Page) -> None:
    nasty = "<img src=x onerror=alert(1)>\n  <script>alert(2)</script>"
    body = """
      const answer = new m.Answer();
      answer.add({content: given, step: null, tokens: [{id: 1, text: given, origin: "head", kind: "drafted"}]});
      return [answer.element.textContent, answer.element.querySelectorAll(":not(.step, .token)").length];
    """
    assert call(page, "answer", body, nasty) == [nasty, 0]


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (400, '{"error": {"message": "must be at least 1", "param": "max_tokens"}}', "max_tokens: must be at least 1"),
        (401, '{"error": {"message": "no"}}', "This server asks for an API key. Enter it under Settings."),
        (429, '{"error": {"message": "Too busy."}}', "Too busy. Try again in 3 s."),
        (502, "<html>Bad gateway</html>", "The server answered with status 502."),
        (500, "null", "The server answered with status 500."),
    ],
)
def test_errors_become_words(page: Page, status: int, text: str, expected: str) -> None:
    assert call(page, "api", "return m.explain(...given, '3')", [status, text]) == expected


COSTS = "row costs 0.31 of a pass here and a token is worth 1.00; the likeliest draft is right with 0.25"
DEAR = f"nothing drafted: a {COSTS}"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        pytest.param(
            [[0, DEAR]] * 4,
            f"Nothing was drafted: it does not pay here at the moment, so the model wrote one token a pass. A {COSTS}.",
            id="dear",
        ),
        pytest.param(
            [[0, DEAR]] * 3 + [[2, "2 drafted"]], "In 3 of 4 steps nothing was drafted: it does not pay", id="mostly"
        ),
        pytest.param([[0, DEAR], [2, "2 drafted"]], "", id="half"),
        pytest.param(
            [[0, "what passes cost on this machine is still being measured"]],
            "Nothing was drafted: what passes cost on this machine is still being measured.",
            id="measuring",
        ),
        pytest.param([[0, ""]] * 3, "", id="nobody decides"),
        pytest.param([], "", id="no trace"),
    ],
)
def test_why_nothing_was_drafted(page: Page, steps: list[Any], said: str) -> None:
    body = "return m.whyPlain(given.map(([count, why]) => ({drafted: Array(count).fill({}), why})));"
    told = call(page, "why", body, steps)
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_samples_of_prometheus(page: Page) -> None:
    text = '# HELP a b\n# TYPE a gauge\na 1.5\nx:b_total{m="q\\"u,o}te",r="2"} 3e-05\nx:c{m="z"} +Inf\n\nnonsense'
    read = "return m.samples(given).map((s) => [s.name, s.labels, String(s.value)]);"
    assert call(page, "prometheus", read, text) == [
        ["a", {}, "1.5"],
        ["x:b_total", {"m": 'q"u,o}te', "r": "2"}, "0.00003"],
        ["x:c", {"m": "z"}, "Infinity"],
    ]


def test_the_costs_tab_says_whether_drafting_pays(page: Page) -> None:
    """Of the page that the server's own code makes of a belief."""

    def told(belief: Belief | None) -> Any:
        text = Metrics(lambda: {"m": Load(belief=belief), "other": Load(belief=Belief(row=9.0))}).page(admin=False)
        body = """
          const holder = document.createElement("div");
          const costs = new m.Costs(holder, () => ({}));
          costs.show(m.believed(given, "m"));
          const tables = [...holder.querySelectorAll("table:not([hidden])")];
          const cells = (row) => [...row.children].map((cell) => cell.textContent);
          return [costs.said.textContent, tables.map((t) => [...t.tBodies[0].rows].map(cells))];
        """
        return call(page, "costs", body, text.decode())

    assert told(None) == [
        "This server drafts a fixed number of tokens a step (--draft-length), whether or not that pays.",
        [],
    ]
    assert told(Belief(known=False))[0].startswith("What passes cost on this machine is being measured")
    rates = {"head": 0.5, "suffix": 0.125, "suffix&head": 0.75}
    pays = Belief(True, True, 0.25, 0.5, {"head": 0.125}, rates, passes={1: 1.0, 16: 3.5})
    said, (passes, drafters) = told(pays)
    assert said == (
        "Drafting pays at the moment: a token costs 0.50 of what it costs plainly. "
        "Checking one more token costs 0.25 of a pass."
    )
    assert passes == [["1", "1.00"], ["16", "3.50"]]
    assert drafters == [["head", "50 %", "0.13"], ["suffix", "13 %", "free"], ["suffix&head", "75 %", "–"]]
    assert told(pays._replace(token=1.0))[0].startswith("Drafting does not pay at the moment")
    assert "by a guess that is being corrected" in told(pays._replace(measured=False))[0]
