// The side panel: legend with counts, and the charts, of the answer being written.
import { Chart } from "./chart.js";
import { byId, element } from "./dom.js";
import { originClass, sortedCounts } from "./origins.js";
import { term } from "./terms.js";

export class Panel {
  constructor() {
    this.lengths = new Chart(byId("length-chart"), { title: "Tokens / step", digits: 2 });
    this.rates = new Chart(byId("rate-chart"), { title: "Tokens / s", digits: 0 });
    this.clear();
  }

  clear() {
    this.steps = 0;
    this.lengths.clear();
    this.rates.clear();
    this.#legend(new Map([["head", 0], ["suffix", 0], ["target", 0]]));
  }

  /** One step of `answer` has come. The first one's time is that of reading the prompt, not of decoding. */
  add({ tokens, step }, answer) {
    if (!tokens.length) return;
    this.steps += 1;
    this.lengths.add(tokens.length, 1);
    if (step && this.steps > 1) this.rates.add(tokens.length, step.seconds);
    this.#legend(answer.counts);
  }

  #lines = new Map(); // by origin: its entry in the legend, which stays while its count grows

  #legend(counts) {
    const total = [...counts.values()].reduce((a, b) => a + b, 0);
    const sorted = sortedCounts(counts);
    const lines = sorted.map(([origin]) => this.#lines.get(origin) ?? entry(origin));
    const shown = byId("legend");
    if (lines.length !== shown.childElementCount || lines.some((line, i) => line.item !== shown.children[i])) {
      shown.replaceChildren(...lines.map((line) => line.item));
    }
    this.#lines = new Map(sorted.map(([origin], i) => [origin, lines[i]]));
    sorted.forEach(([, count], i) => {
      lines[i].count.textContent = total ? `${count} · ${Math.round((100 * count) / total)} %` : "–";
    });
    byId("share").replaceChildren(
      ...sorted.map(([origin, count]) => {
        const part = element("i", { class: originClass(origin) });
        part.style.flexGrow = count;
        return part;
      }),
    );
  }
}

function entry(origin) {
  const key = element("span", { class: `key token ${originClass(origin)}`, "aria-hidden": "true" }, "abc");
  const count = element("span", { class: "count" });
  return { item: element("li", {}, key, term(origin), count), count };
}
