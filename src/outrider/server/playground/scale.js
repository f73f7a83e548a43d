// The arithmetic of the charts: averages, axes, paths. Nothing here knows the page.

/** A round number not below `value`: where an axis ends. */
export function niceCeiling(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 8, 10].map((m) => m * power).find((m) => m >= value * (1 - 1e-9));
}

/** Where `value` of 0…`from` lies on 0…`to`, kept inside. */
export function place(value, from, to) {
  return from > 0 ? Math.min(Math.max(value / from, 0), 1) * to : 0;
}

/**
 * The mean over the last `window` steps, for every step: sum of `tops` over sum of `bottoms` (a rate is tokens over
 * seconds, not a mean of rates). Null where the bottoms add up to nothing.
 */
export function movingRatio(tops, bottoms, window) {
  let top = 0;
  let bottom = 0;
  return tops.map((value, i) => {
    top += value;
    bottom += bottoms[i];
    if (i >= window) {
      top -= tops[i - window];
      bottom -= bottoms[i - window];
    }
    return bottom > 1e-12 ? top / bottom : null;
  });
}

/** An SVG path through `values` (null: a gap), `step` apart, 0 at `height` and `most` at 0. */
export function linePath(values, { step, height, most }) {
  let pen = "M";
  let path = "";
  values.forEach((value, i) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${round(i * step + step / 2)} ${round(height - place(value, most, height))}`;
    pen = "L";
  });
  return path;
}

/** An SVG path of one bar per value, in the same places. */
export function barPath(values, { step, height, most }) {
  const width = Math.max(step * 0.7, 0.5);
  return values
    .map((value, i) => {
      const tall = place(value ?? 0, most, height);
      return tall ? `M${round(i * step + (step - width) / 2)} ${height}v${round(-tall)}h${round(width)}v${round(tall)}z` : "";
    })
    .join("");
}

function round(value) {
  return Math.round(value * 100) / 100;
}
