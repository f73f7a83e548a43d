// The race: the same request plainly and speculatively, one after the other, then both replayed at their true speed.
import { Answer } from "./answer.js";
import { chat } from "./api.js";
import { element } from "./dom.js";
import { arrivedBy, duration, firstDifference, nothingDrafted, rateAt, ratio, tokenCount } from "./timing.js";
import { face } from "./tree.js";
import { whyPlain } from "./why.js";

const REPORT = 300; // ms between signs of life while recording: painting takes time from a model on the same machine
const COUNTER = 100; // ms between updates of the running figures

class Lane {
  constructor(title, note) {
    this.answer = new Answer();
    this.arrivals = [];
    this.rate = element("span", { class: "rate" }, "–");
    this.bar = element("progress", { max: 1, value: 0, "aria-hidden": "true" });
    this.box = element("div", { class: "lane-text" }, this.answer.element);
    this.element = element(
      "section",
      { class: "lane", "aria-label": title },
      element("h2", {}, title, " ", element("span", { class: "dim" }, note)),
      element("p", { class: "speed" }, this.rate, " tokens/s"),
      this.bar,
      this.box,
    );
  }

  rewind() {
    this.answer.clear();
    this.next = 0;
  }

  /** Show all that had come by `time`; `seen` is told of each. */
  showUntil(time, seen) {
    const upTo = arrivedBy(this.arrivals, time);
    for (; this.next < upTo; this.next += 1) {
      this.answer.add(this.arrivals[this.next]);
      seen?.(this.arrivals[this.next], this.answer);
      this.box.scrollTop = this.box.scrollHeight;
    }
  }

  showFigures(time) {
    const shown = tokenCount(this.arrivals, this.next);
    this.bar.value = shown / Math.max(tokenCount(this.arrivals), 1);
    this.rate.textContent = rateAt(this.arrivals, time).toFixed(0);
  }
}

export class Race {
  /** `say` tells those who cannot see it how it went. */
  constructor(say) {
    this.say = say;
    this.plain = new Lane("Plain", "one token a pass");
    this.speculative = new Lane("Speculative", "drafts where it pays");
    this.note = element("p", { class: "verdict" });
    this.again = element("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.#toggle() }, "Replay");
    this.element = element(
      "article",
      { class: "race" },
      element("div", { class: "lanes" }, this.plain.element, this.speculative.element),
      element("div", { class: "finish" }, this.note, this.again),
    );
  }

  get text() {
    return this.speculative.arrivals.map((arrival) => arrival.content).join("");
  }

  /** Records both sides. They share the machine with nothing, not even with their own display. */
  async record(body, speculation, key, signal) {
    // Both sides shall find the prompt already read, or whoever runs second would be the faster for it.
    this.#progress("Reading the prompt…");
    await this.#run(null, { ...body, max_tokens: 1, outrider: { speculate: false } }, key, signal);
    // Speculation goes first: drafters remember finished answers, and it must not be handed the plain one to copy.
    await this.#run(this.speculative, { ...body, outrider: { speculate: speculation, trace: true } }, key, signal);
    await this.#run(this.plain, { ...body, outrider: { speculate: false, trace: true } }, key, signal);
  }

  async #run(lane, body, key, signal) {
    const name = lane === this.plain ? "Recording 2 of 2, plain" : "Recording 1 of 2, speculative";
    const start = performance.now();
    let reported = 0;
    let count = 0;
    for await (const piece of chat(body, key, signal)) {
      if (!lane) continue;
      if (piece.content || piece.tokens.length) lane.arrivals.push({ ...piece, at: (piece.at - start) / 1000 });
      count += piece.tokens.length;
      if (piece.at - reported > REPORT) {
        reported = piece.at;
        this.#progress(`${name}: ${count} tokens`);
      }
    }
  }

  #progress(words) {
    this.note.textContent = words;
  }

  /** Both sides from the start; resolves when the slower one is through. `panel` follows the speculative one. */
  async replay(panel = null, signal = null) {
    const end = Math.max(duration(this.plain.arrivals), duration(this.speculative.arrivals));
    this.skipped = false;
    this.running = true;
    this.again.hidden = false;
    this.again.textContent = "Skip";
    this.#progress("Replaying both at their true speed…");
    this.plain.rewind();
    this.speculative.rewind();
    panel?.clear();
    const start = await frame();
    let counted = -Infinity;
    for (let now = start; ; now = await frame()) {
      const time = this.skipped || signal?.aborted ? Infinity : (now - start) / 1000;
      this.plain.showUntil(time);
      this.speculative.showUntil(time, (arrival, answer) => panel?.add(arrival, answer));
      if (now - counted > COUNTER || time >= end) {
        counted = now;
        this.plain.showFigures(time);
        this.speculative.showFigures(time);
      }
      if (time >= end || !this.element.isConnected) break;
    }
    this.running = false;
    this.again.textContent = "Replay";
    this.#judge();
    this.say(this.note.textContent);
  }

  #toggle() {
    if (this.running) this.skipped = true;
    else this.replay();
  }

  #judge() {
    const sides = [this.plain.arrivals, this.speculative.arrivals];
    const difference = firstDifference(...sides);
    const times = ratio(...sides);
    const speed = element("b", { class: "times" }, `${times.toFixed(2)}×`);
    if (!difference && this.plain.answer.text === this.speculative.answer.text) {
      const count = tokenCount(sides[0]);
      this.note.replaceChildren(speed, " as fast, and the text is ", element("b", {}, "identical"), `: ${count} of ${count} tokens.`);
      const why = whyPlain(sides[1].flatMap((arrival) => arrival.step ?? []));
      if (why) this.note.append(` ${why}`);
      else if (nothingDrafted(sides[1])) this.note.append(" Nothing was drafted: both sides wrote one token a pass.");
      return;
    }
    if (!difference) {
      this.note.replaceChildren(speed, " as fast, but the texts differ.");
      return;
    }
    const { index, left, right } = difference;
    this.plain.answer.mark(index);
    this.speculative.answer.mark(index);
    const said = (token) => (token ? `“${face(token.text)}”` : "the end");
    this.note.replaceChildren(
      speed,
      ` as fast, but the texts differ from token ${index + 1} on: ${said(left)} plainly, ${said(right)} speculatively.`,
    );
  }
}

function frame() {
  return new Promise((resolve) => requestAnimationFrame(resolve));
}
