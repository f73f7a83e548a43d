// An answer on the page: one span per step, one per token inside it, coloured by origin.
import { Attribution } from "./attribution.js";
import { element } from "./dom.js";
import { originClass, TARGET } from "./origins.js";

const details = new WeakMap();

/** What happened in the step a span stands for: `{number, tokens, step}`. */
export function stepOf(span) {
  return details.get(span);
}

/**
 * The text grows by `add`. One of its steps is a tab stop, arrow keys move to the others; showing what a step holds is
 * up to whoever listens for focus and pointers (tip.js).
 */
export class Answer {
  constructor() {
    this.element = element("div", { class: "answer", onkeydown: (event) => this.#move(event) });
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.text = "";
    this.steps = 0;
    this.counts = new Map();
    this.#attribution = new Attribution();
    this.#spans = new Map();
    this.#loose = null;
    this.#current = "";
    this.#atStart = true;
  }

  #attribution;
  #spans;
  #loose; // the span of text without a trace
  #current; // the class of the token written last
  #atStart; // whether the line holds nothing but blanks so far

  add({ content, tokens, step }) {
    if (tokens.length) this.#open(tokens, step);
    for (const { token, text } of this.#attribution.take(tokens, content)) {
      this.#write(token ? this.#spans.get(token) : this.#untraced(), text);
    }
    this.text += content;
  }

  /** Mark token `index`, to show where two answers part. */
  mark(index) {
    [...this.#spans.values()][index]?.classList.add("differs");
  }

  /** Blanks are coloured only inside a run of one origin on one line, so that colour begins with a word. */
  #write(span, text) {
    const blank = /^\s*/.exec(text)[0];
    const apart = this.#atStart || blank.includes("\n") || this.#current !== span.className;
    if (span.hasChildNodes() || !apart) {
      span.append(text);
    } else {
      span.before(blank);
      if (blank.length < text.length) span.append(text.slice(blank.length));
    }
    span.parentElement.hidden = false;
    this.#current = span.className;
    this.#atStart = /\n\s*$/.test(text) || (this.#atStart && blank === text);
  }

  #open(tokens, step) {
    this.steps += 1;
    const first = !this.element.querySelector("[tabindex='0']");
    const span = element("span", { class: "step", tabindex: first ? 0 : -1, hidden: true });
    details.set(span, { number: this.steps, tokens, step });
    for (const token of tokens) {
      const made = element("span", { class: `token ${originClass(token.origin)}` });
      this.#spans.set(token, made);
      this.counts.set(token.origin, (this.counts.get(token.origin) ?? 0) + 1);
      span.append(made);
    }
    this.element.append(span);
  }

  /** Text from a server that sends no trace. */
  #untraced() {
    if (!this.#loose) {
      this.#loose = element("span", { class: `token ${originClass(TARGET)}` });
      this.element.append(element("span", {}, this.#loose));
    }
    return this.#loose;
  }

  #move(event) {
    const steps = [...this.element.querySelectorAll(".step:not([hidden])")];
    const here = steps.indexOf(event.target.closest(".step"));
    const goals = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: steps.length - 1 };
    const goal = steps[goals[event.key]];
    if (here < 0 || !(event.key in goals)) return;
    event.preventDefault();
    if (!goal) return;
    steps[here].tabIndex = -1;
    goal.tabIndex = 0;
    goal.focus();
  }
}
