/** Replays a race: both lanes side by side, at their recorded speed. */

/** Resolves when both have ended or `signal` is aborted; then everything is shown. */
export async function replay(generations, lanes, chart, signal) {
  const longest = Math.max(...generations.map(({ milliseconds }) => milliseconds));
  generations.forEach((generation, index) => {
    const method = lanes[index].root.querySelector('[data-part="method"]').textContent;
    lanes[index].follow(generation, { method, state: "running", finish: lanes[index].finish });
  });
  const started = performance.now();
  let now = 0;
  while (now < longest) {
    await new Promise(requestAnimationFrame);
    now = signal.aborted ? longest : performance.now() - started;
    generations.forEach((generation, index) => showAt(generation, lanes[index], now));
    chart.show(generations.map(({ arrivals }) => arrivals.filter(({ ms }) => ms <= now)));
  }
}

function showAt(generation, lane, now) {
  const { arrivals, milliseconds, trace } = generation;
  const hasEnded = now >= milliseconds;
  const known = arrivals.findLast(({ ms }) => ms <= now)?.tokens ?? 0;
  lane.show(Math.min(now, milliseconds), hasEnded ? trace.tokens.length : known);
  if (hasEnded && lane.root.dataset.state !== "done") lane.say("done");
}
