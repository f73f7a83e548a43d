// A draft as lines of text: a run of only children stays on one line, branches stand below it, indented.

/**
 * @param {{text: string, parent: number, accepted: boolean}[]} nodes parents before children, -1 for the root
 * @returns {{indent: string, nodes: number[]}[]}
 */
export function lines(nodes) {
  const children = new Map();
  nodes.forEach((node, index) => children.set(node.parent, [...(children.get(node.parent) ?? []), index]));
  const drawn = [];

  // The cursor stands at the end of `line`; what follows `node` goes there or, where it branches, below.
  function below(node, line, indent) {
    const next = children.get(node) ?? [];
    if (next.length === 1) {
      line.nodes.push(next[0]);
      below(next[0], line, indent);
      return;
    }
    next.forEach((child, place) => {
      const last = place === next.length - 1;
      const branch = { indent: `${indent}${last ? "└ " : "├ "}`, nodes: [child] };
      drawn.push(branch);
      below(child, branch, indent + (last ? "  " : "│ "));
    });
  }

  const trunk = { indent: "", nodes: [] };
  drawn.push(trunk);
  below(-1, trunk, "");
  return drawn.filter((line) => line.nodes.length);
}

/** A token with its spaces and line ends made visible. */
export function face(text) {
  if (text === "") return "⟨end⟩"; // special tokens have no text
  return text
    .replace(/ {3,}/g, (run) => `␣×${run.length}`)
    .replaceAll(" ", "␣")
    .replaceAll("\n", "↵")
    .replaceAll("\t", "⇥");
}
