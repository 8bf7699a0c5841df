// The page: its state, and what clicks and keys do to it.

class App {
  constructor(data, isBeside) {
    this.get = id => document.getElementById(id);
    this.data = data;
    this.isBeside = isBeside;   // with the plan that the verdict recommends
    this.recording = data.recording || null;   // what a record or a run has beside its plans
    this.visited = null;   // the address that is written, once there is one
    this.frame = 0;
    this.take(this.recording ? [this.recording.drawn[this.recording.shown]] : data.plans, data.diff);
    this.lanes = new Lanes(this.get('lanes'), this);
    this.minimap = new Minimap(this.get('minimap'), this);
    this.table = new Table(this.get('table-scroll'), this);
    if (this.recording) this.rail();
    glance(this);
    details(this);
    this.tabs();
    this.controls();
    this.pointer();
    this.keys();
    this.filter();
  }

  // The state of a page of these plans, of which nothing is picked.
  take(plans, diff) {
    this.plans = plans.map(plan => new Plan(plan));
    this.diff = diff;
    this.partners = this.diff ? [Int32Array.from(this.diff.pairs), new Int32Array(this.plans[1].n).fill(-1)] : null;
    if (this.diff) this.diff.pairs.forEach((b, a) => { if (b >= 0) this.partners[1][b] = a; });
    this.changed = this.diff ? this.diff.changed.map(ids => new Set(ids)) : this.plans.map(() => new Set());
    this.stage = Math.max(...this.plans.map(plan => plan.stages.length));
    this.lastStage = this.stage;
    this.picked = this.pickedArrow = null;
    this.chosen = null;     // sets of nodes, one for each plan, and their name
    this.filters = {text: '', backend: '', op: '', cause: ''};
    this.filtered = false;
    this.folded = new Set();
    this.axisName = this.usualAxis = this.plans[0].time ? 'time' : 'order';
    this.match = this.plans.map(plan => new Uint8Array(plan.n).fill(1));
    const slots = this.diff ? this.diff.slots : [this.plans[0].splits.length || this.plans[0].n ? [...Array(this.plans[0].n).keys()] : []];
    this.axis = new Axis(this.plans, slots, Math.max(...slots.map(mine => (mine.at(-1) ?? -1) + 1)), this.axisName, this.folded);
    this.paint();
  }

  // --- what things look like

  laneColor(p, b) { return this.plans[p].backends[b].color; }

  // Computes the colour of every node and the number of nodes in each lane, at this stage.
  paint() {
    this.colors = this.plans.map((plan, p) => Array.from({length: plan.n}, (_, t) => this.colorOf(p, t)));
    this.counts = this.plans.map(plan => {
      const counts = new Map();
      for (let t = 0; t < plan.n; t++) {
        const b = plan.at(t, this.stage);
        if (plan.computed[t]) counts.set(b, (counts.get(b) || 0) + 1);
      }
      return counts;
    });
  }

  color(p, t) { return this.colors[p][t]; }
  laneCount(p, b) { return this.counts[p].get(b) || 0; }

  colorOf(p, t) {
    const plan = this.plans[p], b = plan.at(t, this.stage);
    if (b < 0) return 'none';
    const off = plan.offOf[t];
    return off && b === plan.backend[t] && !plan.backends[b].own ? `off-${reasonKind(off.reason)}` : this.laneColor(p, b);
  }

  isChanged(p, t) {
    if (this.diff) return this.changed[p].has(t);
    return this.stage < this.lastStage && this.stage > 0 && this.plans[p].at(t, this.stage) !== this.plans[p].at(t, this.stage - 1);
  }

  partner({p, t}) {
    if (!this.partners || !this.plans[p].isNode(t)) return null;
    const other = this.partners[p][t];
    return other < 0 ? null : {p: 1 - p, t: other};
  }

  readersOfCopy(p, copy) {
    const plan = this.plans[p], split = plan.splits[copy.split];
    return plan.readers(copy.id).filter(t => split.start <= t && t < split.end);
  }

  // --- drawing

  moved() {
    if (!this.lanes || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.lanes.draw();
      this.minimap.draw();
    });
  }

  redraw() {
    this.minimap?.render();
    this.timeline?.draw();
    this.moved();
  }

  async copy(text, said) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(said);
    } catch {
      prompt('To copy:', text);
    }
  }

  say(text) { this.get('said').textContent = text; }

  // --- picking and filtering

  pick(p, t, center = false) {
    this.picked = {p, t};
    this.pickedArrow = null;
    const plan = this.plans[p];
    const at = this.placeOf(p, t);
    if (at !== undefined && (plan.isNode(t) || center)) this.lanes.show(p, at);
    details(this);
    this.table.show(this.picked);
    this.say(`${plan.label(t)}, ${plan.op(t)}, on ${plan.backendName(plan.backend[t])}, ${plan.cause(t) || 'no cause'}`
      + (plan.offOf[t] ? `, off ${plan.offOf[t].device}: ${plan.offOf[t].text}` : ''));
    this.moved();
    this.remember(true);
  }

  // The node itself, or where a leaf or a copy is read first.
  placeOf(p, t) {
    const plan = this.plans[p];
    return plan.isNode(t) ? t : plan.isCopy.has(t) ? plan.splits[plan.isCopy.get(t).split].start : plan.readers(t)[0];
  }

  pickArrow(hit) {
    this.picked = null;
    this.pickedArrow = hit;
    details(this);
    this.table.draw();
    this.say(`Copies into ${splitsOf(hit.arrows)}: ${inArrows(hit.arrows)}`);
    this.moved();
  }

  unpick() {
    this.picked = this.pickedArrow = null;
    details(this);
    this.table.draw();
    this.moved();
    this.remember();
  }

  // Shows only these nodes, a list for each plan.
  choose(name, lists) {
    this.chosen = {name, sets: this.plans.map((_, p) => new Set(lists[p] || []))};
    this.filter();
    this.step(1, true);
  }

  chooseFinding(found, p = 0) {
    const plan = this.plans[p];
    const nodes = found.tensors.flatMap(t => plan.isNode(t) ? [t] : [t, ...plan.readers(t)]).filter(t => plan.isNode(t));
    this.choose(`${found.id} ${found.title}`, this.plans.map((_, i) => i === p ? nodes : []));
  }

  filter() {
    const {text, backend, op, cause} = this.filters, query = new Query(text), found = query.over(this.plans);
    this.filtered = Boolean(query.problem || query.terms.length || backend || op || cause || this.chosen);
    let n = 0, all = 0;
    this.plans.forEach((plan, p) => {
      for (let t = 0; t < plan.n; t++) {
        const fits = (!this.chosen || this.chosen.sets[p].has(t))
          && (!backend || plan.backendName(plan.backend[t]) === backend)
          && (!op || plan.op(t) === op) && (!cause || plan.cause(t) === cause) && found(p, t);
        this.match[p][t] = fits;
        n += fits;
      }
      all += plan.n;
    });
    this.get('search').setAttribute('aria-invalid', String(Boolean(query.problem)));
    this.get('found').textContent = query.problem || (this.filtered ? `${n} of ${all}` : plural(all, 'node'));
    this.get('chosen').hidden = !this.chosen;
    this.get('chosen').firstChild.textContent = this.chosen?.name || '';
    this.table.fill();
    this.show();
    this.redraw();
    this.remember();
  }

  clear() {
    this.chosen = null;
    for (const [id, key] of [['search', 'text'], ['f-backend', 'backend'], ['f-op', 'op'], ['f-cause', 'cause']]) {
      this.get(id).value = this.filters[key] = '';
    }
    this.filter();
  }

  // Goes to the next node that passes the filters, in the order of slots, in both plans.
  step(by, fromStart = false) {
    const nodes = [];
    this.plans.forEach((plan, p) => {
      for (let t = 0; t < plan.n; t++) if (this.match[p][t] && (plan.computed[t] || this.filtered)) nodes.push({p, t, slot: this.axis.slots[p][t]});
    });
    nodes.sort((a, b) => a.slot - b.slot || a.p - b.p);
    if (!nodes.length) return;
    let i = by > 0 ? 0 : nodes.length - 1;
    if (this.picked && !fromStart && this.plans[this.picked.p].isNode(this.picked.t)) {
      const {p, t} = this.picked, slot = this.axis.slots[p][t];
      const after = node => node.slot > slot || (node.slot === slot && node.p > p);
      const before = node => node.slot < slot || (node.slot === slot && node.p < p);
      i = by > 0 ? nodes.findIndex(after) : nodes.findLastIndex(before);
      if (i < 0) i = by > 0 ? 0 : nodes.length - 1;
    }
    this.pick(nodes[i].p, nodes[i].t);
  }

  // --- folding, stages, views

  // Computes positions again and keeps the middle of the view in place.
  place() {
    const {lanes, axis} = this, whole = Math.abs(lanes.scale - lanes.fitScale()) < 1e-9;
    const middle = lanes.x0 + (lanes.width - GUTTER) / 2 / lanes.scale, slot = axis.slotAt(middle);
    axis.place(this.axisName, this.folded);
    if (whole) lanes.fit();
    else lanes.view(axis.pos[slot] - (lanes.width - GUTTER) / 2 / lanes.scale, lanes.scale);
    this.get('fold').checked = axis.runs.length > 0 && axis.runs.every(run => this.folded.has(run.layer));
    this.redraw();
    this.remember();
  }

  fold(layer) {
    if (!this.folded.delete(layer)) this.folded.add(layer);
    this.place();
  }

  foldAll(folded) {
    this.folded = new Set(folded ? this.axis.runs.map(run => run.layer) : []);
    this.place();
    this.lanes.fit();
  }

  setStage(stage) {
    this.stage = Math.min(Math.max(stage, 0), this.lastStage);
    this.paint();
    legend(this);
    this.get('stage').value = this.stage;
    const stages = this.plans[0].stages;
    const name = this.stage < stages.length ? stages[this.stage] : '5: splits, copies';
    this.get('stage-name').textContent = name;
    this.get('stage').setAttribute('aria-valuetext', name);
    if (this.stage < stages.length) {
      const plan = this.plans[0];
      let n = 0, placed = 0;
      for (let t = 0; t < plan.n; t++) {
        n += this.stage ? this.isChanged(0, t) : plan.at(t, 0) >= 0;
        placed += plan.at(t, this.stage) >= 0;
      }
      this.get('stage-name').textContent = `${name}: +${n}, ${percent(placed, plan.n)}`;
    }
    this.redraw();
    this.remember();
  }

  theme(dark = document.documentElement.dataset.theme !== 'dark') {
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    this.lanes.readColors();
    this.redraw();
  }
}
