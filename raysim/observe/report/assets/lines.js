// Values over rounds: lines, with a band where there are several seeds; and bars stacked on each other.

const ROUNDS = { name: "rounds", label: "round", unit: "count" };
const AXES = [ROUNDS, { name: "seconds", label: "time in rounds", unit: "seconds" }, { name: "bytes", label: "sent up and down", unit: "bytes" }];

function median(values) {
  const sorted = values.filter((v) => v !== null).sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : sorted.length ? (sorted[half - 1] + sorted[half]) / 2 : undefined;
}

class Axes extends Chart {
  heightFor(width) { return Math.round(Math.min(this.spec.tall ? 320 : 220, Math.max(190, width * 0.5))); }

  shown() { return this.spec.series.map((series, i) => ({ ...series, i, tint: colour(this.colourOf(i)) })).filter((s) => !this.hidden.has(s.i)); }

  colourOf(i) { return this.spec.series[i].colour ?? i; }

  legend() {
    const quoted = this.spec.legend === "median" ? median : (y) => y.findLast((v) => v !== null);
    const values = this.spec.series.map((s) => quoted(s.y));
    return this.toggles(this.spec.series.map((s) => s.name), values.map((v) => v === undefined ? "" : UNITS[this.spec.unit](v)));
  }

  // Grid lines and labels for low…high; sets this.left, this.top, this.bottom and this.py.
  upright(low, high) {
    this.top = 10;
    this.bottom = this.height - 36;
    const { by, text } = axisUnit(this.spec.unit, high);
    const step = by * ticks(low / by, high / by, Math.max(2, this.height / 42)).step;
    low = Math.floor(low / step + 1e-9) * step;
    high = Math.ceil(high / step - 1e-9) * step;
    if (low === high) high = low + step;
    const values = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
    const texts = values.map(text);
    this.left = 12 + 6.6 * Math.max(...texts.map((text) => text.length));
    this.py = (value) => this.bottom - (value - low) / (high - low) * (this.bottom - this.top);
    values.forEach((value, i) => {
      const y = this.py(value);
      this.svg.append(shape("line", { x1: this.left, x2: this.width - 4, y1: y, y2: y, class: i ? "grid" : "axis" }));
      this.svg.append(shape("text", { x: this.left - 6, y: y + 4, class: "tick", "text-anchor": "end" }, texts[i]));
    });
  }

  along(low, high, margin = 10, axis = ROUNDS) {
    this.px = (x) => this.left + margin + (high === low ? 0.5 : (x - low) / (high - low)) * (this.width - 4 - this.left - 2 * margin);
    this.axisBelow(low, high, this.px, { label: axis.label, unit: axis.unit, whole: axis === ROUNDS, baseline: this.bottom });
  }
}

KINDS.lines = class Lines extends Axes {
  // Whether it can be drawn over seconds and bytes as well as over rounds.
  get movable() { return this.spec.series.every((s) => s.at); }

  drawOver(axis) {
    this.over = axis;
    this.show(null);
    this.draw();
  }

  shown() { return super.shown().map((s) => this.axis === ROUNDS ? s : { ...s, x: s.at[this.axis.name] }); }

  render() {
    this.axis = this.movable && this.over || ROUNDS;
    const all = this.spec.series;
    this.xs = [...new Set(all.flatMap((s) => this.axis === ROUNDS ? s.x : s.at[this.axis.name]))].sort((a, b) => a - b);
    const shown = this.shown();
    const values = (shown.length ? shown : all).flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]).filter((v) => v !== null);
    this.upright(Math.min(...values), Math.max(...values));
    this.along(this.xs[0], this.xs[this.xs.length - 1], 10, this.axis);
    for (const s of shown) {
      if (s.low) this.svg.append(shape("path", { d: this.band(s), class: "band", style: `fill:${s.tint}` }));
    }
    for (const s of shown) {
      this.svg.append(shape("path", { d: this.path(s.x, s.y), class: "line", style: `stroke:${s.tint}` }));
      if (s.x.length <= 30) {
        s.x.forEach((x, k) => s.y[k] !== null && this.svg.append(shape("circle", { cx: this.px(x), cy: this.py(s.y[k]), r: 2.5, style: `fill:${s.tint}` })));
      }
    }
  }

  path(x, y) {
    let d = "", pen = false;
    x.forEach((at, k) => {
      if (y[k] === null) { pen = false; return; }
      d += `${pen ? "L" : "M"}${this.px(at).toFixed(1)},${this.py(y[k]).toFixed(1)}`;
      pen = true;
    });
    return d;
  }

  band(s) {
    const at = (values) => s.x.map((x, k) => values[k] === null ? null : `${this.px(x).toFixed(1)},${this.py(values[k]).toFixed(1)}`).filter(Boolean);
    return `M${[...at(s.high), ...at(s.low).reverse()].join("L")}Z`;
  }

  pick(x) {
    let best = 0;
    this.xs.forEach((value, i) => { if (Math.abs(this.px(value) - x) < Math.abs(this.px(this.xs[best]) - x)) best = i; });
    return { i: best };
  }

  step(cursor, dx) {
    const last = this.xs.length - 1;
    return { i: Math.max(0, Math.min(last, cursor ? cursor.i + dx : last)) };
  }

  mark({ i }) {
    const at = this.xs[i], x = this.px(at);
    this.marks.append(shape("line", { x1: x, x2: x, y1: this.top, y2: this.bottom, class: "cross" }));
    const rows = [];
    let high = this.bottom;
    for (const s of this.shown()) {
      const k = this.axis === ROUNDS ? s.x.indexOf(at) : s.x.findLastIndex((place) => place <= at);
      if (k < 0 || s.y[k] === null) continue;
      const y = this.py(s.y[k]);
      high = Math.min(high, y);
      this.marks.append(shape("circle", { cx: this.px(s.x[k]), cy: y, r: 4.5, class: "dot", style: `fill:${s.tint}` }));
      const spread = s.low && s.high[k] !== null ? ` ± ${UNITS[this.spec.unit](s.high[k] - s.y[k])}` : "";
      const runs = s.n ? ` (${s.n[k]} runs)` : "";
      rows.push([s.tint, s.name, UNITS[this.spec.unit](s.y[k]) + spread + runs]);
    }
    const title = this.axis === ROUNDS ? `round ${at}` : `${this.axis.label}: ${UNITS[this.axis.unit](at)}`;
    return { x, y: high, title, rows };
  }
};

KINDS.bars = class Bars extends Axes {
  render() {
    const { bins } = this.spec, shown = this.shown();
    const totals = bins.map((_, k) => shown.reduce((sum, s) => sum + (s.y[k] || 0), 0));
    this.upright(0, Math.max(...totals, 0) || 1);
    const wide = Math.max(1, Math.min(28, (this.width - this.left - 24) / bins.length * 0.78));
    this.along(bins[0][0], bins[bins.length - 1][1], 6 + wide / 2);
    this.middle = (k) => this.px((bins[k][0] + bins[k][1]) / 2);
    this.wide = wide;
    bins.forEach((_, k) => {
      let base = 0;
      for (const s of shown) {
        const value = s.y[k] || 0;
        if (!value) continue;
        const y = this.py(base + value);
        this.svg.append(shape("rect", { x: (this.middle(k) - wide / 2).toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: Math.max(0.5, this.py(base) - y).toFixed(1), style: `fill:${s.tint}` }));
        base += value;
      }
    });
  }

  legend() { return this.toggles(this.spec.series.map((s) => s.name)); }

  pick(x) {
    let best = 0;
    this.spec.bins.forEach((_, k) => { if (Math.abs(this.middle(k) - x) < Math.abs(this.middle(best) - x)) best = k; });
    return { k: best };
  }

  step(cursor, dx) {
    const last = this.spec.bins.length - 1;
    return { k: Math.max(0, Math.min(last, cursor ? cursor.k + dx : last)) };
  }

  mark({ k }) {
    const x = this.middle(k), [from, to] = this.spec.bins[k];
    this.marks.append(shape("rect", { x: x - this.wide / 2 - 2, width: this.wide + 4, y: this.top, height: this.bottom - this.top, class: "shade" }));
    const shown = this.shown().filter((s) => s.y[k]);
    const rows = shown.map((s) => [s.tint, s.name, UNITS[this.spec.unit](s.y[k])]);
    if (shown.length !== 1) rows.push([null, "together", UNITS[this.spec.unit](shown.reduce((sum, s) => sum + s.y[k], 0))]);
    return { x, y: this.top + 30, title: from === to ? `${this.spec.x} ${from}` : `${this.spec.x}s ${from} to ${to}, mean`, rows };
  }
};
