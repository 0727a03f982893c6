"use strict";
// What all charts share: elements, scales, figures as text, and reading values by pointer or arrow keys.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const colour = (index) => `var(--series-${index % 10})`;
const resolved = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function scaled(value, units, step) {
  let i = 0;
  while (Math.abs(value) >= step && i < units.length - 1) { value /= step; i++; }
  return `${digits(value, 3)} ${units[i]}`;
}

function digits(value, count) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  const shown = Math.abs(value) >= 10 ** count ? Math.round(value) : Number(value.toPrecision(count));
  return shown.toLocaleString("en", { maximumFractionDigits: 10 });
}

const UNITS = {
  number: (value) => digits(value, 4),
  percent: (value) => `${value.toFixed(2)} %`,
  count: (value) => digits(value, 4),
  decibel: (value) => `${value.toFixed(2)} dB`,
  bytes: (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000),
  seconds: (value) => value >= 120 ? `${digits(value / 60, 3)} min` : value >= 1 || !value ? `${digits(value, 3)} s` : `${digits(1000 * value, 3)} ms`,
};
// How an axis up to `high` is labelled: how much one of its units is, and the text of a tick.
function axisUnit(unit, high) {
  if (unit === "seconds") {
    const [by, name] = high >= 7200 ? [3600, "h"] : high >= 240 ? [60, "min"] : high >= 1 ? [1, "s"] : [1e-3, "ms"];
    return { by, text: (value) => `${digits(value / by, 4)} ${name}` };
  }
  const text = { percent: (value) => `${digits(value, 4)} %`, bytes: UNITS.bytes }[unit];
  return { by: 1, text: text || ((value) => digits(value, 4)) };
}

// Round numbers that cover low…high in about `count` steps.
function ticks(low, high, count, whole = false) {
  if (low === high) { const by = Math.abs(low) * 0.1 || 1; low -= by; high += by; }
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return { step, found };
}

class Chart {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.hidden = new Set();
    this.cursor = null;
    const title = figure.querySelector("figcaption b").textContent;
    this.plot = element("div", {
      class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart",
      "aria-label": `${title}. Arrow keys read the values.`,
    });
    this.tip = element("div", { class: "tip", role: "status", hidden: "" });
    this.svg = shape("svg", { "aria-hidden": "true" });
    if (this.painted) this.plot.append(this.canvas = element("canvas", { "aria-hidden": "true" }));
    this.plot.append(this.svg, this.tip);
    const legend = this.legend();
    if (legend.length) figure.append(element("div", { class: "legend" }, ...legend));
    figure.append(this.plot);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  listen() {
    const plot = this.plot;
    const at = (event) => {
      const box = plot.getBoundingClientRect();
      this.show(this.pick(event.clientX - box.left, event.clientY - box.top));
    };
    plot.addEventListener("pointermove", at);
    plot.addEventListener("pointerdown", at);
    plot.addEventListener("pointerleave", () => this.show(null));
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) this.show(this.cursor || this.step(null, 0, 0)); });
    plot.addEventListener("blur", () => this.show(null));
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0] }[event.key];
      if (event.key === "Escape") this.show(null);
      if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      this.show(this.step(this.cursor, ...by));
    });
  }

  // A button for each series that shows and hides it.
  toggles(names, values = []) {
    return names.length < 2 && !this.spec.named ? [] : names.map((name, i) => {
      const button = element("button", { type: "button", "aria-pressed": "true" },
        element("i", { style: `background:${colour(this.colourOf(i))}` }), name);
      if (values[i]) button.append(element("span", {}, values[i]));
      button.addEventListener("click", () => {
        this.hidden.has(i) ? this.hidden.delete(i) : this.hidden.add(i);
        button.setAttribute("aria-pressed", String(!this.hidden.has(i)));
        this.draw();
      });
      return button;
    });
  }

  legend() { return []; }
  colourOf(i) { return i; }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    this.height = this.heightFor(this.width);
    this.plot.style.height = `${this.height}px`;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    if (this.canvas) {
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.brush = this.canvas.getContext("2d");
      this.brush.scale(ratio, ratio);
    }
    this.render();
    this.marks = shape("g", { class: "marks" });
    this.svg.append(this.marks);
    if (this.cursor) this.show(this.cursor);
  }

  // The horizontal axis of `low`…`high`, with `place` giving its pixels.
  axisBelow(low, high, place, { label, unit = "count", whole = false, baseline }) {
    const count = Math.max(2, Math.floor(this.width / 65)), { by, text } = axisUnit(unit, high);
    for (const value of ticks(low / by, high / by, count, whole).found.map((tick) => tick * by)) {
      this.svg.append(shape("text", { x: place(value), y: baseline + 16, class: "tick", "text-anchor": "middle" }, text(value)));
      this.svg.append(shape("line", { x1: place(value), x2: place(value), y1: baseline, y2: baseline + 4, class: "axis" }));
    }
    this.svg.append(shape("text", { x: this.width - 4, y: baseline + 31, class: "tick", "text-anchor": "end" }, label));
  }

  show(cursor) {
    this.cursor = cursor;
    if (!this.marks) return;
    this.marks.replaceChildren();
    this.tip.hidden = !cursor;
    if (!cursor) { this.unmark?.(); return; }
    const told = this.mark(cursor);
    this.tip.replaceChildren(element("b", {}, told.title), ...told.rows.map(([tint, name, value]) => {
      const row = element("div", {}, element("i", tint ? { style: `background:${tint}` } : { class: "none" }), element("span", {}, name));
      if (value !== undefined) row.append(element("strong", {}, value));
      return row;
    }));
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const right = told.x + 14 + w <= this.width;
    const left = right ? told.x + 14 : Math.max(0, told.x - 14 - w);
    this.tip.style.left = `${Math.min(left, Math.max(0, this.width - w))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(told.y - h / 2, this.height - h))}px`;
  }
}

const KINDS = {};

// Buttons at the top of the page that say what its curves are drawn over.
function offerAxes(charts) {
  if (!charts.length) return;
  const buttons = AXES.map((axis) => {
    const button = element("button", { type: "button", "aria-pressed": String(axis === ROUNDS) }, axis.name);
    button.addEventListener("click", () => {
      buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      charts.forEach((chart) => chart.drawOver(axis));
    });
    return button;
  });
  document.querySelector("header").append(element("div", { class: "over", role: "group", "aria-label": "Horizontal axis of the curves" }, "Curves over ", ...buttons));
}

function start() {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [...document.querySelectorAll("figure[data-chart]")].map((figure) => {
    const spec = charts[figure.dataset.chart];
    return new KINDS[spec.kind](figure, spec);
  });
  offerAxes(drawn.filter((chart) => chart.movable));
  // Painted pixels do not follow the colour scheme by themselves.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((chart) => chart.draw()));
}
