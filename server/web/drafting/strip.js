/** The live strip: a bar for every step, as high as the tokens it gave, in the colours of their sources.
 *
 * A click, or the arrow keys, chooses a step. uPlot draws; this module owns the data and the choice.
 */

import { plural } from "../elements/figures.js";
import { paced } from "../elements/pace.js";
import uPlot from "../vendor/uplot.js";
import { SOURCES, colourOf } from "./sources.js";

const WINDOW = 160; // steps that are in sight at most
const FEWEST = 40; // steps that there is room for at least, so that the first bars are not very wide
const HEIGHT = 96;
const REST = 100; // milliseconds between two drawings
const STACK = SOURCES.map((source) => source.id); // from the bottom up: drafted sources, the bonus on top

export class Strip {
  #columns = [[], ...STACK.map(() => [])]; // step numbers, then for each source the tokens up to and with it
  #chart = null;
  #drawSoon = paced(() => this.#draw(), REST);
  chosen = null;

  /** onChoose: called with the step's number whenever the choice changes. */
  constructor(container, onChoose) {
    this.container = container;
    this.onChoose = onChoose;
    Object.assign(container, { tabIndex: 0, role: "slider", ariaLabel: "Step", ariaValueMin: "1" });
    container.addEventListener("keydown", (event) => this.#onKey(event));
    container.addEventListener("click", (event) => this.#onClick(event));
    new ResizeObserver(() => this.#resize()).observe(container);
    this.reset();
  }

  reset(trace = null) {
    this.trace = trace;
    this.chosen = null;
    this.#columns = [[], ...STACK.map(() => [])];
    this.#describe();
    this.update();
  }

  /** Reads the steps that are new in the trace, and draws them soon. */
  update() {
    const steps = this.trace?.steps ?? [];
    const [numbers, ...heights] = this.#columns;
    const from = Math.max(0, numbers.length - 1); // the last step may have got more tokens since
    for (let index = from; index < steps.length; index++) {
      const counts = countBySource(this.trace.tokensOf(steps[index].step));
      numbers[index] = index + 1;
      let sum = 0;
      STACK.forEach((id, row) => (heights[row][index] = sum += counts.get(id) ?? 0));
    }
    this.container.ariaValueMax = String(Math.max(1, steps.length));
    this.#drawSoon();
  }

  choose(number) {
    if (!this.trace?.steps.length) return;
    this.chosen = Math.min(Math.max(1, number), this.trace.steps.length);
    this.#describe();
    this.#draw();
    this.onChoose(this.chosen);
  }

  #describe() {
    const step = this.chosen === null ? null : this.trace.step(this.chosen);
    this.container.ariaValueNow = String(this.chosen ?? 1);
    const tokens = step ? plural(this.trace.tokensOf(this.chosen).length, "token") : "";
    const words = step ? `step ${this.chosen}: ${tokens}, ${step.accepted} of ${step.drafted} drafted accepted` : "none chosen";
    this.container.ariaValueText = words;
  }

  #onKey(event) {
    const count = this.trace?.steps.length ?? 0;
    const here = this.chosen ?? 0;
    const target = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 1, End: count }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.choose(target);
  }

  #onClick(event) {
    if (!this.#chart || !this.trace?.steps.length) return;
    const left = event.clientX - this.#chart.over.getBoundingClientRect().left;
    this.choose(Math.round(this.#chart.posToVal(left, "x")));
  }

  #range() {
    const count = this.#columns[0].length;
    const end = Math.max(FEWEST, count);
    const first = Math.max(1, Math.min(end - WINDOW + 1, this.chosen === null ? Infinity : this.chosen - WINDOW / 4));
    return [first - 0.6, Math.min(end, first + WINDOW - 1) + 0.6];
  }

  #resize() {
    const width = this.container.clientWidth;
    if (width) this.#chart?.setSize({ width, height: HEIGHT });
    if (width && !this.#chart) this.update();
  }

  #draw() {
    if (!this.container.clientWidth) return;
    this.#chart ??= this.#make();
    const [numbers, ...heights] = this.#columns;
    this.#chart.setData([numbers, ...heights.toReversed()]);
  }

  #make() {
    const line = () => colourOf("line");
    const axis = { stroke: () => colourOf("muted"), font: "11px Inter, system-ui, sans-serif", ticks: { show: false } };
    const series = STACK.toReversed().map((id) => ({
      fill: () => colourOf(id),
      stroke: () => colourOf(id),
      width: 0,
      points: { show: false },
      paths: uPlot.paths.bars({ size: [0.82, 14], align: 0 }),
    }));
    const options = {
      width: this.container.clientWidth,
      height: HEIGHT,
      padding: [6, 4, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: () => this.#range() }, y: { range: (_, __, most) => [0, Math.max(4, most ?? 0) + 0.3] } },
      axes: [
        { ...axis, size: 20, gap: 2, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100] },
        { ...axis, size: 26, gap: 3, grid: { stroke: line, width: 1 }, incrs: [1, 2, 5, 10, 20], space: 22 },
      ],
      series: [{}, ...series],
      hooks: { draw: [(chart) => this.#markChosen(chart)] },
    };
    return new uPlot(options, [[], ...STACK.map(() => [])], this.container);
  }

  #markChosen(chart) {
    if (this.chosen === null) return;
    const { ctx, bbox } = chart;
    const [left, right] = [this.chosen - 0.5, this.chosen + 0.5].map((value) => chart.valToPos(value, "x", true));
    ctx.save();
    ctx.strokeStyle = colourOf("ink");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.strokeRect(left, bbox.top + 1, right - left, bbox.height - 1);
    ctx.restore();
  }

  /** Colours follow the theme. */
  redraw() {
    this.#chart?.redraw();
  }
}

function countBySource(tokens) {
  const counts = new Map();
  for (const { source } of tokens) counts.set(source, (counts.get(source) ?? 0) + 1);
  return counts;
}
