// What ran, and when: a strip of all computes to pick one from, and the tracks of that one. Times
// that are bounds are hatched, those that are not known are pale.

const NAMES = 128, TICKS = 20, TRACK = 26, STRIP = 62;
const WHAT = ['compute', 'copy', 'nodes', 'wait', 'event_record', 'event_wait', 'give'];
const KNOWN = ['measured', 'at most: its nodes were known to be done by then', 'not known: nothing waited for it'];
const TICK = [1, 2, 5], NOT_TIMED = 'no compute of it was timed';

class Timeline {
  constructor(app, panel) {
    this.app = app;
    this.program = app.listed(app.number).program;
    if (!this.program.run) this.program = app.recording.programs.find(each => each.run);
    this.picked = null;
    const button = (text, title, onclick) => el('button', {title, 'aria-label': title, onclick}, text);
    this.told = el('output.told');
    this.strip = el('canvas.strip', {tabindex: 0, role: 'application', 'aria-label': 'The time of each compute. Arrow keys go from one to the next.'});
    this.canvas = el('canvas.tracks', {tabindex: 0, role: 'application', 'aria-label': 'What ran in this compute, with a track for each device. Arrow keys go from slice to slice; the details list the longest.'});
    this.notes = el('div.notes-line');
    panel.append(
      el('div.times', {}, button('‹', 'Compute before', () => this.step(-1)), button('›', 'Next compute', () => this.step(1)), this.told,
        el('span.gap'), ...['median', 'slowest', 'first', 'last'].map(which => button(which, `The ${which} compute of this plan`, () => this.choose(which))),
        button('−', 'Zoom out', () => this.zoom(1 / 1.6)), button('⤢', 'All of this compute', () => this.fit()), button('+', 'Zoom in', () => this.zoom(1.6))),
      this.strip, el('div.tracks-scroll', {}, this.canvas), this.notes);
    for (const canvas of [this.strip, this.canvas]) new ResizeObserver(() => this.draw()).observe(canvas.parentNode);
    this.pointer();
    this.keys();
    this.open();
  }

  get run() { return this.program.run; }

  // Shows the compute that the page is at.
  open(program = this.app.listed(this.app.number).program) {
    if (program.run && program !== this.program) this.decoded = null;
    if (program.run) this.program = program;
    const {run, app} = this;
    this.starts = this.decoded ??= summed(run.start);
    this.i = program.run ? app.compute : -1;   // -1: the plan was not computed, or not timed
    this.number = this.i < 0 ? app.number : run.plan[this.i];
    this.picked = null;
    let at = 0;
    this.slices = (run.slices[this.i] || []).map(([kind, gap, ns, a, b, most]) => {
      const [track, what, known, split, from, by] = run.kinds[kind], start = at += gap;
      const slice = {track, what: WHAT[what], start, ns, end: start + ns, known, split, from: run.strings[from], by: run.strings[by]};
      return slice.what === 'nodes' ? {...slice, first: a, last: a + (b || 0), most, name: this.nodesName(split, a, b)} : {...slice, name: run.strings[a], bytes: b};
    });
    this.tracks = run.tracks.map(([scheduler, kind, name, color], i) => ({scheduler, kind, name, color, i}))
      .filter(track => this.i >= 0 && track.scheduler === run.scheduler[this.i]);
    if (!this.slices.length) this.tracks = this.tracks.filter(track => track.kind === 'scheduler');
    this.tracks.forEach(track => {
      if (track.kind === 'nodes') track.name = `${track.name}: nodes`;
    });
    this.predict();
    this.length = Math.max(run.took[this.i] ?? 0, ...this.slices.map(slice => slice.end), this.foreseen ? this.foreseen.end : 0, 1) * 1.02;
    this.tell();
    this.fit();
  }

  // Nodes that were computed alone have a name of their own.
  nodesName(split, first, more) {
    if (more || split >= 0) return `split ${split}`;
    return first < 0 ? 'nodes' : this.number === this.app.number ? this.app.plans[0].label(first) : `node ${first}`;
  }

  // How long a slice took, with the bound of its time.
  took(slice) {
    if (slice.known === 2) return slice.what === 'nodes' ? 'an unknown time' : `handed over in ${duration(slice.ns)}`;
    return slice.known ? `at most ${duration(slice.most ?? slice.ns)}` : duration(slice.ns);
  }

  // The predicted times of the plan's splits, with the copies into them.
  predict() {
    const predicted = this.app.recording.drawn[this.number]?.predicted;
    this.foreseen = null;
    if (!predicted || predicted.total < 0) return;
    const {backends} = this.app.plans[0], blocks = [];
    predicted.splits.forEach(([backend, start, end], split) =>
      blocks.push({name: `split ${split} on ${backends[backend].name}`, color: backends[backend].color, start, end}));
    this.foreseen = {blocks, end: Math.max(predicted.total, ...blocks.map(block => block.end)), total: predicted.total, said: predicted.said};
  }

  // What this compute is, in words.
  tell() {
    const {run, i, number, app} = this, listed = app.listed(number);
    const known = Number(run.known[i] ?? 0);
    const took = `${['', 'at most ', 'at least '][known]}${duration(run.took[i])}`;
    const speed = listed && !run.per_op ? rate(listed.row.n_tokens, run.took[i], known) : '';
    this.told.textContent = i < 0 ? `Plan ${number}, ${listed.row.label}: ${NOT_TIMED}` : [`Compute ${this.place(i) + 1} of ${run.n}`, listed ? `plan ${number}, ${listed.row.label}` : 'its plan cannot be read',
      took, speed].filter(text => text).join(' · ');
    const notes = [...this.program.about.filter(text => /simulated|one by one|not kept|without a plan/.test(text))];
    if (run.number) notes.push(`${run.took.length} of ${run.n} computes are in this page: the slowest, and others at equal distances`);
    if (i >= 0 && !run.slices[i]) notes.push('only the whole time of this compute is in this page: the median, the slowest, the first and the last of each plan have their splits, as far as there is room'
      + (app.recording.file ? '; `ggml-py view RECORD --run -o run.trace.json` has all, for Perfetto' : ''));
    this.notes.replaceChildren(
      ...[['hatched', 'at most'], ['pale', 'not known'], ['waiting', 'wait'], ['arrow', 'copy'], ...this.foreseen ? [['foreseen', 'predicted']] : []]
        .map(([kind, text]) => el('span', {}, el(`span.dot.is-${kind}`), text)), ...notes.map(text => el('span.doubtful', {}, text)));
  }

  place(i) { return this.run.number ? this.run.number[i] : i; }

  choose(which) {
    const {run, app} = this, number = this.number;
    const own = run.plan.flatMap((plan, i) => plan === number ? [i] : []);
    const by = {first: () => own[0], last: () => own.at(-1), median: () => app.usualCompute(number),
      slowest: () => own.reduce((a, b) => run.took[b] > run.took[a] ? b : a, own[0])};
    this.go(by[which]());
  }

  step(by) { this.go(Math.min(Math.max(this.i + by, 0), this.run.took.length - 1)); }
  go(i) { if (i !== undefined && i >= 0) this.app.openCompute(this.program, i); }

  // --- what is in view

  fit() {
    this.x0 = 0;
    this.scale = 0;
    this.draw();
  }

  zoom(factor, at = (this.width + NAMES) / 2) {
    const least = this.least(), before = this.scale, here = this.x0 + (at - NAMES) / before;
    this.scale = Math.min(Math.max(before * factor, least), 20);   // a pixel is 50 ns at least
    this.x0 = here - (at - NAMES) / this.scale;
    this.draw();
  }

  pan(pixels) {
    this.x0 += pixels / this.scale;
    this.draw();
  }

  least() { return (this.width - NAMES - 8) / this.length; }
  x(ns) { return NAMES + (ns - this.x0) * this.scale; }

  // --- drawing

  sized(canvas, height) {
    const ratio = window.devicePixelRatio || 1, width = Math.max(canvas.parentNode.clientWidth, NAMES + 60);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.font = FONT;
    g.textBaseline = 'middle';
    g.fillStyle = this.app.lanes.colors.paper;
    g.fillRect(0, 0, width, height);
    return [g, width, height];
  }

  draw() {
    if (this.canvas.closest('[hidden]')) return;
    this.drawStrip();
    this.drawTracks();
  }

  // A bar for each compute, as high as it took; longer ones than fit have a gap.
  drawStrip() {
    const {run, app} = this, c = app.lanes.colors, [g, width] = this.sized(this.strip, STRIP);
    const n = run.took.length, own = run.took.filter((_, i) => run.plan[i] === app.number).sort((a, b) => a - b);
    const usual = own.length ? 1.5 * own[Math.floor(0.9 * (own.length - 1))] : Infinity;
    const most = Math.max(Math.min(run.took.reduce((a, b) => Math.max(a, b), 0), usual), 1);   // so that those of the plan can be told apart
    const each = this.each = Math.min((width - NAMES - 8) / n, 18), high = STRIP - 14;
    g.fillStyle = c.soft;
    g.textAlign = 'right';
    g.fillText(duration(Math.round(most)), NAMES - 6, 10);
    g.fillText('each compute', NAMES - 6, high);
    g.textAlign = 'left';
    for (let i = 0; i < n; i++) {
      const x = NAMES + i * each, long = run.took[i] > most, h = Math.max(Math.min(run.took[i] / most, 1) * (high - 4), 1.5);
      this.block(g, x, high - h, Math.max(each - (each > 3 ? 1 : 0), 1), h, run.plan[i] === app.number ? c.accent : c.soft, Number(run.known[i]));
      if (long) {
        g.fillStyle = c.paper;
        g.fillRect(x, 10, Math.max(each, 1), 3);
      }
      if (run.slices[i] && each > 3) {
        g.fillStyle = c.soft;
        g.fillRect(x + each / 2 - 1.5, high + 3, 2, 2);
      }
    }
    if (this.i < 0) return;
    g.fillStyle = c.pick;
    const x = NAMES + (this.i + 0.5) * each;
    g.beginPath();
    g.moveTo(x, high + 2);
    g.lineTo(x - 5, high + 11);
    g.lineTo(x + 5, high + 11);
    g.fill();
  }

  drawTracks() {
    const {app} = this, c = app.lanes.colors, rows = this.tracks.length + (this.foreseen ? 1 : 0);
    const [g, width, height] = this.sized(this.canvas, Math.max(TICKS + rows * TRACK + 6, this.low ? 0 : this.canvas.parentNode.clientHeight - 2));
    this.width = width;
    this.scale = Math.max(this.scale || 0, this.least());
    this.x0 = Math.max(0, Math.min(this.x0, this.length - (width - NAMES - 8) / this.scale));
    g.save();
    g.beginPath();
    g.rect(NAMES, 0, width - NAMES, height);
    g.clip();
    this.ruler(g, c, width, height);
    this.tracks.forEach((track, row) => {
      g.fillStyle = c.faint;
      g.fillRect(NAMES, this.y(row), width - NAMES, TRACK - 5);
    });
    this.hits = [];
    const order = ['compute', 'nodes', 'copy', 'give', 'wait', 'event_record', 'event_wait'];
    for (const what of order) for (const slice of this.slices) if (slice.what === what) this.slice(g, c, slice, width);
    const {run, i} = this;
    if (i >= 0 && !this.slices.length) this.slice(g, c, {track: this.tracks[0]?.i, what: 'compute', start: 0, end: run.took[i], ns: run.took[i], known: Number(run.known[i]), name: 'the whole compute'}, width);
    for (const at of i < 0 ? [] : [run.called[i], run.took[i]]) this.mark(g, c, at, height);
    if (this.foreseen) this.drawForeseen(g, c, width);
    g.restore();
    g.fillStyle = c.ink;
    this.tracks.forEach((track, row) => g.fillText(fitting(g, track.name, NAMES - 12), 6, this.y(row) + (TRACK - 5) / 2));
    if (this.foreseen) g.fillText('predicted', 6, this.y(this.tracks.length) + (TRACK - 5) / 2);
  }

  y(row) { return TICKS + row * TRACK; }

  // Ticks in ms, or in µs where a ms is wide.
  ruler(g, c, width, height) {
    const wanted = 90 / this.scale, power = 10 ** Math.floor(Math.log10(wanted));
    const step = Math.max(TICK.map(n => n * power).find(n => n >= wanted) ?? 10 * power, 1);
    g.strokeStyle = c.line;
    g.fillStyle = c.soft;
    g.lineWidth = 1;
    for (let at = Math.ceil(this.x0 / step) * step; this.x(at) < width; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      g.beginPath();
      g.moveTo(x, TICKS - 4);
      g.lineTo(x, height);
      g.stroke();
      g.fillText(step >= 1e4 ? `${Number((at / 1e6).toFixed(2))} ms` : `${Number((at / 1e3).toFixed(3))} µs`, x + 3, TICKS / 2);
    }
  }

  // When the call returned, and when all was known to be done.
  mark(g, c, ns, height) {
    g.strokeStyle = c.pick;
    g.setLineDash([3, 3]);
    g.beginPath();
    g.moveTo(this.x(ns) + 0.5, TICKS - 4);
    g.lineTo(this.x(ns) + 0.5, height);
    g.stroke();
    g.setLineDash([]);
  }

  slice(g, c, slice, width) {
    const row = this.tracks.findIndex(track => track.i === slice.track);
    const x = this.x(slice.start), w = Math.max((slice.end - slice.start) * this.scale, 1);
    if (row < 0 || x + w < NAMES || x > width) return;
    const track = this.tracks[row], y = this.y(row), h = TRACK - 5, whole = slice.what === 'compute';
    const color = {copy: 'arrow', wait: 'none', give: 'host2', event_record: 'soft', event_wait: 'soft'}[slice.what] || (whole ? 'line' : track.color);
    g.globalAlpha = this.dimmed(slice) ? 0.15 : 1;
    if (whole && this.slices.length) {
      g.strokeStyle = c.soft;
      g.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    } else this.block(g, x, y, w, h, c[color], slice.known);
    g.globalAlpha = 1;
    if (slice === this.picked || (slice.what === 'nodes' && this.holds(slice))) {
      g.strokeStyle = c.pick;
      g.lineWidth = 2;
      g.strokeRect(x, y, w, h);
      g.lineWidth = 1;
    }
    if (w > (slice.known ? 90 : 34) && !whole) {
      g.fillStyle = c[`on-${color}`] || c.ink;
      const from = Math.max(x, NAMES) + 4, text = fitting(g, slice.known ? this.said(slice) : slice.name, (slice.known ? 0.7 : 1) * (x + w - from - 3));
      if (slice.known) {
        g.fillStyle = c.paper;   // a ground to read it on
        g.fillRect(from - 2, y + 2, g.measureText(text).width + 4, text ? h - 4 : 0);
        g.fillStyle = c.ink;
      }
      g.fillText(text, from, y + h / 2);
    }
    if (!whole || !this.slices.length) this.hits.push({x, y, w, h, slice});
  }

  // A block: hatched for a bound, pale with a frame if it is not known.
  block(g, x, y, w, h, color, known) {
    g.fillStyle = color;
    const alpha = g.globalAlpha;
    if (known === 2) g.globalAlpha = alpha * 0.25;
    g.fillRect(x, y, w, h);
    g.globalAlpha = alpha;
    if (!known) return;
    g.save();
    g.beginPath();
    g.rect(x, y, w, h);
    g.clip();
    if (known === 1) {
      g.strokeStyle = this.app.lanes.colors.paper;
      g.lineWidth = 3;
      g.beginPath();
      const from = Math.max(x, 0) - h, to = Math.min(x + w, this.canvas.width);
      for (let at = from - (from - x) % 9; at < to; at += 9) {
        g.moveTo(at, y + h);
        g.lineTo(at + h, y);
      }
      g.stroke();
    }
    g.strokeStyle = color;
    g.lineWidth = 2;
    g.setLineDash(known === 2 ? [4, 3] : []);
    g.strokeRect(x, y, w, h);
    g.restore();
  }

  drawForeseen(g, c, width) {
    const y = this.y(this.tracks.length), h = TRACK - 5;
    for (const block of this.foreseen.blocks) {
      const x = this.x(block.start), w = Math.max((block.end - block.start) * this.scale, 1);
      if (x + w < NAMES || x > width) continue;
      g.globalAlpha = 0.45;
      g.fillStyle = c[block.color];
      g.fillRect(x, y, w, h);
      g.globalAlpha = 1;
      g.strokeStyle = c[block.color];
      g.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 0.5), h - 1);
      this.hits.push({x, y, w, h, block});
    }
  }

  // Whether the page shows its plan, and the filters leave none of its nodes.
  dimmed(slice) {
    const {app} = this;
    if (!app.filtered || slice.what !== 'nodes' || this.number !== app.number) return false;
    for (let t = slice.first; t <= slice.last; t++) if (app.match[0][t]) return false;
    return true;
  }

  holds(slice) {
    const {picked} = this.app;
    return picked && this.number === this.app.number && slice.first <= picked.t && picked.t <= slice.last;
  }

  // --- the pointer and keys

  hit(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return this.hits.findLast(each => x >= each.x - 2 && x <= each.x + each.w + 2 && y >= each.y && y <= each.y + each.h && x >= NAMES);
  }

  barAt(event) {
    const i = Math.floor((event.clientX - this.strip.getBoundingClientRect().left - NAMES) / this.each);
    if (i < 0 || i >= this.run.took.length) return -1;
    if (this.each >= 1) return i;
    const near = [...Array(Math.ceil(1 / this.each)).keys()].map(k => i + k).filter(k => k < this.run.took.length);
    return near.reduce((a, b) => this.run.took[b] > this.run.took[a] ? b : a, i);   // the slowest at this pixel
  }

  tip(event, text) { this.app.tipAt(this.app.get('tip'), event, text); }

  said(slice) {
    return `${slice.name} · ${this.took(slice)}${slice.bytes ? ` · ${bytes(slice.bytes)}` : ''}`;
  }

  pointer() {
    const {strip, canvas} = this;
    strip.addEventListener('click', event => this.go(this.barAt(event)));
    strip.addEventListener('pointermove', event => {
      const i = this.barAt(event), listed = i < 0 ? null : this.app.listed(this.run.plan[i]);
      this.tip(event, i < 0 ? '' : `compute ${this.place(i) + 1}${listed ? `: ${listed.row.label}` : ''}, ${['', 'at most ', 'at least '][this.run.known[i]]}${duration(this.run.took[i])}`);
    });
    let from = null;
    canvas.addEventListener('pointerdown', event => {
      from = {x: event.clientX, moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', event => {
      if (from && event.buttons) {
        const by = from.x - event.clientX;
        if (Math.abs(by) > 3 || from.moved) {
          [from.x, from.moved] = [event.clientX, true];
          this.pan(by);
        }
        return;
      }
      const hit = this.hit(event);
      this.tip(event, hit?.slice ? this.said(hit.slice) : hit ? `${hit.block.name}: predicted ${duration(hit.block.end - hit.block.start)}` : '');
    });
    canvas.addEventListener('pointerup', event => {
      const dragged = from?.moved;
      from = null;
      if (!dragged) this.pick(this.hit(event)?.slice || null);
    });
    canvas.addEventListener('dblclick', event => {
      const slice = this.hit(event)?.slice;
      if (slice) this.into(slice);
    });
    canvas.addEventListener('wheel', event => {
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX || event.deltaY);
      else this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), event.clientX - canvas.getBoundingClientRect().left);
      event.preventDefault();
    }, {passive: false});
    for (const each of [strip, canvas]) each.addEventListener('pointerleave', () => { this.app.get('tip').hidden = true; });
  }

  keys() {
    const on = (canvas, doing) => canvas.addEventListener('keydown', event => {
      const act = event.ctrlKey || event.metaKey || event.altKey ? null : doing[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act(event);
    });
    on(this.strip, {ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), Home: () => this.go(0), End: () => this.go(this.run.took.length - 1)});
    const next = by => {
      const own = this.slices.filter(slice => slice.what !== 'compute');
      if (own.length) this.pick(own[Math.min(Math.max(own.indexOf(this.picked) + by, 0), own.length - 1)], true);
    };
    on(this.canvas, {
      ArrowLeft: event => event.shiftKey ? this.pan(-120) : next(-1), ArrowRight: event => event.shiftKey ? this.pan(120) : next(1),
      '+': () => this.zoom(1.6), '=': () => this.zoom(1.6), '-': () => this.zoom(1 / 1.6), 0: () => this.fit(),
      Enter: () => this.picked && this.into(this.picked), Escape: () => this.pick(null),
    });
  }

  pick(slice, show = false) {
    this.picked = slice;
    this.app.picked = this.app.pickedArrow = null;
    if (slice && show && (this.x(slice.end) < NAMES + 10 || this.x(slice.start) > this.width - 10)) this.x0 = slice.start - 60 / this.scale;
    details(this.app);
    this.app.say(slice ? this.said(slice) : '');
    this.draw();
  }

  // Zooms to a slice.
  into(slice) {
    this.scale = Math.min(Math.max(0.6 * (this.width - NAMES) / Math.max(slice.end - slice.start, 1), this.least()), 20);
    this.x0 = (slice.start + slice.end) / 2 - (this.width - NAMES) / 2 / this.scale;
    this.pick(slice);
  }

  // --- the details

  details() { return this.picked ? this.sliceDetails(this.picked) : this.computeDetails(); }

  facts(rows) {
    return el('dl.facts', {}, ...rows.flatMap(([what, value]) => value === '' || value === null ? [] : [el('dt', {}, what), el('dd', {}, String(value))]));
  }

  sliceDetails(slice) {
    const {app, number} = this, track = this.tracks.find(each => each.i === slice.track);
    const drawn = number === app.number, nodes = slice.what === 'nodes' ? [...Array(slice.last - slice.first + 1).keys()].map(t => t + slice.first) : [];
    const doubt = slice.what === 'copy' && slice.known ? 'not known: it was handed over, to be copied later' : KNOWN[slice.known];
    return [
      el('h2.name', {}, slice.name),
      el('div.tags', {}, el('span.tag', {}, slice.what), el('span.tag', {}, track ? track.name : '')),
      this.facts([
        ['took', this.took(slice)],
        ['known by', slice.what === 'nodes' || slice.what === 'copy' ? doubt : 'measured'],
        ['begins', `after ${duration(slice.start)}`],
        ['split', slice.split >= 0 ? slice.split : nodes.length && drawn ? app.plans[0].split[slice.first] : ''],
        ['bytes', slice.bytes ? `${bytes(slice.bytes)}${slice.known || !slice.ns ? '' : `, ${bytes(slice.bytes / slice.ns * 1e9)}/s`}` : ''],
        ['from', slice.from || ''], ['by', slice.by || ''],
        ['nodes', nodes.length > 1 ? `${slice.first} to ${slice.last}: only their time together is known` : ''],
      ]),
      nodes.length && drawn ? el('button', {onclick: () => {
        app.view('lanes');
        if (nodes.length > 1) app.choose(slice.name, [nodes]);
        else app.pick(0, slice.first);
      }}, nodes.length > 1 ? 'Show these nodes in the lanes' : 'Why is it there?') : null,
      el('button', {onclick: () => this.into(slice)}, 'Zoom in'),
      el('button', {onclick: () => this.pick(null)}, 'The whole compute'),
    ].filter(Boolean);
  }

  computeDetails() {
    if (this.i < 0) return [el('h2.name', {}, `Plan ${this.number}`), el('p', {}, `${NOT_TIMED}.`), el('p', {}, 'Pick a compute of another plan above, or look at its lanes.')];
    const {run, i, number, app} = this, known = Number(run.known[i]), listed = app.listed(number), stats = run.stats[number];
    const tokens = listed && !run.per_op ? listed.row.n_tokens : 0;
    const sums = new Map();
    for (const slice of this.slices) {
      if (slice.what === 'compute' || slice.what.startsWith('event')) continue;
      const track = this.tracks.find(each => each.i === slice.track);
      const what = {wait: 'waits of the scheduler', give: 'handing nodes over'}[slice.what] || track.name;
      const sum = sums.get(what) || {what, ns: 0, known: 0, color: slice.what === 'copy' ? 'arrow' : slice.what === 'nodes' ? track.color : 'none'};
      sum.ns += slice.ns;
      sum.known = Math.max(sum.known, slice.known);
      sums.set(what, sum);
    }
    const longest = this.slices.filter(slice => slice.what !== 'compute').sort((a, b) => b.ns - a.ns).slice(0, 8);
    const all = stats ? [stats.unknown === stats.n ? '' : `${stats.bound ? 'at most ' : ''}${duration(stats.low)} to ${duration(stats.high)}`] : [''];
    const bound = stats && stats.unknown === stats.n ? 2 : stats?.bound ? 1 : 0;
    return [
      el('h2.name', {}, `Compute ${this.place(i) + 1} of ${run.n}`),
      el('p.big', {}, `${['', 'at most ', 'at least '][known]}${duration(run.took[i])}`, el('small', {}, ` ${rate(tokens, run.took[i], known)}`)),
      this.facts([
        ['plan', listed ? `${number}, ${listed.row.label}${number in app.recording.drawn ? '' : ' (only listed: another plan is shown)'}` : 'cannot be read'],
        ['known by', ['measured', 'at most: all was known to be done by then', 'at least: nothing waited for some of its nodes'][known]],
        ['began', `${duration(this.starts[i])} after the first`],
        ['call returned', `after ${duration(run.called[i])}`],
        ['predicted', this.foreseen ? this.foreseen.said.replace('predicted', duration(this.foreseen.total)) : ''],
      ]),
      ...sums.size ? [el('h3', {}, 'Where it went (tracks overlap)'), el('ul.rows', {}, ...[...sums.values()].sort((a, b) => b.ns - a.ns).map(sum => {
        const meter = tint(el('span.meter'), sum.color);
        meter.style.width = `${Math.max(1, Math.min(100, 100 * sum.ns / run.took[i]))}%`;
        return el('li', {}, el('span.row', {}, el('span.right', {}, sum.known === 2 ? 'not known' : `${sum.known ? 'at most ' : ''}${duration(sum.ns)}`), sum.what, sum.known === 2 ? null : meter));
      }))] : [],
      ...stats ? [el('h3', {}, `${plural(stats.n, 'compute')} of this plan`), this.facts([
        ['median', `${['', 'at most ', 'at least '][bound]}${duration(stats.median)}`], ['from', all[0]],
        ['tokens/s', rate(tokens, stats.median, bound).replace(' tokens/s', '')],
        ['with the time between', stats.period > 0 && tokens ? rate(tokens, stats.period, 0) : ''],
        ['in all', `${duration(stats.total)}`],
        ['not known', stats.unknown ? `the end of ${stats.unknown}: nothing waited` : ''],
      ])] : [],
      ...longest.length ? [el('h3', {}, 'Longest'), el('ul.rows', {}, ...longest.map(slice => el('li', {}, el('button.row', {onclick: () => this.pick(slice, true)},
        el('span.right', {}, this.took(slice)), slice.name,
        el('span.small', {}, this.tracks.find(each => each.i === slice.track)?.name || '')))))] : [],
    ];
  }

  // For printing: the tracks as a picture.
  picture() {
    const {width, scale, x0} = this, size = [this.canvas.width, this.canvas.height];
    this.low = true;
    this.fit();
    this.low = false;
    const image = el('img', {alt: this.told.textContent, src: this.canvas.toDataURL()});
    [this.width, this.scale, this.x0, this.canvas.width, this.canvas.height] = [width, scale, x0, ...size];
    return image;
  }
}

// As much of a text as there is room for.
function fitting(g, text, room) {
  if (room < 8) return '';
  if (g.measureText(text).width <= room) return text;
  let n = Math.floor(text.length * room / g.measureText(text).width);
  while (n > 0 && g.measureText(`${text.slice(0, n)}…`).width > room) n--;
  return n > 1 ? `${text.slice(0, n)}…` : '';
}

VIEWS.unshift({
  name: 'timeline', label: 'Timeline', has: app => Boolean(app.recording?.programs.some(program => program.run)),
  make(app, panel) { app.timeline ??= new Timeline(app, panel); },
  show: app => app.timeline.draw(),
});
