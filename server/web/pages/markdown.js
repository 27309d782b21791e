/** Model output as markdown, in DOM nodes that are safe to show, and painted in the colours of its tokens.
 *
 * Invariant: HTML that the model writes is shown as text, and pictures as their description. The output of marked goes
 * through DOMPurify as well.
 */

import { bind, tokenSpan } from "../drafting/tokens.js";
import DOMPurify from "../vendor/dompurify.js";
import { Marked } from "../vendor/marked.js";
import { align } from "./align.js";

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const asText = (text) => text.replace(/[&<>"]/g, (sign) => ENTITIES[sign]);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => asText(text),
    image: ({ text, href }) => asText(text || href),
  },
});

const SAFE = {
  RETURN_DOM_FRAGMENT: true,
  FORBID_TAGS: ["style", "img", "form"],
  FORBID_ATTR: ["style", "class", "id", "name"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

export function toNodes(text) {
  const fragment = DOMPurify.sanitize(marked.parse(text), SAFE);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const box of fragment.querySelectorAll("input")) box.replaceWith(box.checked ? "☑ " : "☐ ");
  return fragment;
}

/** Shows `text` in `container`, each piece in the colour of its token. */
export function show(container, text, trace) {
  const nodes = toNodes(text);
  paint(nodes, trace.tokens);
  container.replaceChildren(nodes);
  bind(container, trace);
}

function paint(fragment, tokens) {
  if (!tokens.length) return;
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) if (walker.currentNode.data.trim()) found.push(walker.currentNode);
  const pieces = align(found.map((node) => node.data), tokens.map((token) => token.text));
  found.forEach((node, index) => {
    node.replaceWith(...pieces[index].map(({ text, token }) => tokenSpan(tokens[token], token, text)));
  });
}
