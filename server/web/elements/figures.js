/** Numbers as people read them. Pure. */

export function percent(share) {
  if (share >= 0.9995) return "100%";
  if (share < 0.0005) return "<0.1%";
  return `${(share * 100).toFixed(share < 0.1 || share > 0.99 ? 1 : 0)}%`;
}

/** Seconds of a clock: 0.482 s. */
export function clock(milliseconds) {
  return (milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1);
}

export function fixed(number, digits) {
  return number === null || number === undefined ? "–" : number.toFixed(digits);
}

export function rate(number) {
  return number === null ? "–" : number < 100 ? number.toFixed(1) : number.toFixed(0);
}

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** An amount of memory: 1.5 GiB, 23 MiB. */
export function gibibytes(bytes) {
  return bytes < 2 ** 30 ? `${Math.ceil(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
