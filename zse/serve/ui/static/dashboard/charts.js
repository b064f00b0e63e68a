// Charts in the colours of the theme, as wide as their place.
const SAMPLES = 120, HEIGHT = 160;
const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 14400]; // seconds between two marks

/** Times of the day as logs have them, in every language; seconds where marks are that close. */
const clock = (plot, marks, axis, space, step) => marks.map((at) => new Date(at * 1000).toTimeString().slice(0, step < 60 ? 8 : 5));

const COLORS = ["--accent", "--second"];

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A chart of lines over time; `range` fixes its height. */
export class Chart {
  constructor(id, labels, range) {
    this.place = document.getElementById(id);
    this.labels = labels;
    this.range = range;
    this.data = [[], ...labels.map(() => [])];
    this.build();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.place);
    document.addEventListener("zse:theme", () => { this.plot.destroy(); this.build(); });
  }

  size() { return { width: Math.max(80, this.place.clientWidth), height: HEIGHT }; }

  build() {
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const top = (plot, least, most) => [0, Math.max(1, most * 1.1)];
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: this.labels.length > 1, live: false },
      cursor: { show: false },
      scales: { x: this.times ? { range: this.times } : {}, y: { range: this.range ?? top } },
      axes: [{ ...axis, space: 70, incrs: STEPS, values: clock }, { ...axis, size: 46 }],
      series: [{}, ...this.labels.map((label, index) => ({
        label, stroke: color(COLORS[index]), width: 1.5, points: { show: false },
        ...(index ? {} : { fill: color("--fill") }),
      }))],
    }, this.data, this.place);
  }

  set(data) { this.data = data; this.plot.setData(data); }
}

/** A chart of the last samples, of one a second; it is as long from the first one on. */
export class LiveChart extends Chart {
  times(plot, first, last) { return [last - SAMPLES, last]; }

  add(time, values) {
    this.set([time, ...values].map((value, index) => [...this.data[index], value].slice(-SAMPLES)));
  }
}
