/** Where the nodes of a draft tree stand: root at the left, depth to the right, the accepted path along the top. Pure. */

const LONGEST = 16; // characters of a node's text that are shown

/** One {…node, index, depth, row, children} for each node of `tree`, parents first, and the target's own token last.
 *
 * tree: as in a trace, accepted nodes marked; bonus: the step's token that was not drafted, or undefined.
 */
export function layout(tree, bonus) {
  const nodes = tree.map((node, index) => ({ ...node, index, depth: 0, row: 0, children: [] }));
  if (bonus) {
    const parent = nodes.findLastIndex((node) => node.accepted);
    const { text, logprob } = bonus;
    nodes.push({ text, logprob, source: "bonus", accepted: true, parent, index: nodes.length, depth: 0, row: 0, children: [] });
  }
  for (const node of nodes) {
    if (node.parent < 0) continue;
    node.depth = nodes[node.parent].depth + 1;
    nodes[node.parent].children.push(node);
  }
  for (const node of nodes) node.children.sort(bySuccess);
  let row = 0;
  const walk = (node) => {
    node.row = node.children.length ? row : row++;
    node.children.forEach((child) => walk(child));
  };
  walk(nodes[0]);
  return nodes;
}

function bySuccess(one, other) {
  return Number(other.accepted) - Number(one.accepted) || (other.logprob ?? 0) - (one.logprob ?? 0);
}

export function shortened(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

/** The left edge of every depth, and the width of its boxes. characterWidth: of the monospaced font, in pixels. */
export function columns(nodes, characterWidth, { padding, gap }) {
  const widths = [];
  for (const node of nodes) {
    const width = Math.max(44, node.label.length * characterWidth + 2 * padding);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, width);
  }
  let left = 0;
  return widths.map((width) => {
    const column = { left, width };
    left += width + gap;
    return column;
  });
}
