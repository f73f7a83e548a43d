// The words of this page that not everybody knows, each explained in a sentence or two.
import { element } from "./dom.js";
import { originName, TARGET } from "./origins.js";

const TERMS = {
  head: "Head: a small network trained to guess what this model will say next. A guess takes it a fraction of a pass.",
  suffix:
    "Suffix: what followed the last words when they stood in this conversation before. Looking it up costs next to " +
    "nothing; it guesses well where a text repeats itself, as edited code does.",
  ngram: "N-gram: what last followed the same few words in this conversation.",
  model: "Model: a smaller model of the same kind writes ahead.",
  prediction: "Prediction: the text you expected under Settings, tried as a draft.",
  grammar: "Grammar: what your JSON schema leaves no choice about (names, quotes, braces), so that nobody has to guess.",
  [TARGET]:
    "Target: the model itself. Every pass over it adds one token of its own after the guesses it keeps; its choice is " +
    "always the one that counts.",
  nodes:
    "Nodes: the tokens guessed for one step. They form a tree where several continuations are tried at once, and each is " +
    "checked by one row of the same pass. More nodes may be kept, but each makes the pass a little slower.",
  passes:
    "What a pass over the model takes by the number of tokens it checks, compared with a pass for one. The flatter this is, " +
    "the more guessing pays.",
  acceptance: "How often a guess was right lately, where all guesses before it were.",
};

/** What is known of a word; of two who guessed alike ("suffix&head") both are explained. */
export function explained(term) {
  const said = term.split("&").map((each) => TERMS[each.split(":")[0]] ?? `${each}: a drafter of this server's own.`);
  return said.join(" ");
}

/** A word that explains itself to whoever points at it, tabs to it or taps it (tip.js). */
export function term(name, words = originName(name)) {
  return element("button", { type: "button", class: "term", "data-term": name }, words);
}
