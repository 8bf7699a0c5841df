// The lanes: a canvas with a lane per backend, splits as blocks, copies as arrows between them.

const GUTTER = 92, RULER = 22, HEAD = 16, GAP = 40, TITLE = 20, COPYING = 20, LEFT = 16, LOW = 12;
const HIGH = 88, APART = 130;   // the most for a lane and for the room below it
const NODE = 28, NEAR = 18;     // and the least: below it the page scrolls
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

class Lanes {
  constructor(canvas, app) {
    this.canvas = canvas;
    this.app = app;
    this.context = canvas.getContext('2d');
    this.x0 = 0;         // the position at the left edge
    this.scale = 1;      // pixels per position
    this.box = null;     // from where to where a box is drawn
    this.colors = {};
    this.arrows = app.plans.map(arrowsOf);
    this.kept = [];      // the bundles of arrows, for each plan
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.readColors();
    this.resize();
    this.fit();
  }

  readColors() {
    const style = getComputedStyle(document.documentElement), palette = document.documentElement.dataset.colors.split(' ');
    for (const name of ['paper', 'page', 'ink', 'soft', 'line', 'faint', 'accent', 'pick', ...palette,
      ...palette.map(each => `on-${each}`)]) this.colors[name] = style.getPropertyValue(`--${name}`).trim();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const fitted = Math.abs(this.scale - this.fitScale()) < 1e-9;
    this.width = Math.max(box.width, GUTTER + 50);
    this.height = Math.max(box.height, 60);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.ratio = ratio;
    if (fitted) this.fit(); else this.view(this.x0, this.scale);
  }

  fitScale() { return (this.width - GUTTER - LEFT - 12) / this.app.axis.length; }
  fit() { this.view(-1e9, this.fitScale()); }

  // Moves to a position and a scale, within the limits of the picture.
  view(x0, scale) {
    const least = this.fitScale();
    this.scale = Math.min(Math.max(scale, least), Math.max(160, least));
    const shown = (this.width - GUTTER) / this.scale;
    const least0 = -LEFT / this.scale;
    this.x0 = Math.max(least0, Math.min(x0, this.app.axis.length - shown + 12 / this.scale));
    this.app.moved();
  }

  // By keys around the pointer, if it is on the lanes.
  zoom(factor, at = this.pointer ?? (this.width + GUTTER) / 2) {
    const here = this.position(at);
    const scale = Math.min(Math.max(this.scale * factor, this.fitScale()), 160);
    this.view(here - (at - GUTTER) / scale, scale);
  }

  pan(pixels) { this.view(this.x0 + pixels / this.scale, this.scale); }

  // Shows these positions as wide as possible.
  zoomTo(from, to) {
    const room = this.width - GUTTER, scale = Math.min(Math.max(room / Math.max(to - from, 1e-9), this.fitScale()), 160);
    this.view((from + to - room / scale) / 2, scale);
  }

  // Brings a node into view, wide enough to read.
  show(p, t) {
    const axis = this.app.axis, start = axis.start(p, t), end = axis.end(p, t);
    const px = x => (x - this.x0) * this.scale;
    this.scrollTo(p, t);
    const inside = px(start) > 20 && px(end) < this.width - GUTTER - 20;
    const wide = (end - start) * this.scale >= 12 || axis.isFolded[axis.slots[p][t]];
    if (inside && wide) return;
    const scale = wide ? this.scale : Math.min(60, 60 / Math.max(end - start, 0.05));
    this.view((start + end) / 2 - (this.width - GUTTER) / 2 / scale, scale);
  }

  // Scrolls the page to the lane of a node, if it is not in the window.
  scrollTo(p, t) {
    const row = this.laid && this.rowOf(this.laid, p, this.app.plans[p].at(t, this.app.stage)), box = this.canvas.getBoundingClientRect();
    if (!row || !box.height) return;
    const top = box.top + row.y - HEAD, bottom = box.top + row.y + row.h;
    if (top < RULER || bottom > innerHeight) window.scrollBy(0, top < RULER ? top - RULER : bottom + 8 - innerHeight);
  }

  position(x) { return this.x0 + (x - GUTTER) / this.scale; }
  x(position) { return GUTTER + (position - this.x0) * this.scale; }

  // The lanes from top to bottom: {p, backend, y, h} (y: where nodes begin), titles of plans, and
  // the tracks of copies, which are above the lanes that they are for.
  layout() {
    const {plans, stage, axis} = this.app, rows = [], titles = [], tracks = [];
    const hasTrack = plans.map(plan => new Set(axis.name === 'time' && stage >= plan.stages.length ? plan.copies.filter(copy => copy.ns > 0).map(copy => copy.to) : []));
    const lanes = plans.map(plan => {
      const unplaced = stage < plan.stages.length || plan.backend.subarray(0, plan.n).includes(-1);
      return [...plan.backends.keys(), ...unplaced ? [-1] : []];
    });
    const isLow = (plan, backend) => backend >= 0 && !plan.computedOn[backend];
    // Lanes are as high as the room allows.
    const all = lanes.flat().length, low = plans.reduce((sum, plan, p) => sum + lanes[p].filter(b => isLow(plan, b)).length, 0);
    const n = all - low || 1, gaps = all - plans.length;
    const room = this.height - RULER - 10 - hasTrack.reduce((sum, set) => sum + set.size, 0) * COPYING - plans.length * (plans.length > 1 ? TITLE + 14 : 14) - all * HEAD - low * LOW;
    const node = this.node = Math.min(Math.max((room - gaps * GAP) / n * 0.55, NODE), HIGH);
    const gap = gaps ? Math.min(Math.max((room - n * node) / gaps, NEAR), APART) : GAP;
    const least = Math.max(this.height - room + n * NODE + gaps * NEAR, 240);
    let y = RULER + 4 + Math.max(0, room - n * node - gaps * gap) * 0.4;
    plans.forEach((plan, p) => {
      if (plans.length > 1) {
        titles.push({p, y});
        y += TITLE;
      }
      for (const backend of lanes[p]) {
        const h = isLow(plan, backend) ? LOW : node;
        if (hasTrack[p].has(backend)) {
          tracks.push({p, backend, y, h: COPYING - 6});
          y += COPYING;
        }
        rows.push({p, backend, y: y + HEAD, h});
        y += HEAD + h + gap;
      }
      y -= gap - 14;
    });
    return {rows, titles, tracks, least};
  }

  trackOf(layout, p, backend) { return layout.tracks.find(track => track.p === p && track.backend === backend); }
  rowOf(layout, p, backend) { return layout.rows.find(row => row.p === p && row.backend === backend); }

  draw() {
    const g = this.context, c = this.colors;
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.fillStyle = c.paper;
    g.fillRect(0, 0, this.width, this.height);
    g.font = FONT;
    g.textBaseline = 'middle';
    const layout = this.laid = this.layout();
    if (layout.least !== this.least) {
      this.least = layout.least;
      this.canvas.parentNode.style.setProperty('--lanes', `${this.least}px`);
    }
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, this.width - GUTTER, this.height);
    g.clip();
    const axis = this.app.axis, right = this.x0 + (this.width - GUTTER) / this.scale;
    const first = axis.slotAt(this.x0), last = Math.min(axis.n - 1, axis.slotAt(right));
    const layers = this.layers(first, last);
    for (const row of [...layout.rows, ...layout.tracks]) {
      g.fillStyle = c.faint;
      g.fillRect(GUTTER, row.y, this.width - GUTTER, row.h);
    }
    this.app.plans.forEach((plan, p) => {
      this.splits(plan, p, layout, first, last);
      this.nodes(plan, p, layout, first, last);
      if (this.app.stage >= plan.stages.length) {
        this.copies(plan, p, layout);
        this.copyTimes(plan, p, layout);
      }
    });
    this.selection(layout);
    this.ruler(layers);
    if (this.box) {
      const [from, to] = [Math.min(...this.box), Math.max(...this.box)];
      g.fillStyle = c.accent;
      g.globalAlpha = 0.2;
      g.fillRect(from, 0, to - from, this.height);
      g.globalAlpha = 1;
    }
    g.restore();
    this.gutter(layout);
  }

  // The layers in view: {x, w, layer}. Every other one has a ground of its own.
  layers(first, last) {
    const g = this.context, c = this.colors, {axis, plans} = this.app, found = [];
    axis.runs.forEach((run, i) => {
      if (run.end <= first || run.start > last) return;
      if (plans.some((plan, p) => axis.together(p, axis.nodeAt[p][run.start]))) return;
      const x = this.x(axis.pos[run.start]), w = this.x(axis.pos[run.end]) - x;
      if (i % 2 === 0 && w > 1) {
        g.fillStyle = c.page;
        g.fillRect(x, 0, w, this.height);
      }
      found.push({x, w, layer: run.layer});
    });
    return found;
  }

  // Their names, at the upper edge of what the window shows.
  ruler(layers) {
    const g = this.context, c = this.colors;
    const top = this.top = Math.max(0, Math.min(-this.canvas.getBoundingClientRect().top, this.height - RULER));
    if (top) {
      g.fillStyle = c.paper;
      g.fillRect(GUTTER, top, this.width - GUTTER, RULER);
    }
    let until = -1e9;
    this.rulerHits = layers;
    for (const {x, w, layer} of layers) {
      const left = Math.max(x, GUTTER), room = x + w - left - 4;
      const long = `${this.app.axis.folded.has(layer) ? '▸' : '▾'} layer ${layer}`, fits = text => g.measureText(text).width < room;
      const text = fits(long) ? long : String(layer), wide = g.measureText(text).width;
      const every = [1, 2, 5, 10, 20, 50, 100].find(each => each * w > wide + 8);   // of layers too narrow for their number
      if (left <= until || (!fits(text) && (layer % every || left > x))) continue;
      g.fillStyle = c.soft;
      g.fillText(text, left + (text === long ? 4 : Math.max((room + 4 - wide) / 2, 0)), top + RULER / 2);
      until = left + wide + 4;
    }
  }

  splits(plan, p, layout, first, last) {
    if (this.app.stage < plan.stages.length) return;
    const g = this.context, c = this.colors, axis = this.app.axis;
    const from = axis.firstFrom(p, first), split0 = plan.split[Math.min(from, plan.n - 1)] || 0;
    let until = -1e9;
    for (let s = split0; s < plan.splits.length; s++) {
      const split = plan.splits[s], start = plan.predicted ? axis.copiesStart(p, split) : axis.start(p, split.start);
      const x = this.x(start), w = this.x(axis.end(p, split.end - 1)) - x;
      if (x > this.width) break;
      const row = this.rowOf(layout, p, split.backend);
      if (w < 5 || !row) continue;
      g.strokeStyle = c.soft;
      g.globalAlpha = 0.7;
      g.lineWidth = 1;
      g.strokeRect(x + 0.5, row.y - HEAD + 0.5, w - 1, HEAD + row.h + 2);
      g.globalAlpha = 1;
      const left = Math.max(x, GUTTER);
      const nodes = split.end - split.start;
      const texts = [`split #${s} · ${nodes} node${nodes > 1 ? 's' : ''}`, `#${s} · ${nodes}`, `#${s}`];
      const time = plan.time && axis.name === 'time' ? plan.splitTime(s) : null;
      if (time) {
        const took = time.known === 'not known' ? 'unknown time' : `${time.known === 'measured' ? '' : `${time.known} `}${duration(time.ns)}`;
        texts.unshift(`${texts[0]} · ${took}`, `#${s} · ${took}`);
      }
      const text = texts.find(each => each.length * 6.5 + 6 < x + w - left);
      if (text && left > until) {
        g.fillStyle = c.soft;
        g.fillText(text, left + 4, row.y - HEAD / 2);
        until = left + 10;
      }
    }
  }

  // Neighbours that look the same are one block if they are folded, or too narrow to tell apart.
  nodes(plan, p, layout, first, last) {
    const {axis, stage} = this.app, match = this.app.match[p], rows = new Map();
    for (const row of layout.rows) if (row.p === p) rows.set(row.backend, row);
    let block = null, group = null;
    const end = Math.min(plan.n, axis.firstFrom(p, last + 1));
    for (let t = axis.firstFrom(p, first); t < end; t++) {
      const slot = axis.slots[p][t], x = this.x(axis.start(p, t));
      const w = (axis.end(p, t) - axis.start(p, t)) * this.scale;
      const row = rows.get(plan.at(t, stage)), thin = !plan.computed[t];
      if (!row || (thin && w < 2)) continue;
      const color = this.app.color(p, t), folded = axis.isFolded[slot], dim = !match[t];
      const changed = this.app.isChanged(p, t);
      const together = axis.together(p, t);
      if (folded || together) {
        if (thin) continue;
        const key = `${plan.split[t]} ${together ? 'all' : axis.layer[slot]} ${row.backend}`;
        if (!group || group.key !== key) {
          this.group(group);
          group = {key, row, x, end: x, n: 0, dim: true, changed: false, colors: new Map()};
        }
        group.end = x + w;
        group.n++;
        group.dim &&= dim;
        group.changed ||= changed;
        group.colors.set(color, (group.colors.get(color) || 0) + 1);
        continue;
      }
      const small = w < 4;
      if (block && small && block.small && block.row === row && block.color === color
        && block.dim === dim && block.thin === thin && block.changed === changed && x - block.end < 1.5) {
        block.end = x + w;
        block.n++;
        continue;
      }
      this.block(block, plan);
      block = {row, x, end: x + w, color, dim, thin, small, changed, n: 1, t};
    }
    this.block(block, plan);
    this.group(group);
    if (axis.name === 'time' && plan.time) this.bounds(plan, p, layout, first, last);
  }

  // Hatches splits whose time was not measured: it is only a bound, or not known.
  bounds(plan, p, layout, first, last) {
    const g = this.context, axis = this.app.axis;
    plan.splits.forEach((split, s) => {
      const row = this.rowOf(layout, p, split.backend);
      if (!row || plan.splitTime(s).known === 'measured' || plan.predicted) return;
      const x = Math.max(this.x(axis.start(p, split.start)), GUTTER), end = Math.min(this.x(axis.end(p, split.end - 1)), this.width);
      if (end <= x) return;
      g.save();
      g.beginPath();
      g.rect(x, row.y, end - x, row.h);
      g.clip();
      g.strokeStyle = this.colors.paper;
      g.lineWidth = 3;
      g.beginPath();
      for (let at = x - row.h; at < end; at += 9) {
        g.moveTo(at, row.y + row.h);
        g.lineTo(at + row.h, row.y);
      }
      g.stroke();
      g.restore();
    });
  }

  // A folded layer's nodes of one split: stacked by colour, as high as their number.
  group(b) {
    if (!b) return;
    const g = this.context, w = Math.max(b.end - b.x - 1, 3);
    const [most] = [...b.colors].reduce((one, other) => one[1] >= other[1] ? one : other);
    let y = b.row.y, middle = y;   // of the most frequent colour
    g.globalAlpha = b.dim ? 0.13 : 1;
    for (const [color, n] of b.colors) {
      const h = b.row.h * n / b.n;
      g.fillStyle = this.colors[color];
      g.fillRect(b.x, y, w, h);
      if (color === most) middle = y + h / 2;
      y += h;
    }
    if (b.changed && !b.dim) {
      g.fillStyle = this.colors.changed;
      g.fillRect(b.x, b.row.y - 3, w, 4);
    }
    const left = Math.max(b.x, GUTTER);
    if (!b.dim) this.count(b.n, most, left + 4, middle, b.x + w - left - 8);
    g.globalAlpha = 1;
  }

  // Writes how many nodes a block stands for, if there is room.
  count(n, color, x, y, room) {
    const g = this.context, text = [`${n} node${n > 1 ? 's' : ''}`, `${n}`].find(each => g.measureText(each).width <= room);
    g.fillStyle = this.colors[`on-${color}`];
    if (text) g.fillText(text, x, y);
  }

  block(b, plan) {
    if (!b) return;
    const g = this.context, c = this.colors, w = Math.max(b.end - b.x - (b.end - b.x > 5 ? 1 : 0), 0.8);
    g.globalAlpha = b.dim ? 0.13 : b.thin ? 0.45 : 1;
    g.fillStyle = this.colors[b.color];
    const top = b.thin ? b.row.y + b.row.h / 4 : b.row.y, height = b.thin ? b.row.h / 2 : b.row.h;
    g.fillRect(b.x, top, w, height);
    if (b.changed && !b.dim) {
      g.fillStyle = this.colors.changed;
      g.fillRect(b.x, b.row.y - 3, Math.max(w, 1.5), 4);
    }
    const left = Math.max(b.x, GUTTER), room = b.x + w - left - 6;
    if (room > 16 && !b.thin && !b.dim) {
      const middle = b.row.y + b.row.h / 2;
      if (b.n > 1) this.count(b.n, b.color, left + 4, middle, room);
      else [plan.op(b.t), plan.label(b.t)].forEach((line, i) => {
        const letters = Math.floor(room / (line === line.toUpperCase() ? 8 : 6.7));
        const text = line.length > letters ? `${line.slice(0, Math.max(letters - 1, 1))}…` : line;
        g.fillStyle = c[`on-${b.color}`];
        if (letters > 2) g.fillText(text, left + 3, middle + 14 * i - 7);
      });
    }
    g.globalAlpha = 1;
  }

  selection(layout) {
    const {picked, plans, axis, stage} = this.app, g = this.context, c = this.colors;
    if (!picked) return;
    const marks = plans.length > 1 ? [picked, this.app.partner(picked)] : [picked];
    for (const mark of marks) {
      if (!mark || !plans[mark.p].isNode(mark.t)) continue;
      const {p, t} = mark, plan = plans[p], row = this.rowOf(layout, p, plan.at(t, stage));
      if (!row) continue;
      const box = each => {
        const r = this.rowOf(layout, p, plan.at(each, stage));
        return r && {x: this.x(axis.start(p, each)), end: this.x(axis.end(p, each)), y: r.y, h: r.h};
      };
      const here = box(t);
      g.strokeStyle = c.accent;
      g.lineWidth = 1.3;
      const sources = plan.srcs(t).filter(s => plan.isNode(s)).map(s => [box(s), here]);
      const readers = plan.readers(t).slice(0, 40).map(r => [here, box(r)]);
      for (const [a, b] of [...sources, ...readers]) {
        if (!a || !b) continue;
        const lift = a.y === b.y ? -HEAD - 10 : 0, ya = a.y + a.h / 2, yb = b.y + b.h / 2;
        g.beginPath();
        g.moveTo((a.x + a.end) / 2, ya);
        g.bezierCurveTo((a.x + a.end) / 2, ya + lift * 2, (b.x + b.end) / 2, yb + lift * 2, (b.x + b.end) / 2, yb);
        g.stroke();
      }
      g.strokeStyle = c.pick;
      g.lineWidth = 2.5;
      g.strokeRect(here.x - 1, here.y - 2, Math.max(here.end - here.x, 3) + 1, here.h + 4);
    }
  }

  gutter(layout) {
    const g = this.context, c = this.colors, {plans, stage} = this.app;
    g.fillStyle = c.paper;
    g.fillRect(0, 0, GUTTER - 1, this.height);
    g.fillStyle = c.line;
    g.fillRect(GUTTER - 1, 0, 1, this.height);
    for (const title of layout.titles) {
      g.fillStyle = c.ink;
      g.font = `600 ${FONT}`;
      g.fillText(title.p ? 'after' : 'before', 8, title.y + TITLE / 2);
      g.font = FONT;
    }
    for (const {p, backend, y, h} of layout.tracks) {
      g.fillStyle = c.arrow;
      g.fillRect(8, y, 4, h);
      g.fillStyle = c.soft;
      const name = `${plans[p].backendName(backend)} copies`;
      g.fillText(name.length > 11 ? 'copies' : name, 15, y + h / 2);   // its backend's lane is below
    }
    for (const row of layout.rows) {
      const plan = plans[row.p];
      const of = this.app.laneCount(row.p, row.backend);
      g.fillStyle = row.backend < 0 ? c.none : c[this.app.laneColor(row.p, row.backend)];
      g.fillRect(8, row.y, 4, row.h);
      g.fillStyle = c.ink;
      const name = row.backend < 0 ? (stage < plan.stages.length ? 'not yet' : 'nowhere') : plan.backendName(row.backend);
      g.fillText(name.length > 11 ? `${name.slice(0, 10)}…` : name, 18, row.y + row.h / 2 - 6);
      g.fillStyle = c.soft;
      g.fillText(`${of} node${of === 1 ? '' : 's'}`, 18, row.y + row.h / 2 + 7);
    }
  }

  // What is at a point: a layer's label, a node or an arrow.
  hit(x, y) {
    if (x < GUTTER || !this.laid) return null;
    if (this.top <= y && y < this.top + RULER) {
      const run = this.rulerHits.find(r => r.x <= x && x < r.x + r.w);
      return run ? {layer: run.layer} : null;
    }
    const track = this.laid.tracks.find(each => each.y - 2 <= y && y <= each.y + each.h + 2);
    if (track) return this.copiesAt(track, x);
    const axis = this.app.axis, row = this.laid.rows.find(r => r.y - HEAD <= y && y <= r.y + r.h + 3);
    if (row) {
      const slot = axis.slotAt(this.position(x)), plan = this.app.plans[row.p];
      let best = null;   // views are narrow, and nodes of other lanes are in between
      for (let s = Math.max(0, slot - 60); s <= Math.min(axis.n - 1, slot + 60); s++) {
        const t = axis.nodeAt[row.p][s];
        if (t < 0 || plan.at(t, this.app.stage) !== row.backend) continue;
        const far = Math.max(this.x(axis.start(row.p, t)) - x, x - this.x(axis.end(row.p, t)), 0) + (plan.computed[t] ? 0 : 1);
        if (far < 4 && (!best || far < best.far)) best = {p: row.p, t, far};
      }
      return best;
    }
    const found = this.app.stage >= this.app.plans[0].stages.length ? this.arrowAt(x, y) : null;
    return found && {p: found.p, arrows: found.arrow.arrows};
  }
}
