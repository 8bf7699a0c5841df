// The copies on the lanes. Arrows between the same lanes that would cover each other are a bundle.

const APART_BY = 26;  // pixels from an arrow to the next that both need
const BUNDLE = 140;   // the most for a bundle, about as wide as its label
const LABEL = 15;     // the height of a label
const MANY = {weight: 'weights', state: 'states', input: 'inputs', result: 'results'};

// The copies into a split from one backend are one arrow.
function arrowsOf(plan) {
  const arrows = [];
  for (const split of plan.splits) {
    const by = new Map();
    for (const copy of split.copies) {
      if (!by.has(copy.from)) by.set(copy.from, {split: split.index, from: copy.from, to: copy.to, bytes: 0, copies: []});
      const arrow = by.get(copy.from);
      arrow.bytes += copy.nbytes;
      arrow.copies.push(copy);
    }
    arrows.push(...by.values());
  }
  return arrows;
}

// What is in arrows of the same two lanes, "189 weights, 10.0 GiB"; only the bytes for one copy.
function inArrows(arrows) {
  const kinds = new Set(arrows.flatMap(arrow => arrow.copies.map(copy => copy.what)));
  const n = arrows.reduce((sum, arrow) => sum + arrow.copies.length, 0), [kind] = kinds;
  const size = bytes(arrows.reduce((sum, arrow) => sum + arrow.bytes, 0));
  return n === 1 ? size : `${n} ${kinds.size === 1 && MANY[kind] || 'copies'}, ${size}`;
}

Object.assign(Lanes.prototype, {
  // The bundles at the present zoom, from left to right. They stay the same while the lanes move.
  bundles(p) {
    const {axis} = this.app, plan = this.app.plans[p], kept = this.kept[p];
    if (kept?.pos === axis.pos && kept.scale === this.scale) return kept.bundles;
    const bundles = [], last = new Map();
    for (const arrow of this.arrows[p]) {
      const key = `${arrow.from} ${arrow.to}`, at = axis.start(p, plan.splits[arrow.split].start);
      let bundle = last.get(key);
      if (!bundle || (at - bundle.end) * this.scale > APART_BY || (at - bundle.at) * this.scale >= BUNDLE) {
        bundle = {split: arrow.split, from: arrow.from, to: arrow.to, at, bytes: 0, arrows: []};
        last.set(key, bundle);
        bundles.push(bundle);
      }
      bundle.end = at;
      bundle.bytes += arrow.bytes;
      bundle.arrows.push(arrow);
    }
    this.kept[p] = {pos: axis.pos, scale: this.scale, bundles};
    return bundles;
  },

  copies(plan, p, layout) {
    const g = this.context, c = this.colors, picked = new Set(this.app.pickedArrow?.p === p ? this.app.pickedArrow.arrows : []);
    const rows = new Map(layout.rows.filter(row => row.p === p).map(row => [row.backend, row]));
    const drawn = [];
    for (const bundle of this.bundles(p)) {
      const x = this.x(bundle.at), end = this.x(bundle.end), src = rows.get(bundle.from), dst = rows.get(bundle.to);
      if (end < GUTTER - 40 || x > this.width + 20 || !src || !dst) continue;
      const down = dst.y > src.y, width = Math.min(6, 1 + Math.max(0, Math.log2(bundle.bytes / 1024)) / 3);
      const top = row => (this.trackOf(layout, p, row.backend)?.y ?? row.y - HEAD) - 1;
      const y1 = down ? src.y + src.h + 2 : top(src), y2 = down ? top(dst) : dst.y + dst.h + 3;
      const here = bundle.arrows.some(arrow => picked.has(arrow)), tip = down ? 1 : -1, half = 3 + width / 2;
      g.strokeStyle = g.fillStyle = here ? c.pick : c.arrow;
      g.globalAlpha = this.app.filtered && !here ? 0.35 : 0.9;
      g.lineWidth = width;
      g.beginPath();
      g.moveTo(x - 14, y1);
      g.bezierCurveTo(x - 14, (y1 + y2) / 2, x + 4, (y1 + y2) / 2, x + 4, y2 - tip * 6);
      g.stroke();
      g.beginPath();
      g.moveTo(x + 4, y2 + tip);
      g.lineTo(x + 4 - half, y2 - tip * 7);
      g.lineTo(x + 4 + half, y2 - tip * 7);
      g.fill();
      if (end > x) g.fillRect(x + 4, y2 - (down ? 2 : 0), end - x, 2);   // to the last split of the bundle
      g.globalAlpha = 1;
      drawn.push({p, arrow: bundle, x, y1: Math.min(y1, y2), y2: Math.max(y1, y2), at: [y2 - tip * 16, y1 + tip * 10, (y1 + y2) / 2]});
    }
    this.labels(drawn);
    this.arrowHits = [...p ? this.arrowHits : [], ...drawn];
  },

  // The copies into each split, on the track of the backend's copies, as wide as their time.
  copyTimes(plan, p, layout) {
    const g = this.context, c = this.colors, {axis, pickedArrow} = this.app;
    const picked = new Set(pickedArrow?.p === p ? pickedArrow.arrows.map(arrow => arrow.split) : []);
    for (const split of plan.splits) {
      const track = this.trackOf(layout, p, split.backend), ns = plan.copyTime(split);
      const x = this.x(axis.copiesStart(p, split)), w = Math.max(this.x(axis.start(p, split.start)) - x, 0.8);
      if (!track || !ns || x > this.width || x + w < GUTTER) continue;
      g.globalAlpha = this.app.filtered && !picked.has(split.index) ? 0.35 : 1;
      g.fillStyle = picked.has(split.index) ? c.pick : c.arrow;
      g.fillRect(x, track.y, w, track.h);
      const left = Math.max(x, GUTTER), text = duration(ns);
      if (g.measureText(text).width + 6 < x + w - left) {
        g.fillStyle = picked.has(split.index) ? c.paper : c['on-arrow'];
        g.fillText(text, left + 3, track.y + track.h / 2);
      }
      g.globalAlpha = 1;
    }
  },

  // The copies of a track at a position, or near it, as arrows; null if there are none.
  copiesAt({p, backend}, x) {
    const {axis, plans} = this.app, near = 3;
    const split = plans[p].splits.find(each => each.backend === backend && plans[p].copyTime(each)
      && this.x(axis.copiesStart(p, each)) - near <= x && x <= this.x(axis.start(p, each.start)) + near);
    return split ? {p, arrows: this.arrows[p].filter(arrow => arrow.split === split.index)} : null;
  },

  // Labels arrows from the largest, where no label is yet and no short arrow is covered.
  labels(drawn) {
    const g = this.context, c = this.colors, placed = [];
    g.strokeStyle = c.paper;
    g.lineWidth = 4;
    g.lineJoin = 'round';
    g.fillStyle = c.ink;
    for (const one of [...drawn].sort((a, b) => b.arrow.bytes - a.arrow.bytes || a.x - b.x)) {
      const text = inArrows(one.arrow.arrows), left = one.x + 12, right = left + g.measureText(text).width;
      if (left < GUTTER || right > this.width - 2) continue;
      const free = y => !placed.some(other => other.left < right + 6 && left < other.right + 6 && Math.abs(other.y - y) < LABEL)
        && !drawn.some(other => other !== one && other.y2 - other.y1 <= 60 && other.y1 < y + 6 && y - 6 < other.y2
          && other.x - 14 < right && left < other.x + 10);
      const y = one.at.find(free);
      if (y === undefined) continue;
      placed.push(one.label = {left, right, y});
      g.strokeText(text, left, y);
      g.fillText(text, left, y);
    }
  },

  // The arrow at a point, or whose label is there.
  arrowAt(x, y) {
    const on = hit => hit.label && hit.label.left <= x && x <= hit.label.right && Math.abs(hit.label.y - y) <= LABEL / 2;
    const near = (this.arrowHits || []).filter(hit => Math.abs(hit.x - x) < 9 && hit.y1 <= y && y <= hit.y2);
    return (this.arrowHits || []).find(on) || near.reduce((a, b) => a && Math.abs(a.x - x) <= Math.abs(b.x - x) ? a : b, null);
  },
});
