/** The result of a race: whether the two replies are the same tokens, and how much faster one was. Pure. */

import { clock, plural } from "../elements/figures.js";

/** {isSame, ratio, headline, details}; of two generations that ran to their end. */
export function verdict(plain, drafted) {
  const at = firstDifference(plain.trace.tokens, drafted.trace.tokens);
  const isSame = at === null && plain.text === drafted.text && plain.finishReason === drafted.finishReason;
  const ratio = plain.milliseconds / drafted.milliseconds;
  const times = `Plain ${clock(plain.milliseconds)} s, drafted ${clock(drafted.milliseconds)} s.`;
  const forwards = `${plural(plain.trace.steps.length, "forward")} of the model against ${drafted.trace.steps.length}.`;
  if (!isSame) {
    return { isSame, ratio, headline: "The texts differ", details: `${whereFrom(plain, drafted, at)} ${times}` };
  }
  const count = plural(plain.trace.tokens.length, "token");
  const details = `${count} compared one by one, none differs. ${times} ${forwards}`;
  return { isSame, ratio, headline: `Same text, ${sooner(ratio)}`, details };
}

function sooner(ratio) {
  if (ratio >= 1.05) return `${ratio.toFixed(1)} times sooner`;
  if (ratio > 0.95) return "no sooner: drafting did not pay here";
  return `${(1 / ratio).toFixed(1)} times later: drafting did not pay here`;
}

/** The index of the first token that is not in both, or null. */
export function firstDifference(one, other) {
  const length = Math.max(one.length, other.length);
  for (let index = 0; index < length; index++) if (one[index]?.id !== other[index]?.id) return index;
  return null;
}

function whereFrom(plain, drafted, at) {
  if (at === null) return "They have the same tokens and end differently.";
  const around = ({ trace }) => JSON.stringify(trace.tokens.slice(at, at + 6).map(({ text }) => text).join(""));
  return `From token ${at + 1} on plain has ${around(plain)}, drafted ${around(drafted)}.`;
}
