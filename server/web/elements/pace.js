/** Limits how often the page draws: the model may run on the same processor, and drawing takes its time. */

/** A function that has `draw` called soon, but never within `rest` milliseconds of the last call. */
export function paced(draw, rest) {
  let isWaiting = false;
  let notBefore = 0;
  const run = () => {
    isWaiting = false;
    draw();
    notBefore = performance.now() + rest;
  };
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    setTimeout(() => requestAnimationFrame(run), Math.max(0, notBefore - performance.now()));
  };
}
