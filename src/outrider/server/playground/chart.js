// One small live chart: a bar per step and the moving average over it.
import { drawing, element } from "./dom.js";
import { barPath, linePath, movingRatio, niceCeiling } from "./scale.js";

const WIDTH = 300;
const HEIGHT = 72;
const WINDOW = 16; // steps averaged over
const FEWEST = 40; // steps the axis is wide from the start, so that the first bars are not walls

/** Draws tops[i] / bottoms[i] per step; `add` and `clear`. Redrawn at most once per frame. */
export class Chart {
  #tops = [];
  #bottoms = [];
  #due = false;

  constructor(figure, { title, digits }) {
    this.digits = digits;
    this.now = element("output", {});
    this.bars = drawing("path", { class: "bars" });
    this.line = drawing("path", { class: "average" });
    this.half = drawing("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
    this.top = element("span", { class: "top dim", "aria-hidden": "true" });
    this.canvas = drawing(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      this.half,
      this.bars,
      this.line,
    );
    figure.replaceChildren(
      element("figcaption", {}, element("span", {}, title), this.now),
      element("div", { class: "plot" }, this.top, this.canvas),
    );
    this.#draw();
  }

  add(top, bottom) {
    this.#tops.push(top);
    this.#bottoms.push(bottom);
    this.#schedule();
  }

  clear() {
    this.#tops = [];
    this.#bottoms = [];
    this.#schedule();
  }

  #schedule() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      this.#due = false;
      this.#draw();
    });
  }

  #draw() {
    const values = this.#tops.map((top, i) => (this.#bottoms[i] > 0 ? top / this.#bottoms[i] : null));
    const average = movingRatio(this.#tops, this.#bottoms, WINDOW);
    const tallest = highest(values);
    const most = niceCeiling(tallest);
    const box = { step: WIDTH / Math.max(values.length, FEWEST), height: HEIGHT, most };
    this.bars.setAttribute("d", barPath(values, box));
    this.line.setAttribute("d", linePath(average, box));
    this.top.textContent = values.length ? String(most) : "";
    const sum = (list) => list.reduce((a, b) => a + b, 0);
    const mean = sum(this.#tops) / sum(this.#bottoms);
    this.now.textContent = values.length && Number.isFinite(mean) ? mean.toFixed(this.digits) : "–";
  }
}

/** Where the axis should reach: a lone outlier of a rate may stick out, the rest must not be flattened by it. */
function highest(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.length ? Math.max(sorted[Math.floor(sorted.length * 0.97)] ?? 0, 1) : 1;
}
