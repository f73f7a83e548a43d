// The page: a conversation, its composer, and what happens when a button is pressed.
import { actions } from "./actions.js";
import { Answer } from "./answer.js";
import { ApiError, chat, models } from "./api.js";
import { Costs } from "./costs.js";
import { byId, element } from "./dom.js";
import { IDEAS } from "./ideas.js";
import { Panel } from "./panel.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { attachTabs } from "./tabs.js";
import { attachTip } from "./tip.js";
import { whyPlain } from "./why.js";

const RETRY = 2000; // ms
const NEAR = 120; // px from the end at which a reader is taken to follow
const narrow = matchMedia("(max-width: 800px)"); // as in style.css: the page scrolls, not the log
const log = byId("log");
const welcome = byId("welcome");
const prompt = byId("prompt");
const settings = new Settings(byId("controls"));
const panel = new Panel();
const tip = attachTip(byId("tip"), [log, document.querySelector("aside")]);
const costs = new Costs(byId("costs"), () => ({ model: model?.id, key: settings.key }));
let history = []; // [{role, content}], without the system prompt
let model = null;
let running = null; // AbortController of what is under way

async function connect() {
  try {
    [model] = await models(settings.key);
    const { dtype, device, max_context: context } = model.outrider ?? {};
    byId("model").textContent = [model.id, dtype, device, context && `context ${context}`].filter(Boolean).join(" · ");
    settings.offer(model.outrider);
  } catch (error) {
    byId("model").textContent = error.message;
    if (error.status === 503) setTimeout(connect, RETRY); // the model is still being loaded
  }
}

function turn(role, content) {
  const made = element("article", { class: `turn ${role}` }, content);
  show(made);
  return made;
}

/** Add to the log and bring it into view; while it grows, the view stays at the end unless the reader has left it. */
function show(made) {
  welcome.remove();
  log.append(made);
  made.scrollIntoView({ block: "end" });
}

function follow() {
  if (narrow.matches) {
    const below = document.querySelector("main").getBoundingClientRect().bottom - innerHeight;
    if (below > 0 && below < NEAR) scrollBy(0, below);
  } else if (log.scrollHeight - log.scrollTop - log.clientHeight < NEAR) {
    log.scrollTop = log.scrollHeight;
  }
}

function say(words) {
  byId("status").textContent = words;
}

/** Do `task` with the buttons set to Stop; errors become text in the conversation. */
async function underway(task) {
  running = new AbortController();
  busy(true);
  try {
    if (!model) await connect();
    await task(running.signal);
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else show(element("p", { class: "error", role: "alert" }, error instanceof ApiError ? error.message : `This page failed: ${error.message}`));
  } finally {
    running = null;
    busy(false);
  }
}

/** Swap Send and Race for Stop. Focus moves only if the button that had it is gone. */
function busy(on) {
  const pressed = document.activeElement?.closest(".buttons");
  byId("stop").hidden = !on;
  for (const id of ["send", "race"]) byId(id).hidden = on;
  byId("clear").disabled = on;
  if (pressed) (on ? byId("stop") : prompt).focus({ preventScroll: true });
}

function body(messages) {
  return { model: model?.id ?? "default", ...settings.request(messages) };
}

/** The question in the box, moved into the conversation; null where there is none. */
function asked() {
  const question = prompt.value.trim();
  if (!question) return null;
  turn("user", question);
  prompt.value = "";
  grow();
  return question;
}

async function send() {
  const question = asked();
  if (question !== null) await answerTo([...history, { role: "user", content: question }], question);
}

/** Another answer to the last question, in the place of the one there is. */
async function again(holder) {
  const last = history.findLastIndex((message) => message.role === "user");
  if (running || last < 0) return;
  holder.remove();
  await answerTo(history.slice(0, last + 1), history[last].content);
}

async function answerTo(messages, question) {
  const answer = new Answer();
  const figures = element("p", { class: "figures dim" });
  const reason = element("p", { class: "why", hidden: true });
  const steps = [];
  await underway(async (signal) => {
    panel.clear();
    let holder = null;
    try {
      for await (const piece of chat(body(messages), settings.key, signal)) {
        holder ??= turn("assistant", element("div", {}, answer.element, figures, reason));
        answer.add(piece);
        if (piece.step) steps.push(piece.step);
        panel.add(piece, answer);
        if (piece.metrics) figures.textContent = summary(piece, answer);
        follow();
      }
      if (settings.speculates) reason.textContent = whyPlain(steps);
      reason.hidden = !reason.textContent;
      follow();
      say(`Answered. ${figures.textContent} ${reason.textContent}`);
    } finally {
      if (holder && answer.text) finish(holder, answer);
      if (answer.text) history = [...messages, { role: "assistant", content: answer.text }];
      else if (!prompt.value) prompt.value = question; // nothing came: let it be tried again
    }
  });
}

/** The last answer can be asked for again; all can be copied. */
function finish(holder, answer) {
  noneAgain();
  holder.append(actions(answer, () => again(holder)));
  follow();
}

function noneAgain() {
  for (const old of log.querySelectorAll(".again")) old.remove();
}

async function race() {
  const question = asked();
  const last = history.findLastIndex((message) => message.role === "user");
  if (question === null && last < 0) {
    prompt.focus();
    say("Write a message first.");
    return;
  }
  const messages = question === null ? history.slice(0, last + 1) : [...history, { role: "user", content: question }];
  const seed = settings.seed ?? Math.floor(Math.random() * 2 ** 31);
  const card = new Race(say);
  await underway(async (signal) => {
    show(card.element);
    try {
      await card.record({ ...body(messages), seed }, settings.speculation(), settings.key, signal);
    } catch (error) {
      card.element.remove();
      if (question !== null && !prompt.value) prompt.value = question;
      throw error;
    }
    if (question !== null) {
      history = [...messages, { role: "assistant", content: card.text }];
      noneAgain();
    }
    await card.replay(panel, signal);
    follow();
  });
}

function summary({ finish, metrics }, answer) {
  const speculative = metrics.speculative_decoding ?? {};
  const count = [...answer.counts.values()].reduce((a, b) => a + b, 0);
  return [
    `${count} tokens`,
    speculative.mean_acceptance_length && `${speculative.mean_acceptance_length.toFixed(2)} a step`,
    drafts(speculative),
    metrics.tokens_per_second && `${metrics.tokens_per_second.toFixed(0)} tokens/s`,
    metrics.time_to_first_token && `first after ${(metrics.time_to_first_token * 1000).toFixed(0)} ms`,
    metrics.seed !== undefined && `seed ${metrics.seed}`,
    finish === "length" && "cut at max tokens",
  ]
    .filter(Boolean)
    .join(" · ");
}

function drafts({ drafted_tokens: drafted, draft_acceptance_rate: rate }) {
  if (drafted === undefined) return ""; // a server that does not say
  return drafted ? `${Math.round(100 * rate)} % of drafts kept` : "nothing was drafted";
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, innerHeight * 0.35)}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) send();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) send();
});
prompt.addEventListener("input", grow);
byId("race").addEventListener("click", race);
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  history = [];
  tip.hide();
  log.replaceChildren(welcome);
  panel.clear();
  prompt.focus();
});
byId("controls").elements.key.addEventListener("change", connect);
byId("ideas").append(
  ...IDEAS.map(({ title, text }) => {
    const fill = () => {
      prompt.value = text;
      grow();
      prompt.focus();
    };
    return element("li", {}, element("button", { type: "button", class: "quiet", onclick: fill }, title));
  }),
);
const watch = () => costs.watch(byId("speculation").open && !byId("costs").hidden);
attachTabs(byId("tabs"), watch);
byId("speculation").addEventListener("toggle", watch);
if (narrow.matches) for (const id of ["speculation", "settings"]) byId(id).open = false;
connect();
