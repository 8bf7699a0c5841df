// Memory: what the device holds, and its compute buffer as addresses × steps. A step is a node of the
// graph that is allocated.

const KINDS = [
  ['input of the graph', 'host', (plan, t) => plan.kind(t).kind !== 'node' && plan.kind(t).kind !== 'copy'],
  ['copy of another device’s', 'arrow', (plan, t) => plan.kind(t).kind === 'copy'],
  ['product', 'b0', (plan, t) => /^MUL_MAT|^OUT_PROD/.test(plan.op(t))],
  ['attention', 'b2', (plan, t) => /^FLASH_ATTN|^SOFT_MAX/.test(plan.op(t))],
  ['other op', 'b1', () => true],
];
const COLUMN = 150, AXIS = 64, FOOT = 18, CURVE = 70;   // pixels: the device, addresses, steps, bytes alive

class MemoryMap {
  constructor(app, panel) {
    this.app = app;
    this.plan = app.plans[0];
    this.i = this.step = this.from = 0;
    this.choice = el('select', {'aria-label': 'Compute buffer', onchange: event => this.choose(event.target.selectedIndex)},
      ...this.plan.buffers.map(each => el('option', {}, `${each.name}, ${exactBytes(each.size)}`)));
    this.canvas = el('canvas', {id: 'map', tabindex: 0, role: 'application',
      'aria-label': 'Addresses of the buffer, upwards, against the steps. Arrow keys move from step to step; the list has the tensors of the step as text.'});
    this.at = el('h2', {id: 'at'});
    this.alive = el('div', {id: 'alive'});
    const {savings, map} = this.plan.data;
    panel.replaceChildren(
      el('div.tools', {}, this.choice, el('button', {onclick: () => this.go(this.buffer.peakStep), title: 'The step with the most bytes alive'}, 'Peak'),
        el('button', {onclick: () => this.choose(this.i)}, 'All steps'), el('span.soft', {}, 'wheel: zoom · drag: move · ← →: step')),
      this.canvas,
      el('div.legend', {}, ...KINDS.map(([name, color]) => el('span', {}, tint(el('span.dot'), color), name)), el('span', {}, map.note)),
      el('div.under', {}, el('section', {}, this.at, this.alive),
        savings.length ? el('section', {}, el('h2', {}, 'What would lower it'), el('ul.rows', {}, ...savings.map(([flags, gain]) =>
          el('li', {}, el('span.right', {}, gain), el('code', {}, flags), ' ', copyButton(app, flags))))) : null));
    this.pointer();
    this.keys();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    if (this.plan.buffers.length) this.choose(0);
    else panel.replaceChildren(el('p.note', {}, map.note || 'No node of this plan needs a compute buffer.'));
  }

  get buffer() { return this.plan.buffers[this.i]; }
  get n() { return Math.max(1, this.plan.steps.length); }

  choose(i) {
    this.i = this.choice.selectedIndex = i;
    this.live = aliveOf(this.buffer, this.n);
    this.kinds = this.buffer.blocks.map(({tensor}) => KINDS.findIndex(kind => kind[2](this.plan, tensor)));
    [this.from, this.to] = [0, this.n];
    this.go(this.buffer.peakStep);
  }

  go(step) {
    this.step = Math.min(this.n - 1, Math.max(0, step));
    if (this.step < this.from || this.step + 1 > this.to) this.look(this.step - (this.to - this.from) / 2, this.to - this.from);
    this.draw();
    this.tell();
  }

  look(from, width) {
    const wide = Math.min(this.n, Math.max(4, width));
    this.from = Math.max(0, Math.min(this.n - wide, from));
    this.to = this.from + wide;
    this.draw();
  }

  x(step) { return COLUMN + AXIS + (step - this.from) / (this.to - this.from) * (this.width - COLUMN - AXIS); }
  y(address) { return this.high - address / Math.max(1, this.buffer.size) * (this.high - 8); }
  stepAt(x) { return Math.min(this.n - 1, Math.max(0, Math.floor(this.from + (x - COLUMN - AXIS) / (this.width - COLUMN - AXIS) * (this.to - this.from)))); }

  draw() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (!box.width || !this.buffer) return;
    [this.width, this.height] = [box.width, box.height];
    this.high = this.height - FOOT - CURVE;
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    const g = this.context = this.canvas.getContext('2d'), c = this.app.lanes.colors;
    g.scale(ratio, ratio);
    g.font = FONT;
    g.textBaseline = 'middle';
    this.device(g, c);
    g.save();
    g.beginPath();
    g.rect(COLUMN + AXIS, 0, this.width, this.height);
    g.clip();
    this.blocks(g, c);
    this.curve(g, c);
    g.restore();
    this.axes(g, c);
  }

  blocks(g, c) {
    const {app, plan, buffer} = this, picked = app.picked && !app.picked.p ? app.picked.t : -1;
    buffer.blocks.forEach((block, i) => {
      const left = this.x(block.first), right = this.x(Math.min(block.last, this.n - 1) + 1);
      if (right < COLUMN + AXIS || left > this.width) return;
      const top = this.y(block.at + block.padded), bottom = this.y(block.at), {tensor} = block;
      g.globalAlpha = app.filtered && !(plan.isNode(tensor) && app.match[0][tensor]) ? 0.12 : 1;
      g.fillStyle = c[KINDS[this.kinds[i]][1]];
      g.fillRect(left, top, Math.max(0.7, right - left), Math.max(0.7, bottom - top));
      g.globalAlpha = 1;
      if (tensor === picked || (right - left > 6 && bottom - top > 4)) {
        g.strokeStyle = tensor === picked ? c.pick : c.paper;
        g.lineWidth = tensor === picked ? 2 : 0.7;
        g.strokeRect(left, top, right - left, bottom - top);
      }
    });
    g.strokeStyle = c.pick;
    g.lineWidth = 1;
    for (const edge of [this.x(this.step), this.x(this.step + 1)]) line(g, edge, 0, edge, this.height - FOOT);
  }

  // The bytes alive, below the map on the same scale of steps.
  curve(g, c) {
    const base = this.height - FOOT, y = n => base - n / Math.max(1, this.buffer.size) * (CURVE - 12);
    g.fillStyle = c.faint;
    g.strokeStyle = c.accent;
    g.beginPath();
    g.moveTo(this.x(0), base);
    this.live.forEach((n, i) => { g.lineTo(this.x(i), y(n)); g.lineTo(this.x(i + 1), y(n)); });
    g.lineTo(this.x(this.n), base);
    g.fill();
    g.stroke();
  }

  axes(g, c) {
    g.fillStyle = c.soft;
    g.strokeStyle = c.line;
    g.textAlign = 'right';
    const {size, peak, peakStep} = this.buffer, every = [0, 0.25, 0.5, 0.75, 1];
    for (const part of every) {
      const y = this.y(part * size);
      g.fillText(exactBytes(Math.round(part * size)), COLUMN + AXIS - 6, Math.max(y, 7));
      line(g, COLUMN + AXIS - 4, y, COLUMN + AXIS, y);
    }
    g.textAlign = 'left';
    g.fillText(`alive: at most ${exactBytes(peak)}, at step ${peakStep}`, COLUMN + AXIS + 4, this.high + 8);
    for (let i = 0; i <= 8; i++) {
      const step = Math.round(this.from + (this.to - this.from) * i / 8), x = this.x(step);
      g.textAlign = i === 8 ? 'right' : i ? 'center' : 'left';
      g.fillText(i ? `${step}` : `step ${step}`, x, this.height - FOOT / 2);
    }
    g.textAlign = 'left';
  }

  // The device's memory as a column: weights, cache, compute, free.
  device(g, c) {
    const of = this.plan.data.memory.find(each => each.device === this.buffer.device);
    if (!of) return;
    const all = of.parts.reduce((sum, [, n]) => sum + n, 0), whole = Math.max(of.free || 0, all), height = this.height - FOOT - 8;
    const parts = of.parts.map(([name, n]) => [name, n, PARTS[name]]);
    if (of.free !== null && of.free > all) parts.push(['free', of.free - all, null]);
    let bottom = this.height - FOOT, below = bottom + 14;
    for (const [name, n, color] of parts) {
      const high = n / whole * height, top = bottom - high;
      g.fillStyle = color ? c[color] : c.faint;
      g.fillRect(4, top, 36, high);
      g.strokeStyle = c.paper;
      g.strokeRect(4, top, 36, high);
      const y = below = Math.max(8, Math.min((top + bottom) / 2, below - 14));
      g.fillStyle = c.ink;
      g.fillText(`${name} ${exactBytes(n)}`, 46, y, COLUMN - 50);
      bottom = top;
    }
    g.fillStyle = c.soft;
    g.fillText(of.device, 4, this.height - FOOT / 2, COLUMN - 8);
  }

  tell() {
    const alive = aliveAt(this.buffer, this.step), {plan, app} = this;
    this.at.textContent = `Step ${this.step}: ${plan.steps.length ? plan.step(this.step) : 'nothing'}. Alive: `
      + `${exactBytes(alive.reduce((sum, block) => sum + block.padded, 0))} in ${plural(alive.length, 'tensor')}`;
    this.alive.replaceChildren(el('table', {}, el('thead', {}, el('tr', {}, ...['tensor', 'bytes', 'address', 'steps', 'reuse'].map(text => el('th', {}, text)))),
      el('tbody', {}, ...alive.slice(0, MOST_ALIVE).map((block, i) => el('tr', {'data-tensor': block.tensor, 'aria-selected': String(app.picked?.t === block.tensor)},
        el('td', {}, el('button.ref', {onclick: () => this.pick(block.tensor)}, plan.label(block.tensor)), ` (${plan.op(block.tensor)})`),
        el('td.num', {}, exactBytes(block.padded)), el('td.num', {}, exactBytes(block.at)),
        el('td', {}, `${block.first} – ${block.kept ? 'the end' : block.last}`),
        el('td', {}, block.placeOf >= 0 ? `in the place of ${plan.label(block.placeOf)}` : '')))),
      alive.length > MOST_ALIVE ? el('caption', {}, `the largest ${MOST_ALIVE} of ${alive.length}`) : null));
  }

  pick(tensor) {
    this.app.pick(0, tensor);
    this.draw();
    this.tell();
  }

  // The block under a point; of several that share bytes in turn, the one alive then.
  blockAt(x, y) {
    const step = this.stepAt(x), address = (this.high - y) / (this.high - 8) * this.buffer.size;
    return x < COLUMN + AXIS ? undefined : this.buffer.blocks.filter(block => block.first <= step && step <= block.last
      && block.at <= address && address < block.at + block.padded).sort((a, b) => b.first - a.first)[0];
  }

  pointer() {
    const {canvas, app} = this, tip = app.get('tip');
    const at = event => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let drag = null;
    canvas.addEventListener('pointerdown', event => {
      drag = {x: event.clientX, from: this.from, moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', event => {
      if (drag && event.buttons) {
        const moved = event.clientX - drag.x;
        drag.moved ||= Math.abs(moved) > 3;
        if (drag.moved) this.look(drag.from - moved / (this.width - COLUMN - AXIS) * (this.to - this.from), this.to - this.from);
        return;
      }
      const block = this.blockAt(...at(event)), text = block && `${this.plan.label(block.tensor)} · ${this.plan.op(block.tensor)} · ${exactBytes(block.size)} · steps ${block.first} – ${block.kept ? 'the end' : block.last}`;
      app.tipAt(tip, event, text);
    });
    canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
    canvas.addEventListener('pointerup', event => {
      const moved = drag?.moved, [x, y] = at(event);
      drag = null;
      if (moved || x < COLUMN + AXIS) return;
      const block = this.blockAt(x, y);
      this.go(this.stepAt(x));
      if (block) this.pick(block.tensor);
    });
    canvas.addEventListener('wheel', event => {
      event.preventDefault();
      const part = (at(event)[0] - COLUMN - AXIS) / (this.width - COLUMN - AXIS), wide = this.to - this.from, width = wide * (event.deltaY > 0 ? 1.25 : 0.8);
      this.look(this.from + part * (wide - width), width);
    }, {passive: false});
  }

  keys() {
    this.canvas.addEventListener('keydown', event => {
      const doing = {ArrowLeft: () => this.go(this.step - 1), ArrowRight: () => this.go(this.step + 1),
        Home: () => this.go(0), End: () => this.go(this.n - 1)}[event.key];
      if (!doing || event.shiftKey) return;
      doing();
      event.preventDefault();
      event.stopPropagation();
    });
  }
}
const MOST_ALIVE = 200;

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}

VIEWS.push({
  name: 'memory', label: 'Memory', has: app => !app.diff && app.plans[0].data.memory.length + app.plans[0].buffers.length > 0,
  make: (app, panel) => { app.memory = new MemoryMap(app, panel); },
  show: app => app.memory.draw(),
});

Object.assign(App.prototype, {
  // The memory of a device, at the step with the most bytes alive.
  showMemory(device) {
    this.view('memory');
    const i = this.plans[0].buffers.findIndex(each => each.device === device);
    if (i >= 0) this.memory.choose(i);
  },
});
