/** The small card beside a token: hovered, focused or tapped. One for the whole page, one listener for all tokens. */

import { element } from "../elements/element.js";
import { percent } from "../elements/figures.js";
import { sourceOf } from "./sources.js";
import { tokenOf } from "./tokens.js";

const card = element("div", { id: "card", role: "tooltip", hidden: true });

export function installCard() {
  document.body.append(card);
  document.addEventListener("pointerover", (event) => showFor(event.target));
  document.addEventListener("focusin", (event) => showFor(event.target));
  document.addEventListener("click", (event) => {
    showFor(event.target);
    choose(event.target);
  });
  document.addEventListener("scroll", () => showFor(document.activeElement), { capture: true, passive: true });
  document.addEventListener("keydown", onKey);
}

function showFor(target) {
  const span = target instanceof Element ? target.closest(".token") : null;
  const found = span && tokenOf(span);
  if (!found) return hide();
  card.replaceChildren(...describe(found));
  card.dataset.source = found.token.source;
  card.hidden = false;
  place(span.getClientRects()[0] ?? span.getBoundingClientRect(), found.container.getBoundingClientRect());
  if (span === document.activeElement) span.setAttribute("aria-describedby", card.id);
}

function hide() {
  card.hidden = true;
}

/** A click on a token, or Enter, chooses its step. */
function choose(target) {
  const span = target instanceof Element ? target.closest(".token") : null;
  const found = span && tokenOf(span);
  if (!found) return;
  const detail = { step: found.token.step };
  found.container.dispatchEvent(new CustomEvent("choose-step", { bubbles: true, detail }));
}

function describe({ token, trace }) {
  const source = sourceOf(token.source);
  const step = trace.step(token.step);
  const lines = [
    element("strong", {}, visible(token.text)),
    element("span", { class: "source" }, `${source.name}: ${source.words}`),
    element("span", {}, `probability ${percent(Math.exp(token.logprob))}`),
    element("span", {}, `token ${token.depth} of step ${token.step}`),
  ];
  if (step) lines.push(element("span", {}, stepSentence(step)));
  return lines;
}

function stepSentence(step) {
  if (!step.drafted) return `${step.method}: nothing drafted`;
  return `${step.method}: ${step.accepted} of ${step.drafted} drafted accepted`;
}

/** White space as signs. */
export function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

/** Above the token if there is room, and not beyond the text it stands in: what is beside it stays in sight. */
function place(rect, frame) {
  const { width, height } = card.getBoundingClientRect();
  const right = Math.max(frame.right, frame.left + width);
  const left = Math.max(8, Math.min(rect.left, right - width, document.documentElement.clientWidth - width - 8));
  const above = rect.top - height - 8;
  card.style.left = `${left}px`;
  card.style.top = `${above > 8 ? above : rect.bottom + 8}px`;
}

/** Arrow keys walk from token to token once the text has the focus. */
function onKey(event) {
  if (event.key === "Escape") return hide();
  const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = event.target;
  if (event.key === "Enter" && at.matches?.(".token")) return choose(at);
  if (!direction || !at.closest?.(".tokens") || at.closest("a, button, summary")) return undefined;
  const container = at.closest(".tokens");
  const spans = [...container.querySelectorAll(".token")];
  const index = spans.indexOf(at.closest(".token"));
  const next = spans[Math.min(spans.length - 1, Math.max(0, index + direction))];
  if (!next) return undefined;
  event.preventDefault();
  next.tabIndex = -1;
  return next.focus();
}
