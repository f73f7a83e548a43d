// What can be done with an answer that is there: take it along, or ask for another.
import { element } from "./dom.js";

const NOTED = 1500; // ms that a button says it has worked

/** `again` is called for another answer. */
export function actions(answer, again) {
  const copy = element("button", { type: "button", class: "quiet small", onclick: () => take(answer.text, copy) }, "Copy");
  const other = element("button", { type: "button", class: "quiet small again", onclick: again }, "Regenerate");
  return element("div", { class: "actions" }, copy, other);
}

async function take(text, button) {
  const done = await copied(text);
  button.textContent = done ? "Copied" : "Select it and copy by hand";
  setTimeout(() => (button.textContent = "Copy"), NOTED);
}

/** Browsers have a clipboard for pages from this machine or over TLS; the old way works everywhere. */
async function copied(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed: try the other way
    }
  }
  const box = element("textarea", { class: "hidden", "aria-hidden": "true" });
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  return done;
}
