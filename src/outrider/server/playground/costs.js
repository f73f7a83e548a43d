// The Costs tab: what passes cost here and how often drafts are right, as the server itself decides by, while one looks.
import { metrics } from "./api.js";
import { element } from "./dom.js";
import { samples } from "./prometheus.js";
import { term } from "./terms.js";

const EVERY = 2000; // ms

/** What /metrics says of one model's controller; `passes`, `levels` and `acceptance` in their order there. */
export function believed(text, model) {
  const mine = samples(text).filter((each) => each.labels.model_name === model);
  const all = (name) => mine.filter((each) => each.name === `outrider:controller_${name}`);
  const one = (name) => all(name)[0]?.value;
  return {
    decides: one("costs_known") !== undefined,
    known: one("costs_known") === 1,
    measured: one("costs_measured") === 1,
    row: one("row_cost"),
    token: one("token_cost"),
    passes: all("pass_cost").map(({ labels, value }) => [Number(labels.rows), value]),
    levels: new Map(all("level_cost").map(({ labels, value }) => [labels.drafter, value])),
    acceptance: all("acceptance").map(({ labels, value }) => [labels.drafter, value]),
  };
}

/** Whether drafting pays, in a sentence or two. */
export function verdict({ decides, known, measured, row, token, passes }) {
  if (!decides) return "This server drafts a fixed number of tokens a step (--draft-length), whether or not that pays.";
  if (!known) return "What passes cost on this machine is being measured while the first tokens are decoded.";
  if (!passes.length) return "Nothing is known yet: ask something. (On a GPU, steps are timed as a whole and not shown here.)";
  const price = `Checking one more token costs ${row.toFixed(2)} of a pass${measured ? "" : ", by a guess that is being corrected"}`;
  if (token < 0.98) return `Drafting pays at the moment: a token costs ${token.toFixed(2)} of what it costs plainly. ${price}.`;
  return `Drafting does not pay at the moment, so little or nothing is drafted. ${price}, and guesses are not right often enough for that.`;
}

export class Costs {
  #timer = 0;
  #looks = 0;

  /** `about()`: the model's name and the key. */
  constructor(panel, about) {
    this.about = about;
    this.said = element("p", { class: "verdict-now", role: "status" });
    this.passes = table("What a pass costs", ["Tokens checked", "Cost"], "passes");
    this.drafters = table("Who guesses how well", ["Drafter", "Right", "A level"], "acceptance");
    panel.replaceChildren(this.said, this.passes.element, this.drafters.element);
  }

  /** Look now and then, or no more. */
  watch(on) {
    clearTimeout(this.#timer);
    this.#looks += 1;
    if (on) this.#look(this.#looks);
  }

  async #look(turn) {
    const { model, key } = this.about();
    try {
      if (model) this.show(believed(await metrics(key), model));
    } catch (error) {
      this.say(error.message);
    }
    if (turn === this.#looks) this.#timer = setTimeout(() => this.#look(turn), EVERY);
  }

  show(belief) {
    this.say(verdict(belief));
    const most = Math.max(...belief.passes.map(([, cost]) => cost));
    this.passes.fill(belief.passes.map(([rows, cost]) => [String(rows), bar(cost.toFixed(2), cost / most)]));
    this.drafters.fill(
      belief.acceptance.map(([name, rate]) => {
        return [term(name, name), bar(`${Math.round(100 * rate)} %`, rate), level(belief.levels, name)];
      }),
    );
  }

  /** Said again only when it has changed, for those who hear it. */
  say(words) {
    if (this.said.textContent !== words) this.said.textContent = words;
  }
}

/** What one more guessed token costs of a drafter; looking up costs nothing, and agreeing is nobody's. */
function level(levels, name) {
  if (name.includes("&")) return "–";
  return levels.get(name)?.toFixed(2) ?? "free";
}

function table(title, columns, explanation) {
  const body = element("tbody");
  const [first, ...rest] = columns;
  const head = element("tr", {}, element("th", { scope: "col" }, first), ...rest.map((name) => element("th", { scope: "col" }, name)));
  const made = element("table", { hidden: true }, element("caption", {}, term(explanation, title)), element("thead", {}, head), body);
  return {
    element: made,
    /** New rows, unless they are the old ones: whoever points at a word keeps it. */
    fill(rows) {
      made.hidden = !rows.length;
      const lines = rows.map(([name, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))),
      );
      const same = lines.map((line) => line.textContent).join("\n") === [...body.children].map((line) => line.textContent).join("\n");
      if (!same) body.replaceChildren(...lines);
    },
  };
}

function bar(words, share) {
  const drawn = element("i", { "aria-hidden": "true" });
  drawn.style.width = `${Math.round(Math.max(0, Math.min(1, share)) * 100)}%`;
  return element("span", { class: "bar" }, drawn, element("span", {}, words));
}
