// The note beside a step (what was drafted, what of it was kept, what the target added), or beside a word: what it means.
import { stepOf } from "./answer.js";
import { element } from "./dom.js";
import { originClass, TARGET } from "./origins.js";
import { explained } from "./terms.js";
import { face, lines } from "./tree.js";

const LINGER = 150; // ms to reach the note with the pointer before it goes
const ADDED = {
  recovered: "The target wrote instead:",
  bonus: "The target added:",
  target: "Nothing was drafted; the target wrote:",
};

/** Shows `tip` for the step or word under the pointer, tapped or focused inside one of `areas`. Escape closes it. */
export function attachTip(tip, areas) {
  let shown = null;
  let leaving = 0;

  function show(span) {
    clearTimeout(leaving);
    if (span === shown) return;
    hide();
    shown = span;
    span.classList.add("open");
    span.setAttribute("aria-describedby", tip.id);
    tip.replaceChildren(...(span.dataset.term ? [element("p", {}, explained(span.dataset.term))] : describe(stepOf(span))));
    tip.hidden = false;
    settle(tip, span);
  }

  function hide() {
    clearTimeout(leaving);
    shown?.classList.remove("open");
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  }

  function leave() {
    clearTimeout(leaving);
    leaving = setTimeout(hide, LINGER);
  }

  const under = (event) => event.target.closest?.(".step, .term");
  for (const area of areas) {
    area.addEventListener("pointerover", (event) => (under(event) ? show(under(event)) : shown && leave()));
    area.addEventListener("pointerleave", leave);
    area.addEventListener("focusin", (event) => under(event) && show(under(event)));
    area.addEventListener("focusout", leave);
    area.addEventListener("click", (event) => under(event) && show(under(event)));
    area.addEventListener("scroll", () => shown && settle(tip, shown), true);
  }
  tip.addEventListener("pointerenter", () => clearTimeout(leaving));
  tip.addEventListener("pointerleave", leave);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("pointerdown", (event) => !tip.contains(event.target) && !under(event) && hide());
  return { hide };
}

/** Below the step's last line, or above its first where there is no room; always inside the window. */
function settle(tip, span) {
  const rects = span.getClientRects();
  if (!rects.length) return;
  const last = rects[rects.length - 1];
  const gap = 6;
  const top = last.bottom + gap + tip.offsetHeight > innerHeight ? rects[0].top - gap - tip.offsetHeight : last.bottom + gap;
  tip.style.left = `${Math.max(8, Math.min(last.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

function describe({ number, tokens, step }) {
  const drafted = step?.drafted ?? [];
  const own = tokens.find((token) => token.origin === TARGET);
  const words = [`Step ${number}`];
  if (drafted.length) words.push(`${drafted.length} drafted, ${step.accepted} kept`);
  if (step) words.push(`${(step.seconds * 1000).toFixed(0)} ms`);
  return [
    element("p", { class: "dim" }, words.join(" · ")),
    ...(drafted.length ? [tree(drafted)] : []),
    own
      ? element("p", {}, ADDED[own.kind] ?? ADDED.target, " ", element("b", {}, face(own.text)))
      : element("p", {}, "The answer ended inside the draft."),
    ...(step?.why ? [element("p", { class: "dim" }, step.why)] : []),
  ];
}

function tree(drafted) {
  const rows = lines(drafted).map((line) =>
    element(
      "div",
      {},
      element("span", { class: "dim", "aria-hidden": "true" }, line.indent),
      ...line.nodes.map((index) => node(drafted[index])),
    ),
  );
  return element("div", { class: "tree" }, ...rows);
}

function node({ text, accepted, origin }) {
  if (accepted) return element("span", { class: `token ${originClass(origin ?? "")}` }, face(text));
  return element("s", {}, face(text));
}
