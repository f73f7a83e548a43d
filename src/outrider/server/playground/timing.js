// A race as data: what arrived when, what had arrived by then, and whether both said the same.

/** @typedef {{at: number, tokens: object[], pieces: object[]}} Arrival  `at` in seconds since the request was sent */

/** How many of the arrivals (in order of time) had come by `time`. */
export function arrivedBy(arrivals, time) {
  let low = 0;
  let high = arrivals.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (arrivals[middle].at <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function tokenCount(arrivals, upTo = arrivals.length) {
  return arrivals.slice(0, upTo).reduce((sum, arrival) => sum + arrival.tokens.length, 0);
}

/** Whether the server says of its steps that none had a draft; without a trace nobody knows. */
export function nothingDrafted(arrivals) {
  const steps = arrivals.flatMap((arrival) => arrival.step ?? []);
  return steps.length > 0 && steps.every((step) => !step.drafted.length);
}

/** When the last token came, in seconds. */
export function duration(arrivals) {
  return arrivals.length ? arrivals[arrivals.length - 1].at : 0;
}

/** Tokens per second up to `time`; once all have come, the clock stands. */
export function rateAt(arrivals, time) {
  const clock = Math.min(time, duration(arrivals));
  return clock > 0 ? tokenCount(arrivals, arrivedBy(arrivals, clock)) / clock : 0;
}

/** How many times as fast the second was: the same tokens in less time. */
export function ratio(plain, speculative) {
  const slow = rateAt(plain, Infinity);
  return slow > 0 ? rateAt(speculative, Infinity) / slow : 0;
}

/** The first place where the two differ, `{index, left, right}` (a token or null where one had ended), or null. */
export function firstDifference(left, right) {
  const a = left.flatMap((arrival) => arrival.tokens);
  const b = right.flatMap((arrival) => arrival.tokens);
  for (let index = 0; index < Math.max(a.length, b.length); index += 1) {
    if (a[index]?.id !== b[index]?.id) return { index, left: a[index] ?? null, right: b[index] ?? null };
  }
  return null;
}
