// The address behind "#": which node, filters, view, width and pass are shown. A link shows the
// same, and "back" goes to the node before.

const HELD = {backend: 'f-backend', op: 'f-op', cause: 'f-cause', text: 'search'};
const BESIDE = 'beside=1';   // with the plan that the verdict recommends
const IN_ADDRESS = /^(beside|node|plan|compute|view|width|pass|backend|op|cause|text)=/;
const TOGETHER = 500;   // ms: quicker steps are one step back

Object.assign(App.prototype, {
  address() {
    const parts = new URLSearchParams(this.isBeside ? BESIDE : '');
    if (this.picked) parts.set('node', (this.picked.p ? 'after:' : '') + this.picked.t);
    for (const key of Object.keys(HELD)) if (this.filters[key]) parts.set(key, this.filters[key]);
    if (this.recording) {
      if (this.number !== this.recording.shown) parts.set('plan', this.number);
      if (this.compute !== this.usualCompute(this.number)) parts.set('compute', this.compute);
    }
    if (this.shown !== this.usualView) parts.set('view', this.shown);
    if (this.axisName !== this.usualAxis) parts.set('width', this.axisName);
    if (this.stage !== this.lastStage) parts.set('pass', this.stage);
    return parts.toString();
  },

  // Writes the address; a `step` is a new place to come back to.
  remember(step = false) {
    const to = this.address(), now = Date.now();
    if (!this.visited || to === this.visited.at) return;
    const far = step && now - this.visited.when > TOGETHER;
    this.visited = {at: to, when: step ? now : this.visited.when};
    try {   // a page in a frame of its own has no history
      history[far ? 'pushState' : 'replaceState'](null, '', `#${to}`);
    } catch { /* then it has no address either */ }
  },

  // Shows what an address asks for: these parts, or a node by its name or number.
  visit(address) {
    this.visited = null;
    const named = !IN_ADDRESS.test(address), parts = new URLSearchParams(named ? '' : address);
    if (this.recording) {
      const asked = key => /^\d+$/.test(parts.get(key) || '') ? Number(parts.get(key)) : undefined;
      const number = asked('plan') ?? this.recording.shown;
      const known = this.listed(number) ? number : this.recording.shown, compute = asked('compute');
      this.openPlan(known, this.listed(known).program.run?.plan[compute] === known ? compute : undefined);
    }
    for (const [key, id] of Object.entries(HELD)) {
      const field = this.get(id);
      field.value = parts.get(key) || '';   // an option that is not there leaves it empty
      this.filters[key] = field.value || '';
    }
    this.filter();
    const axis = this.get('axis');
    axis.value = parts.get('width') || this.usualAxis;
    this.axisName = axis.value = axis.value || this.usualAxis;
    this.place();
    this.setStage(/^\d+$/.test(parts.get('pass') || '') ? Number(parts.get('pass')) : this.lastStage);
    this.view(parts.get('view') || this.usualView);
    const [side, asked] = named ? [0, decoded(address)] : nodeOf(parts.get('node') || '');
    const p = Math.min(side, this.plans.length - 1), plan = this.plans[p];
    const node = /^\d+$/.test(asked) ? Number(asked) : asked ? plan.find(asked, plan.n) : -1;
    if (node >= 0 && node < plan.total) this.pick(p, node, true);
    else this.unpick();
    this.visited = {at: named ? address : this.address(), when: 0};
  },

  copyLink() { return this.copy(location.href, 'The link is copied.'); },

  // With or without the plan beside it, for which the page is loaded again.
  turnBeside() { location.hash = this.diff ? '' : BESIDE; },
});

function nodeOf(text) { return text.startsWith('after:') ? [1, text.slice(6)] : [0, text]; }

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;   // an address that somebody typed
  }
}
