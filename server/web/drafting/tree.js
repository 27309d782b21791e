/** A view of one step's draft tree: what was drafted, what the model accepted, and what it wrote instead.
 *
 * Screen readers get the same tree as a nested list.
 */

import { drawing, element } from "../elements/element.js";
import { percent, plural } from "../elements/figures.js";
import { visible } from "./card.js";
import { sourceOf } from "./sources.js";
import { columns, layout, shortened } from "./tree_layout.js";

const ROW = 44;
const BOX = 24;
const CHARACTER = 7.6; // pixels of the monospaced font at 12.5 px
const SPACING = { padding: 7, gap: 26 };
const MARGIN = 6;

export class TreeView {
  constructor(container) {
    this.container = container;
    this.clear();
  }

  clear() {
    this.container.replaceChildren(element("p", { class: "hint" }, "Choose a step: a bar above, or a token of the reply."));
  }

  show(trace, number) {
    const step = trace.step(number);
    if (!step) return this.clear();
    const bonus = trace.tokensOf(number).find((token) => token.source === "bonus");
    const heading = element("p", { class: "tree-heading" }, sentence(step));
    if (!step.tree || step.tree.length < 2) return this.container.replaceChildren(heading);
    const nodes = layout(step.tree, bonus);
    for (const node of nodes) node.label = shortened(visible(node.text));
    const scroller = element("div", { class: "tree-scroll", tabindex: "0", role: "group", "aria-label": "Draft tree" });
    scroller.append(draw(nodes), element("div", { class: "only-read" }, list(nodes[0])));
    return this.container.replaceChildren(heading, scroller);
  }
}

function sentence(step) {
  const start = `Step ${step.step}, ${step.method}`;
  const seconds = `${(step.seconds * 1000).toFixed(1)} ms`;
  if (!step.drafted) return `${start}: nothing was drafted, the model wrote one token alone (${seconds}).`;
  return `${start}: ${plural(step.drafted, "node")} drafted, ${step.accepted} accepted (${seconds}).`;
}

function draw(nodes) {
  const edges = columns(nodes, CHARACTER, SPACING);
  const box = (node) => ({ ...edges[node.depth], top: MARGIN + node.row * ROW });
  const width = edges.at(-1).left + edges.at(-1).width + 2 * MARGIN;
  const height = (Math.max(...nodes.map((node) => node.row)) + 1) * ROW + MARGIN;
  const frame = { class: "tree", width, height, viewBox: `${-MARGIN} 0 ${width} ${height}`, "aria-hidden": "true" };
  const lines = nodes.filter((node) => node.parent >= 0).map((node) => edge(box(nodes[node.parent]), box(node), node));
  return drawing("svg", frame, ...lines, ...nodes.map((node) => drawNode(node, box(node))));
}

function edge(from, to, node) {
  const [x, y, u, v] = [from.left + from.width, from.top + BOX / 2, to.left, to.top + BOX / 2];
  const middle = (x + u) / 2;
  const path = `M${x} ${y}C${middle} ${y} ${middle} ${v} ${u} ${v}`;
  return drawing("path", { class: classOf("edge", node), d: path });
}

function drawNode(node, { left, top, width }) {
  const group = drawing("g", { class: classOf("node", node), "data-source": node.source, transform: `translate(${left} ${top})` });
  group.append(
    drawing("title", {}, describe(node)),
    drawing("rect", { width, height: BOX, rx: 6 }),
    drawing("text", { class: "text", x: width / 2, y: 16.5, "text-anchor": "middle" }, node.label),
  );
  if (node.logprob !== null) {
    const share = percent(Math.exp(node.logprob));
    group.append(drawing("text", { class: "share", x: width / 2, y: BOX + 13, "text-anchor": "middle" }, share));
  }
  return group;
}

function classOf(kind, node) {
  return `${kind} ${node.accepted ? "accepted" : "rejected"}`;
}

function describe(node) {
  if (node.parent < 0) return `${visible(node.text)}: the token known before the step`;
  const fate = node.source === "bonus" ? "the model's own" : node.accepted ? "accepted" : "rejected";
  const share = node.logprob === null ? "" : `, probability ${percent(Math.exp(node.logprob))}`;
  return `${visible(node.text)}: ${fate}, ${sourceOf(node.source).name}${share}`;
}

function list(node) {
  const item = element("li", {}, describe(node));
  if (node.children.length) item.append(element("ul", {}, ...node.children.map((child) => list(child).firstChild)));
  return element("ul", {}, item);
}
