/** Tokens over time, a line for each lane of the race. uPlot draws. */

import { colourOf } from "../drafting/sources.js";
import { paced } from "../elements/pace.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 150;
const REST = 120; // milliseconds between two drawings

export class RaceChart {
  #chart = null;
  #data = [[0], [0], [0]];
  #drawSoon = paced(() => this.#draw(), REST);

  constructor(container) {
    this.container = container;
    new ResizeObserver(() => this.#draw()).observe(container);
    document.addEventListener("theme-change", () => this.#chart?.redraw());
  }

  /** lanes: for each a list of {ms, tokens}, as they arrived. */
  show(lanes) {
    const tables = lanes.map((arrivals) => [
      [0, ...arrivals.map(({ ms }) => ms / 1000)],
      [0, ...arrivals.map(({ tokens }) => tokens)],
    ]);
    this.#data = uPlot.join(tables);
    this.#drawSoon();
  }

  #draw() {
    const width = this.container.clientWidth;
    if (!width) return;
    this.#chart ??= this.#make(width);
    if (this.#chart.width !== width) this.#chart.setSize({ width, height: HEIGHT });
    this.#chart.setData(this.#data);
  }

  #make(width) {
    const axis = {
      stroke: () => colourOf("muted"),
      font: "11px Inter, system-ui, sans-serif",
      grid: { stroke: () => colourOf("line"), width: 1 },
      ticks: { show: false },
    };
    const line = { width: 2, points: { show: false }, spanGaps: true };
    const options = {
      width,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_, __, most) => [0, Math.max(0.2, most ?? 0)] },
        y: { range: (_, __, most) => [0, Math.max(16, most ?? 0)] },
      },
      axes: [
        { ...axis, size: 24, gap: 4, values: (_, ticks) => ticks.map((tick) => `${+tick.toFixed(2)} s`) },
        { ...axis, size: 36, gap: 4, space: 30 },
      ],
      series: [
        {},
        { ...line, label: "Plain", stroke: () => colourOf("plain"), dash: [5, 4] },
        { ...line, label: "Drafted", stroke: () => colourOf("accent") },
      ],
    };
    return new uPlot(options, this.#data, this.container);
  }
}
