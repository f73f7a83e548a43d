// Prometheus's text format, as far as /metrics uses it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { n: "\n", "\\": "\\", '"': '"' };

/** @returns {{name: string, labels: Object<string, string>, value: number}[]} */
export function samples(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const parts = line.startsWith("#") ? null : LINE.exec(line);
    if (!parts) continue;
    const labels = [...(parts[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, c) => ESCAPED[c] ?? c)]);
    found.push({ name: parts[1], labels: Object.fromEntries(labels), value: Number(parts[3].replace("Inf", "Infinity")) });
  }
  return found;
}
