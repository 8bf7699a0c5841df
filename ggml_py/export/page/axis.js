// Where nodes are from left to right. The plans on the page share slots: with one plan slot i is
// node i; with two, nodes that are the same in both have one slot.

const FOLDED = 5;   // the width of a folded layer, in nodes

// What a slot's width means.
const AXES = {
  order: {title: 'each node', of: (plan, t) => plan.computed[t] ? 1 : 0.3},
  bytes: {title: 'bytes moved', of: (plan, t) => plan.kind(t).bytes},
  time: {title: 'time', of: (plan, t) => plan.timeWidth(t)},
  flops: {title: 'FLOPs', of: (plan, t) => plan.kind(t).flops},
};

class Axis {
  // slots: for each plan the slot of each node, rising; n: the number of slots.
  constructor(plans, slots, n, name, folded) {
    this.plans = plans;
    this.slots = slots;
    this.n = n;
    this.nodeAt = slots.map(mine => {
      const at = new Int32Array(n).fill(-1);
      mine.forEach((slot, t) => { at[slot] = t; });
      return at;
    });
    this.layer = new Int32Array(n).fill(-1);
    plans.forEach((plan, p) => slots[p].forEach((slot, t) => {
      if (plan.layer[t] >= 0) this.layer[slot] = plan.layer[t];
    }));
    this.runs = [];   // stretches of slots of one layer
    for (let i = 0; i < n;) {
      let end = i + 1;
      while (end < n && this.layer[end] === this.layer[i]) end++;
      if (this.layer[i] >= 0) this.runs.push({layer: this.layer[i], start: i, end});
      i = end;
    }
    this.place(name, folded);
  }

  // Computes positions from what a width means; folded: the layers that take little room.
  place(name, folded) {
    this.name = name;
    const widths = new Float64Array(this.n);
    this.plans.forEach((plan, p) => this.slots[p].forEach((slot, t) => {
      widths[slot] = Math.max(widths[slot], AXES[name].of(plan, t));
    }));
    this.lead = new Float64Array(this.n);   // in front of a slot's nodes: the copies for them, where widths are times
    if (name === 'time') this.plans.forEach((plan, p) => plan.splits.forEach(split => {
      const slot = this.slots[p][split.start];
      this.lead[slot] = Math.max(this.lead[slot], plan.copyTime(split));
    }));
    const sum = widths.reduce((a, b) => a + b, 0) + this.lead.reduce((a, b) => a + b, 0);
    this.scale = name !== 'order' && sum > 0 ? 0.9 * this.n / sum : 1;
    if (this.scale !== 1) {   // in nodes, and nothing is too narrow to find
      for (let i = 0; i < this.n; i++) {
        widths[i] = widths[i] * this.scale + 0.1;
        this.lead[i] *= this.scale;
      }
    } else if (!sum) widths.fill(1);
    this.folded = folded;
    this.isFolded = new Uint8Array(this.n);
    for (const run of this.runs) {
      if (!folded.has(run.layer)) continue;
      this.isFolded.fill(1, run.start, run.end);
      if (name === 'order') widths.fill(FOLDED / (run.end - run.start), run.start, run.end);
    }
    this.pos = new Float64Array(this.n + 1);
    for (let i = 0; i < this.n; i++) this.pos[i + 1] = this.pos[i] + this.lead[i] + widths[i];
    this.length = this.pos[this.n] || 1;
  }

  // Whether widths are times and this node has no time of its own: only its split's is known.
  together(p, t) { return this.name === 'time' && Boolean(this.plans[p].time) && this.plans[p].took(t) < 0; }

  // Where the copies into a split begin; they end where its nodes do begin.
  copiesStart(p, split) {
    const start = this.start(p, split.start);
    return this.name === 'time' ? start - this.plans[p].copyTime(split) * this.scale : start;
  }

  start(p, t) { return this.pos[this.slots[p][t]] + this.lead[this.slots[p][t]]; }
  end(p, t) { return this.pos[this.slots[p][t] + 1]; }

  // The slot at a position: the last one that begins at or before it.
  slotAt(x) {
    let low = 0, high = this.n - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.pos[middle] <= x) low = middle; else high = middle - 1;
    }
    return low;
  }

  // The first node of plan p in a slot at or after this one; plan.n if there is none.
  firstFrom(p, slot) {
    const slots = this.slots[p];
    let low = 0, high = slots.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (slots[middle] < slot) low = middle + 1; else high = middle;
    }
    return low;
  }
}
