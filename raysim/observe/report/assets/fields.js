// Dense pictures on a canvas: labels over clients, the t-SNE map, and when which actor worked.

function ramp() {
  const ends = ["--heat-low", "--heat-middle", "--heat-high"].map((name) => resolved(name).match(/\w\w/g).map((h) => parseInt(h, 16)));
  return (share) => {
    const [from, to] = share < 0.5 ? [ends[0], ends[1]] : [ends[1], ends[2]];
    const f = share < 0.5 ? share * 2 : share * 2 - 1;
    return `rgb(${from.map((v, i) => Math.round(v + (to[i] - v) * f)).join(" ")})`;
  };
}

const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

KINDS.heat = class Heat extends Chart {
  get painted() { return true; }

  heightFor() {
    const rows = this.spec.rows.length;
    this.cell = Math.max(3, Math.min(22, 420 / rows));
    return Math.round(72 + this.cell * rows + 38);
  }

  render() {
    const { rows, columns, values, sizes } = this.spec;
    const letters = this.width < 500 ? 9 : 18;
    const every = Math.ceil(12 / this.cell);
    this.left = 14 + 6.6 * Math.min(letters, Math.max(...rows.map((name) => name.length), `${Math.max(...sizes)}`.length + 2));
    this.top = 72;
    this.base = 62;
    this.step_ = (this.width - this.left - 4) / columns.length;
    this.bottom = this.top + this.cell * rows.length;
    const filled = values.flat().filter((v) => v > 0);
    const low = Math.log(Math.min(...filled.length ? filled : [1])), high = Math.log(Math.max(...filled.length ? filled : [1]));
    const tint = ramp(), brush = this.brush, gap = this.step_ > 6 ? 1 : 0;
    brush.fillStyle = resolved("--empty");
    brush.fillRect(this.left, this.top, this.width - this.left - 4, this.cell * rows.length);
    values.forEach((column, i) => column.forEach((value, j) => {
      if (!value) return;
      brush.fillStyle = tint(high > low ? (Math.log(value) - low) / (high - low) : 1);
      brush.fillRect(this.left + i * this.step_, this.top + j * this.cell, Math.max(this.step_ - gap, 0.6), this.cell - (this.cell > 6 ? 1 : 0));
    }));
    const most = Math.max(...sizes);
    brush.fillStyle = resolved("--series-0");
    sizes.forEach((size, i) => {
      const tall = size / most * 48;
      brush.fillRect(this.left + i * this.step_, this.base - tall, Math.max(this.step_ - gap, 0.6), tall);
    });
    this.svg.append(shape("text", { x: this.left - 6, y: 20, class: "tick", "text-anchor": "end" }, UNITS.count(most)));
    this.svg.append(shape("text", { x: this.left - 6, y: this.base, class: "tick", "text-anchor": "end" }, "0"));
    this.svg.append(shape("line", { x1: this.left, x2: this.width - 4, y1: this.base, y2: this.base, class: "axis" }));
    rows.forEach((name, j) => {
      if (j % every) return;
      this.svg.append(shape("text", { x: this.left - 6, y: this.top + (j + 0.5) * this.cell + 4, class: "tick", "text-anchor": "end" }, short(name, letters)));
    });
    const place = (value) => this.left + (value + 0.5) * this.step_;
    if (this.spec.sorted) this.svg.append(shape("text", { x: this.width - 4, y: this.bottom + 20, class: "tick", "text-anchor": "end" }, "clients, by their largest class"));
    else this.axisBelow(0, columns.length - 1, place, { label: "client", whole: true, baseline: this.bottom });
  }

  pick(x, y) {
    const i = Math.floor((x - this.left) / this.step_), j = Math.floor((y - this.top) / this.cell);
    if (i < 0 || i >= this.spec.columns.length) return null;
    return { i, j: j >= 0 && j < this.spec.rows.length ? j : null };
  }

  step(cursor, dx, dy) {
    if (!cursor) return { i: 0, j: 0 };
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    return { i: clamp(cursor.i + dx, this.spec.columns.length - 1), j: clamp((cursor.j ?? 0) + dy, this.spec.rows.length - 1) };
  }

  mark({ i, j }) {
    const { columns, rows, values, sizes } = this.spec;
    const x = this.left + i * this.step_;
    this.marks.append(shape("rect", { x, width: Math.max(this.step_, 1), y: 8, height: this.bottom - 8, class: "shade" }));
    const lines = [];
    if (j !== null) {
      this.marks.append(shape("rect", { x: x - 1, y: this.top + j * this.cell - 1, width: this.step_ + 1, height: this.cell + 1, class: "ring" }));
      lines.push([null, rows[j], UNITS.count(values[i][j])]);
    } else {
      const best = values[i].map((value, row) => [value, row]).filter(([value]) => value).sort((a, b) => b[0] - a[0]);
      best.slice(0, 5).forEach(([value, row]) => lines.push([null, rows[row], UNITS.count(value)]));
      if (best.length > 5) lines.push([null, `${best.length - 5} more classes`, ""]);
    }
    lines.push([resolved("--series-0"), "all classes", UNITS.count(sizes[i])]);
    return { x: x + this.step_ / 2, y: j === null ? 60 : this.top + (j + 0.5) * this.cell, title: columns[i], rows: lines };
  }
};

KINDS.scatter = class Scatter extends Chart {
  get painted() { return true; }

  heightFor(width) {
    const { panels } = this.spec;
    this.across = Math.max(1, Math.min(panels.length, Math.floor(width / 260)));
    this.side = Math.min(width / this.across, 380);
    return Math.round(Math.ceil(panels.length / this.across) * (this.side + 26));
  }

  // A button for each class: those pressed last are the only ones in colour.
  legend() {
    const { names, present } = this.spec;
    if (present.length > 20) return [];
    return present.map((label, i) => {
      const button = element("button", { type: "button", "aria-pressed": "false" }, element("i", { style: `background:${colour(i)}` }), short(names[label], 20));
      button.addEventListener("click", () => {
        const on = this.only === label;
        this.figure.querySelectorAll(".legend button").forEach((other) => other.setAttribute("aria-pressed", "false"));
        button.setAttribute("aria-pressed", String(!on));
        this.only = on ? undefined : label;
        this.draw();
      });
      return button;
    });
  }

  render() {
    const { panels, low, high } = this.spec;
    const wide = [0, 1].map((i) => high[i] - low[i] || 1);
    this.at = (panel, k) => {
      const { x, y } = panels[panel], inner = this.side - 24;
      const left = (panel % this.across) * this.side + 12, top = Math.floor(panel / this.across) * (this.side + 26) + 26;
      return [left + (x[k] - low[0]) / wide[0] * inner, top + 8 + (high[1] - y[k]) / wide[1] * inner];
    };
    panels.forEach((panel, p) => {
      const left = (p % this.across) * this.side, top = Math.floor(p / this.across) * (this.side + 26);
      this.svg.append(shape("text", { x: left + 4, y: top + 16, class: "panel" }, short(`${panel.name} (${UNITS.count(panel.x.length)})`, Math.floor(this.side / 7))));
      this.svg.append(shape("rect", { x: left + 2, y: top + 26, width: this.side - 8, height: this.side - 8, class: "frame" }));
    });
    this.paint(this.only);
  }

  paint(only) {
    const { panels, present } = this.spec, brush = this.brush, pale = resolved("--pale");
    const tints = present.map((_, i) => resolved(`--series-${i % 10}`));
    brush.clearRect(0, 0, this.width, this.height);
    for (const front of [false, true]) panels.forEach((panel, p) => panel.label.forEach((label, k) => {
      const chosen = only === undefined || label === only;
      if (chosen !== front) return;
      const [x, y] = this.at(p, k);
      brush.fillStyle = chosen ? tints[present.indexOf(label)] : pale;
      brush.beginPath();
      brush.arc(x, y, chosen && only !== undefined ? 3 : 2.2, 0, 7);
      brush.fill();
    }));
  }

  unmark() { if (this.painted && this.brush) this.paint(this.only); }

  pick(x, y) {
    let best = null, nearest = 20 ** 2;
    this.spec.panels.forEach((panel, p) => panel.label.forEach((label, k) => {
      const [px, py] = this.at(p, k), apart = (px - x) ** 2 + (py - y) ** 2;
      if (apart < nearest) { nearest = apart; best = { p, label, k }; }
    }));
    return best;
  }

  step(cursor, dx, dy) {
    const { panels, present } = this.spec;
    const i = cursor ? present.indexOf(cursor.label) + dx : 0, p = Math.max(0, Math.min(panels.length - 1, (cursor?.p ?? 0) + dy));
    return { p, label: present[Math.max(0, Math.min(present.length - 1, i))] };
  }

  mark({ p, label, k }) {
    const { panels, names, present } = this.spec;
    this.paint(label);
    const members = panels[p].label.flatMap((l, m) => l === label ? [m] : []);
    const [x, y] = members.length ? this.at(p, k ?? members[0]) : [this.side / 2, this.side / 2];
    if (k !== undefined) this.marks.append(shape("circle", { cx: x, cy: y, r: 6, class: "ring" }));
    const rows = panels.map((panel) => [colour(present.indexOf(label)), panel.name, UNITS.count(panel.label.filter((l) => l === label).length)]);
    return { x, y, title: names[label], rows };
  }
};

KINDS.strip = class Strip extends Chart {
  get painted() { return true; }

  heightFor() {
    this.cell = Math.max(5, Math.min(24, 360 / this.spec.rows.length));
    return Math.round(8 + this.cell * this.spec.rows.length + 40);
  }

  legend() { return this.toggles(this.spec.phases); }
  colourOf(i) { return this.spec.phases[i] === "lost" ? 3 : [0, 1, 2, 4, 5, 6, 7, 8, 9][i % 9]; }

  render() {
    const { rows, spans, end, rounds } = this.spec, brush = this.brush;
    this.left = 12 + 6.6 * Math.max(...rows.map((name) => name.length));
    this.top = 8;
    this.bottom = this.top + this.cell * rows.length;
    this.px = (time) => this.left + time / end * (this.width - this.left - 4);
    const tints = this.spec.phases.map((_, i) => resolved(`--series-${this.colourOf(i)}`));
    brush.fillStyle = resolved("--empty");
    rows.forEach((_, j) => brush.fillRect(this.left, this.top + j * this.cell, this.width - this.left - 4, this.cell - 1));
    spans.forEach((row, j) => row.forEach(([from, to, phase, share]) => {
      if (this.hidden.has(phase)) return;
      brush.globalAlpha = 0.15 + 0.85 * share;
      brush.fillStyle = tints[phase];
      brush.fillRect(this.px(from), this.top + j * this.cell, Math.max(0.4, this.px(to) - this.px(from)), this.cell - 1);
    }));
    brush.globalAlpha = 1;
    if (rounds.length <= this.width / 8) {
      brush.fillStyle = resolved("--card");
      rounds.slice(1).forEach((time) => brush.fillRect(this.px(time) - 0.5, this.top, 1, this.bottom - this.top));
    }
    const every = Math.ceil(13 / this.cell);
    rows.forEach((name, j) => j % every || this.svg.append(shape("text", { x: this.left - 6, y: this.top + (j + 0.5) * this.cell + 4, class: "tick", "text-anchor": "end" }, name)));
    this.axisBelow(0, end, this.px, { label: "time in rounds", unit: "seconds", baseline: this.bottom });
  }

  pick(x, y) {
    const j = Math.floor((y - this.top) / this.cell), time = (x - this.left) / (this.width - this.left - 4) * this.spec.end;
    if (j < 0 || j >= this.spec.rows.length || time < 0 || time > this.spec.end) return null;
    return { j, time };
  }

  step(cursor, dx, dy) {
    const last = this.spec.rows.length - 1;
    if (!cursor) return { j: 0, time: this.middle(this.spec.spans[0][0]) };
    const j = Math.max(0, Math.min(last, cursor.j + dy)), row = this.spec.spans[j];
    if (!dx || !row.length) return { j, time: cursor.time };
    if (!isFinite(dx)) return { j, time: this.middle(row[dx < 0 ? 0 : row.length - 1]) };
    const next = dx > 0 ? row.find(([from]) => from > cursor.time) : row.findLast(([, to]) => to < cursor.time);
    return { j, time: next ? this.middle(next) : cursor.time };
  }

  middle(span) { return span ? (span[0] + span[1]) / 2 : 0; }

  mark({ j, time }) {
    const { rows, spans, rounds, phases } = this.spec;
    const span = spans[j].find(([from, to, phase]) => from <= time && time <= to && !this.hidden.has(phase));
    const y = this.top + j * this.cell, round = rounds.findLastIndex((begin) => begin <= time) + this.spec.first;
    const lines = [];
    if (span) {
      this.marks.append(shape("rect", { x: this.px(span[0]), y, width: Math.max(1, this.px(span[1]) - this.px(span[0])), height: this.cell - 1, class: "ring" }));
      lines.push([colour(this.colourOf(span[2])), phases[span[2]], UNITS.seconds(span[1] - span[0])]);
      if (span[3] < 0.995) lines.push([null, "of it busy", `${Math.round(100 * span[3])} %`]);
    } else {
      this.marks.append(shape("line", { x1: this.px(time), x2: this.px(time), y1: y, y2: y + this.cell, class: "cross" }));
      lines.push([null, "idle"]);
    }
    lines.push([null, `round ${round}, at`, UNITS.seconds(time)]);
    return { x: this.px(time), y: y + this.cell / 2, title: rows[j], rows: lines };
  }
};
