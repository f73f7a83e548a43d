// Who wrote a token: names and the style class of each (colours and underlines are in style.css).

const KNOWN = ["head", "suffix", "prediction", "ngram", "model", "grammar"];

export const TARGET = "target";

/** Drafters we have no colour for share one. */
export function originClass(origin) {
  if (origin === TARGET) return "by-target";
  const name = origin.split(":")[0];
  return KNOWN.includes(name) ? `by-${name}` : "by-other";
}

export function originName(origin) {
  return origin === TARGET ? "target’s own" : origin;
}

/** Tokens per origin: drafters by name, the target last. */
export function sortedCounts(counts) {
  const rank = ([origin]) => (origin === TARGET ? 1 : 0);
  return [...counts].sort((a, b) => rank(a) - rank(b) || a[0].localeCompare(b[0]));
}
