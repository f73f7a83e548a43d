// Why an answer was not drafted for, in words: whoever came to see speculation shall know why there is none.

const MOST = 0.75;
const DEAR = /^nothing drafted: /; // the server's words where drafts were to be had, and not worth their rows

/** @param {{drafted: object[], why?: string}[]} steps of one answer; "" where many of them had a draft, or nobody knows */
export function whyPlain(steps) {
  const plain = steps.filter((step) => !step.drafted.length);
  const said = plain.findLast((step) => step.why);
  if (!said || plain.length < MOST * steps.length) return "";
  const share = plain.length === steps.length ? "Nothing was drafted" : `In ${plain.length} of ${steps.length} steps nothing was drafted`;
  if (!DEAR.test(said.why)) return `${share}: ${said.why}.`;
  return `${share}: it does not pay here at the moment, so the model wrote one token a pass. ${capital(said.why.replace(DEAR, ""))}.`;
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
