/** Drawing with pauses. The model may run on the same processor as this page: what the page takes, the model lacks. */

/** A function that sees to it that `draw` is called soon, but never within `rest` milliseconds of the last time. */
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
