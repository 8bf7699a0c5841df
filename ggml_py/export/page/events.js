// Clicks, keys, the pointer, printing.

const KEYS = [
  ['← →', 'previous node, next node'], ['w s', 'zoom (also + −)'], ['a d', 'move the lanes (also Shift ← →)'],
  ['z', 'zoom to what is picked or found'], ['0', 'show everything'],
  ['/ Ctrl-K', 'search'], ['n p', 'next, previous match'], ['f', 'fold or unfold all layers'], ['l', 'fold or unfold the node’s layer'],
  ['[ ]', 'previous pass, next pass'], ['t', 'table or lanes'], ['Enter', 'go to the node’s details'],
  ['m', 'light or dark'], ['c', 'copy the link to what is shown'], ['Esc', 'clear'], ['?', 'this list'],
];
const SEARCH = [
  ['rope blk.3', 'both, in the name or op, or in the name of a weight that the node reads'], ['"two words" /^k.*-[0-9]$/', 'with spaces; a regular expression'],
  ['op:mul_mat on:gpu0 cause:1.wgt name:ffn', 'one of these'], ['layer:3-7', 'layers'], ['-op:view', 'not that'], ['#95', 'a number'],
];

Object.assign(App.prototype, {
  // What can be chosen of these plans.
  choices() {
    const options = (id, all, values) => this.get(id).replaceChildren(el('option', {value: ''}, all),
      ...[...values].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([value, n]) => el('option', {value}, `${value} (${n})`)));
    const counted = of => {
      const counts = new Map();
      this.plans.forEach((plan, p) => {
        for (let t = 0; t < plan.n; t++) counts.set(of(plan, t), (counts.get(of(plan, t)) || 0) + 1);
      });
      counts.delete('');
      return counts;
    };
    options('f-backend', 'all backends', counted((plan, t) => plan.backendName(plan.backend[t])));
    options('f-op', 'all ops', counted((plan, t) => plan.op(t)));
    options('f-cause', 'all causes', counted((plan, t) => plan.cause(t)));
    const costs = this.plans.some(plan => plan.data.shares);
    this.get('axis').replaceChildren(...Object.entries(AXES).filter(([key]) => key === 'order' || (key === 'time' ? this.plans[0].time : costs))
      .map(([value, {title}]) => el('option', {value}, title)));
    this.get('axis').value = this.axisName;
    this.get('fold-field').hidden = !this.axis.runs.length;
    this.get('stage').max = this.lastStage;
    this.get('stage-field').hidden = !this.lastStage;
    this.setStage(this.lastStage);
  },

  controls() {
    this.choices();
    for (const [id, key] of [['f-backend', 'backend'], ['f-op', 'op'], ['f-cause', 'cause'], ['search', 'text']]) {
      this.get(id).addEventListener('input', event => {
        this.filters[key] = event.target.value;
        this.filter();
      });
    }
    this.get('toolbar').addEventListener('submit', event => event.preventDefault());
    this.get('search').addEventListener('keydown', event => {
      if (event.key === 'Enter') this.step(event.shiftKey ? -1 : 1);
      if (event.key === 'Escape') event.target.blur();
    });
    this.get('next').onclick = () => this.step(1);
    this.get('previous').onclick = () => this.step(-1);
    this.get('clear').onclick = () => this.clear();
    this.get('unchoose').onclick = () => {
      this.chosen = null;
      this.filter();
    };
    this.get('axis').onchange = event => {
      this.axisName = event.target.value;
      this.place();
    };
    this.get('fold').onchange = event => this.foldAll(event.target.checked);
    this.get('stage').oninput = event => this.setStage(Number(event.target.value));
    this.get('zoom-out').onclick = () => this.lanes.zoom(1 / 1.5);
    this.get('zoom-in').onclick = () => this.lanes.zoom(1.5);
    this.get('zoom-all').onclick = () => this.lanes.fit();
    this.saves();
    this.get('theme').onclick = () => this.theme();
    this.get('link').onclick = () => this.copyLink();
    const help = this.get('help');
    help.replaceChildren(el('h2', {}, 'Keys'), el('dl', {}, ...KEYS.flatMap(([key, what]) =>
      [el('dt', {}, el('kbd', {}, key)), el('dd', {}, what)])),
      el('h2', {}, 'Search'), el('dl', {}, ...SEARCH.flatMap(([text, what]) =>
        [el('dt', {}, el('code', {}, text)), el('dd', {}, what)])),
      el('p.small', {}, 'Wheel: zoom. Drag: move. Shift and drag: zoom to a box. Click a layer’s number to fold it, or an arrow to see what is copied.'),
      el('form', {method: 'dialog'}, el('button', {}, 'Close')));
    this.get('help-button').onclick = () => help.showModal();
    window.addEventListener('beforeprint', () => this.print());
    window.addEventListener('afterprint', () => this.printed());
  },

  pointer() {
    const canvas = this.get('lanes'), tip = this.get('tip');
    const at = event => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    // Fingers up and down scroll the page, which the browser does (touch-action in page.css).
    let from = null;
    const fingers = new Map(), spread = () => {
      const [a, b] = [...fingers.values()];
      return {far: Math.max(Math.hypot(a[0] - b[0], a[1] - b[1]), 20), x: (a[0] + b[0]) / 2};
    };
    canvas.addEventListener('pointerdown', event => {
      if (event.isPrimary) fingers.clear();
      fingers.set(event.pointerId, at(event));
      from = {x: event.clientX, moved: fingers.size > 1};
      this.lanes.box = event.shiftKey && at(event)[0] > GUTTER ? [at(event)[0], at(event)[0]] : null;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', event => {
      if (fingers.size > 1 && fingers.has(event.pointerId)) {
        const before = spread();
        fingers.set(event.pointerId, at(event));
        const now = spread();
        this.lanes.pan(before.x - now.x);
        this.lanes.zoom(now.far / before.far, now.x);
        return;
      }
      this.lanes.pointer = event.pointerType === 'mouse' ? Math.max(at(event)[0], GUTTER) : undefined;
      if (from && event.buttons) {
        const by = from.x - event.clientX;
        if (Math.abs(by) > 3 || from.moved) {
          from.moved = true;
          if (this.lanes.box) {
            this.lanes.box[1] = Math.max(at(event)[0], GUTTER);
            this.moved();
            return;
          }
          from.x = event.clientX;
          canvas.classList.add('panning');
          tip.hidden = true;
          this.lanes.pan(by);
        }
        return;
      }
      this.tip(tip, event, this.lanes.hit(...at(event)));
    });
    canvas.addEventListener('pointerleave', () => {
      tip.hidden = true;
      this.lanes.pointer = undefined;
    });
    const lift = event => {
      fingers.delete(event.pointerId);
      canvas.classList.remove('panning');
      const dragged = from?.moved;
      from = fingers.size ? {x: [...fingers.values()][0][0] + canvas.getBoundingClientRect().left, moved: true} : null;
      return dragged;
    };
    canvas.addEventListener('pointercancel', event => {
      lift(event);
      this.lanes.box = null;
      this.moved();
    });
    canvas.addEventListener('pointerup', event => {
      const dragged = lift(event), {box} = this.lanes;
      this.lanes.box = null;
      if (dragged && box) this.lanes.zoomTo(...box.map(x => this.lanes.position(x)).sort((a, b) => a - b));
      if (dragged) return;
      const hit = this.lanes.hit(...at(event));
      if (!hit) this.unpick();
      else if (hit.layer !== undefined) this.fold(hit.layer);
      else if (hit.arrows) this.pickArrow(hit);
      else this.pick(hit.p, hit.t);
    });
    window.addEventListener('scroll', () => this.moved());
    canvas.addEventListener('wheel', event => {
      const whole = this.lanes.scale <= this.lanes.fitScale() * 1.001;
      if (!event.ctrlKey && !event.shiftKey && (at(event)[0] < GUTTER || (whole && event.deltaY > 0))) return;   // the page scrolls
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) this.lanes.pan(event.deltaX || event.deltaY);
      else this.lanes.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), at(event)[0]);
    }, {passive: false});
  },

  // The nodes that are picked, or else those that the filters leave.
  zoomToSelected() {
    const {axis, picked, pickedArrow} = this, nodes = [];
    if (pickedArrow) {
      const plan = this.plans[pickedArrow.p];
      for (const {split} of pickedArrow.arrows) nodes.push([pickedArrow.p, plan.splits[split].start], [pickedArrow.p, plan.splits[split].end - 1]);
    } else if (picked) nodes.push([picked.p, this.placeOf(picked.p, picked.t)]);
    else if (this.filtered) this.match.forEach((match, p) => match.forEach((fits, t) => fits && nodes.push([p, t])));
    const shown = nodes.filter(([, t]) => t !== undefined);
    if (!shown.length) return;
    const from = shown.reduce((least, [p, t]) => Math.min(least, axis.start(p, t)), Infinity);
    const to = shown.reduce((most, [p, t]) => Math.max(most, axis.end(p, t)), 0);
    const beside = (to - from) * (shown.length > 1 ? 0.05 : 3);
    this.lanes.zoomTo(from - beside, to + beside);
    this.lanes.scrollTo(...shown[0]);
  },

  tip(tip, event, hit) {
    this.tipAt(tip, event, hit && hit.layer === undefined ? this.tipOf(hit) : '');
  },

  tipOf(hit) {
    const plan = this.plans[hit.p], off = plan.offOf[hit.t];
    if (hit.arrows) {
      const copies = hit.arrows.flatMap(arrow => arrow.copies);
      return `${inArrows(hit.arrows)}, for ${splitsOf(hit.arrows)}: ${copies.slice(0, 4).map(copy => plan.label(copy.id)).join(', ')}${copies.length > 4 ? ', …' : ''}`;
    }
    return `${plan.label(hit.t)} · ${plan.op(hit.t)} · ${plan.backendName(plan.backend[hit.t])} ${plan.cause(hit.t)}`
      + (off ? ` · not on ${off.device}: ${off.text}` : '');
  },

  tipAt(tip, event, text) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = 0;   // beside the edge it would be as narrow as its place
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4))}px`;
  },

  keys() {
    document.addEventListener('keydown', event => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k' && !this.get('help').open) {
        event.preventDefault();
        this.get('search').select();
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || this.get('help').open) return;
      const typing = event.target.closest('input[type="search"], select, textarea, input[type="range"]');
      if (typing && event.key !== 'Escape') return;
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      const lanes = this.lanes;
      if (by && event.target.getAttribute('role') === 'tab') this.turn(by);
      else if (by && event.shiftKey) lanes.pan(by * 160);
      else if (by) this.step(by);
      else {
        const doing = {
          '+': () => lanes.zoom(1.5), '=': () => lanes.zoom(1.5), '-': () => lanes.zoom(1 / 1.5), 0: () => lanes.fit(),
          w: () => lanes.zoom(1.2), s: () => lanes.zoom(1 / 1.2), a: () => lanes.pan(-80), d: () => lanes.pan(80), z: () => this.zoomToSelected(),
          '/': () => this.get('search').focus(), n: () => this.step(1), p: () => this.step(-1),
          l: () => {
            const layer = this.picked ? this.plans[this.picked.p].layer[this.picked.t] : -1;
            if (layer >= 0) this.fold(layer);
          },
          f: () => this.axis.runs.length && this.foldAll(!this.get('fold').checked),
          '[': () => this.setStage(this.stage - 1), ']': () => this.setStage(this.stage + 1),
          t: () => this.view(this.shown === 'table' ? 'lanes' : 'table'),
          m: () => this.theme(), c: () => this.copyLink(), '?': () => this.get('help').showModal(),
          Enter: () => event.target.closest('button, summary, a') || this.get('details').focus(),
          Escape: () => {
            this.clear();
            this.unpick();
          },
        }[event.key];
        if (!doing) return;
        if (doing() instanceof Element && event.key === 'Enter') return;
      }
      event.preventDefault();
    });
  },

  // For printing: the cards at the top, a picture of all lanes, and the splits as a table.
  print() {
    const closed = [...document.querySelectorAll('#glance details:not([open])')];
    this.before = {theme: document.documentElement.dataset.theme, x0: this.lanes.x0, scale: this.lanes.scale, closed};
    document.documentElement.dataset.theme = 'light';
    for (const each of closed) each.open = true;
    const {lanes} = this, size = [lanes.canvas.width, lanes.canvas.height, lanes.width, lanes.height, lanes.ratio];
    lanes.readColors();
    const rows = this.plans.reduce((sum, plan) => sum + plan.backends.length, 0);
    [lanes.width, lanes.height, lanes.ratio] = [900, 80 + 90 * rows, 2.5];   // letters of 7 points on A4
    [lanes.canvas.width, lanes.canvas.height] = [lanes.width * 2.5, lanes.height * 2.5];
    lanes.fit();
    lanes.draw();
    const image = el('img', {alt: 'The lanes', src: lanes.canvas.toDataURL()});
    [lanes.canvas.width, lanes.canvas.height, lanes.width, lanes.height, lanes.ratio] = size;
    const legend = el('div.legend', {}, ...this.get('legend').cloneNode(true).children);
    const ran = this.recording ? [...printedPlans(this), ...this.timeline ? [this.timeline.picture()] : []] : [];
    this.get('printed').replaceChildren(...ran, image, legend, ...this.plans.map((plan, p) => printedSplits(this, p)));
  },

  printed() {
    document.documentElement.dataset.theme = this.before.theme;
    this.get('printed').replaceChildren();
    for (const each of this.before.closed) each.open = false;
    this.lanes.readColors();
    this.lanes.view(this.before.x0, this.before.scale);
    this.redraw();
  },
});

const MOST_PRINTED = 400;

function printedSplits(app, p) {
  const plan = app.plans[p], shown = plan.splits.slice(0, MOST_PRINTED);
  const title = app.diff ? `Splits ${p ? 'after' : 'before'}` : 'Splits';
  return el('div', {}, el('h2', {}, title), el('table', {},
    el('thead', {}, el('tr', {}, ...['#', 'backend', 'nodes', 'first', 'copied in'].map(text => el('th', {}, text)))),
    el('tbody', {}, ...shown.map(split => el('tr', {}, ...[
      `${split.index}`, plan.backendName(split.backend), `${split.start}–${split.end - 1}`,
      `${plan.label(split.start)} (${plan.op(split.start)})`,
      split.copies.length ? `${bytes(split.bytes)}: ${split.copies.slice(0, 6).map(copy => plan.label(copy.id)).join(', ')}${split.copies.length > 6 ? ', …' : ''}` : '–',
    ].map(text => el('td', {}, text)))))),
    shown.length < plan.splits.length ? el('p', {}, `${plan.splits.length - shown.length} more`) : null);
}

{
  const data = JSON.parse(document.getElementById('data').textContent);
  document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const isBeside = Boolean(data.beside) && location.hash.slice(1).startsWith(BESIDE);
  const shown = isBeside ? {...data, plans: [...data.plans, data.beside.plan], diff: data.beside.diff} : data;
  const app = window.page = new App(shown, isBeside);
  // page.html#ffn_out-3 and page.html#95 open with that node.
  app.visit(location.hash.slice(1));
  window.addEventListener('popstate', () => {
    const address = location.hash.slice(1);
    if (data.beside && address.startsWith(BESIDE) !== isBeside) location.reload();
    else app.visit(address);
  });
}
