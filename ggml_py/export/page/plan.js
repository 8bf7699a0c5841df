// One plan, decoded from what data.py wrote. Tensors are referred to by id: first the nodes, in the
// order they run, then leafs and others, then copies.

const KIND = ['kind', 'op', 'type', 'ne', 'signature', 'place', 'nbytes', 'flops', 'bytes', 'weight'];

// Undoes differences: the first number, then how much each adds to the one before.
function summed(steps) {
  let at = 0;
  return steps.map(step => (at += step));
}

class Plan {
  constructor(data) {
    this.data = data;
    if (data.chips.some(([, value]) => value === 'debug log')) sizesAreLeast = true;
    this.headline = data.headline;
    this.backends = data.backends;
    this.n = data.nodes;
    this.kinds = data.kinds.map(row => Object.fromEntries(KIND.map((key, i) => [key, row[i]])));
    this.names = summed(data.name);
    this.total = this.names.length;
    this.backend = Int8Array.from(data.backend);
    this.layer = Int32Array.from(data.layer);
    this.computed = Uint8Array.from(data.computed, Number);
    this.computedOn = this.backends.map(() => 0);   // how many nodes each backend computes
    for (let t = 0; t < this.n; t++) if (this.computed[t] && this.backend[t] >= 0) this.computedOn[this.backend[t]]++;
    this.split = new Int32Array(this.n);
    this.splits = data.splits.map(([backend, start, end], index) => {
      this.split.fill(index, start, end);
      return {index, backend, start, end, copies: [], bytes: 0};
    });
    this.time = data.times;   // ns, -1 if not known; null if nothing was measured or predicted
    this.predicted = Boolean(this.time) && this.time.splits.some(([, known]) => known === 'predicted');
    this.copies = data.copies.map(([split, id, copy, what, from, nbytes], i) =>
      ({ns: this.time ? this.time.copies[i] : 0, waited: this.time ? this.time.waits[i] : 0, split, id, copy, what, from, nbytes, to: this.splits[split].backend}));
    this.copiesOf = new Map();   // tensor -> copies made of it
    this.isCopy = new Map();     // id of a copy -> the copy
    for (const copy of this.copies) {
      const split = this.splits[copy.split];
      split.copies.push(copy);
      split.bytes += copy.nbytes;
      this.copiesOf.set(copy.id, [...this.copiesOf.get(copy.id) || [], copy]);
      this.isCopy.set(copy.copy, copy);
    }
    this.copyBytes = this.copies.reduce((sum, copy) => sum + copy.nbytes, 0);
    this.off = data.off;
    this.offOf = new Array(this.n).fill(null);   // the reason why a node is on the host
    for (const row of this.off) for (const i of row.nodes) this.offOf[i] = row;
    this.starts = summed(data.why);
    this.linkTensor = summed(data.links.tensor);
    this.linkText = summed(data.links.text);
    this.stages = data.stages;
    this.buffers = data.map.buffers.map(each => blocksOf(each, this.n));
    this.steps = summed(data.map.steps);
    this.byLabel = null;
    this.readersOf = null;
  }

  role(t) { return this.data.role.charCodeAt(t) - 48; }

  // What happens at a step of the memory's layout.
  step(i) {
    const step = this.steps[i] ?? -1;
    if (step < 0) return 'a node of the graph that the layout was made for';
    return step % 2 ? `copy of ${this.label(step >> 1)}` : `${this.label(step >> 1)} (${this.op(step >> 1)})`;
  }

  // The time of a node; -1 for nodes that were computed together: only their split's is known.
  took(t) { return this.time ? this.time.nodes[t] : -1; }
  splitTime(split) { const [ns, known] = this.time.splits[split]; return {ns, known}; }

  // The time of the copies into a split, as far as it is known.
  copyTime(split) { return split.copies.reduce((sum, copy) => sum + Math.max(copy.ns, 0), 0); }

  // A node's width where widths are times. Nodes of such a split share its time in equal parts.
  timeWidth(t) {
    if (!this.time || !this.computed[t]) return 0;
    const {ns} = this.splitTime(this.split[t]), split = this.splits[this.split[t]];
    if (this.took(t) >= 0) return this.took(t);
    let n = 0;
    for (let i = split.start; i < split.end; i++) n += this.computed[i];
    return Math.max(this.predicted ? ns - this.copyTime(split) : ns, 0) / n;   // a predicted time has the copies
  }

  name(t) { return this.data.strings[this.names[t]]; }
  kind(t) { return this.kinds[this.data.kind[t]]; }
  op(t) { return this.kind(t).op; }
  cause(t) { return this.data.strings[this.data.cause[t]]; }
  isNode(t) { return t < this.n; }
  backendName(b) { return b < 0 ? 'no backend' : this.backends[b].name; }

  // Like trace.names.label in Python: with the number if ggml made up the name.
  label(t) {
    const name = this.name(t);
    return name && !name.startsWith(' ') ? name : (t < this.n ? `node ${t}` : `tensor ${t}`) + name;
  }

  srcs(t) {
    return t < this.n ? this.data.src[t].filter(step => step).map(step => t - step) : [];
  }

  readers(t) {
    if (!this.readersOf) {
      this.readersOf = new Map();
      for (let i = 0; i < this.n; i++) for (const src of new Set(this.srcs(i))) {
        if (!this.readersOf.has(src)) this.readersOf.set(src, []);
        this.readersOf.get(src).push(i);
      }
    }
    return this.readersOf.get(t) || [];
  }

  // The tensor that a name in a text means: the nearest to `near`, because names repeat.
  find(label, near) {
    if (!this.byLabel) {
      this.byLabel = new Map();
      for (let t = this.total - 1; t >= 0; t--) {
        const key = this.label(t);
        if (!this.byLabel.has(key)) this.byLabel.set(key, []);
        this.byLabel.get(key).push(t);
      }
    }
    const all = this.byLabel.get(label) || [];
    return all.reduce((best, t) =>
      best < 0 || Math.abs(t - near) < Math.abs(best - near) ? t : best, -1);
  }

  // The pieces of a stored sentence: plain text and arguments (names, numbers of splits) in turn.
  pieces(number) {
    const [form, ...args] = this.data.texts[number];
    const plain = this.data.forms[form];
    return plain.flatMap((piece, i) => i < args.length ? [piece, this.data.strings[args[i]]] : [piece]);
  }
  text(number) { return this.pieces(number).join(''); }

  // The decisions that put a tensor where it is, back to their root.
  chain(t) {
    const links = [], met = new Set(), strings = this.data.strings;
    let relation = '';
    for (let i = this.starts[t]; i >= 0 && !met.has(i) && links.length < 5000;) {
      met.add(i);
      const [backend, pass, sweep, code, then] = this.data.hows[this.data.links.how[i]];
      const tensor = this.linkTensor[i], witness = this.data.links.witness[i];
      links.push({
        tensor, relation, pass, backend: strings[backend], sweep: strings[sweep],
        code: strings[code], text: this.linkText[i], witness: witness ? tensor + witness : -1,
      });
      relation = strings[then];
      i = this.data.links.then[i] ? i + this.data.links.then[i] : -1;
    }
    return links;
  }

  // Like chain, but a sweep that went from node to node is one link, with the number left out.
  shortChain(t) {
    const links = this.chain(t), short = [];
    const same = (a, b) => a.sweep && a.sweep === b.sweep && a.backend === b.backend && a.witness >= 0;
    let passed = 0;
    links.forEach((link, i) => {
      if (i && i + 1 < links.length && same(links[i - 1], link) && same(link, links[i + 1])) passed++;
      else {
        short.push({...link, passed});
        passed = 0;
      }
    });
    return short;
  }

  headlineOf(link) {
    const told = [link.code || '-', link.sweep].filter(part => part).join(' ');
    if (link.witness < 0) return told;
    const follows = /^1\.(wgt|off)/.test(link.code);
    const src = follows ? this.holes(link.tensor).indexOf(link.witness) : -1;
    return `${told} via ${src < 0 ? '' : `src[${src}] `}${this.label(link.witness)}`;
  }
  holes(t) { return t < this.n ? this.data.src[t].map(step => step ? t - step : -1) : []; }

  signature(t) {
    const kind = this.kind(t);
    return kind.kind === 'node' ? kind.signature : [kind.type, kind.ne].filter(part => part).join(' ');
  }

  // The same text as str(Plan.explain(..)), except for copies.
  explain(t) {
    const chain = this.shortChain(t), lines = [];
    if (!chain.length) return `${this.label(t)} is on ${this.backendName(this.backend[t])}`;
    lines.push(`${this.label(t)} (${this.signature(t)}) is on ${this.backendName(this.backend[t])}: `
      + this.headlineOf(chain[0]));
    chain.forEach((link, i) => {
      const stage = link.pass ? `pass ${link.pass} ${link.sweep}`.trimEnd() : '';
      const told = [link.code, stage].filter(part => part).join(', ');
      const further = link.passed ? `, skipping ${link.passed} node${link.passed === 1 ? '' : 's'} of the same sweep` : '';
      lines.push('  '.repeat(i + 1) + (link.relation ? `${link.relation}${further}: ` : '')
        + this.label(link.tensor) + (link.backend ? ` on ${link.backend}` : '')
        + (told ? ` [${told}]` : '') + `: ${this.text(link.text)}`);
    });
    for (const note of this.data.notes[t]) lines.push(`  - ${this.text(note)}`);
    return lines.join('\n');
  }

  // Whether the plan knows where a tensor was after each stage: nodes and leafs, in old files only nodes.
  hasStages(t) { return this.stages.length > 0 && t < this.data.passes[0].length; }

  // The backend of a tensor after a stage; the last stage is the plan. -1: none yet.
  at(t, stage) {
    if (stage >= this.stages.length) return this.backend[t];
    const letter = this.data.passes[stage].charCodeAt(t);
    return letter === 46 ? -1 : letter - 97;
  }
}

// A compute buffer with its blocks {tensor, chunk, at, size, padded, first, last, placeOf, kept}, as
// memory_map.py stores them, and the bytes alive at each step.
function blocksOf(buffer, nNodes) {
  const last = [0, 0], {alignment, chunks} = buffer;
  const bases = chunks.map((_, i) => chunks.slice(0, i).reduce((a, b) => a + b, 0));
  let first = 0;
  const blocks = buffer.blocks.map(number => {
    const [isNode, by, added, chunk, offset, size, later, place] = buffer.kinds[number];
    const tensor = last[isNode] += by;
    first += added;
    const placeOf = !place ? -1 : place > 0 ? last[1] - place + 1 : last[0] + place + 1;
    return {tensor, chunk, at: bases[chunk] + offset * alignment, size, padded: Math.ceil(size / alignment) * alignment, first,
      last: later < 0 ? Infinity : first + later, placeOf, kept: later < 0};
  });
  return {...buffer, blocks, size: chunks.reduce((a, b) => a + b, 0)};
}

// Blocks that are alive at a step, the largest first. A result in its operand's place counts once.
function aliveAt(buffer, step) {
  const found = buffer.blocks.filter(block => block.first <= step && step <= block.last);
  const taken = new Set(found.filter(block => block.first === step).map(block => block.placeOf));
  return found.filter(block => !taken.has(block.tensor)).sort((a, b) => b.padded - a.padded || a.at - b.at);
}

// Bytes alive at each of n steps.
function aliveOf(buffer, n) {
  const change = new Float64Array(n + 1), of = new Map(buffer.blocks.map(block => [block.tensor, block]));
  for (const {first, last, padded, placeOf} of buffer.blocks) {
    change[first] += padded;
    change[Math.min(last, n - 1) + 1] -= padded;
    const place = of.get(placeOf);
    if (place && place.last >= first) {
      change[first] -= place.padded;
      change[first + 1] += place.padded;
    }
  }
  for (let i = 1; i < n; i++) change[i] += change[i - 1];
  return change.subarray(0, n);
}

// With one decimal, halves to even, as Python rounds.
function decimal(n) {
  const tenths = n * 10, whole = Math.floor(tenths);
  return ((tenths - whole === 0.5 ? whole + whole % 2 : Math.round(tenths)) / 10).toFixed(1);
}

let sizesAreLeast = false;  // true for a debug log, which rounds down to KiB or MiB

function bytes(n) {
  if (sizesAreLeast) return n ? `≥ ${exactBytes(n)}` : '< 1 KiB each';
  return exactBytes(n);
}

function exactBytes(n) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (n < 1024 || unit === 'GiB') return unit === 'B' ? `${n} B` : `${decimal(n)} ${unit}`;
    n /= 1024;
  }
  return '';
}

function count(n) {
  for (const unit of ['', ' k', ' M', ' G', ' T']) {
    if (n < 1000 || unit === ' T') return unit ? `${decimal(n)}${unit}` : `${Math.round(n)}`;
    n /= 1000;
  }
  return '';
}

// A time with a unit; nothing for -1, a time that is not known.
function duration(ns) {
  if (ns < 0) return '';
  for (const unit of ['ns', 'µs', 'ms']) {
    if (ns < 1000) return unit === 'ns' ? `${ns} ns` : `${decimal(ns)} ${unit}`;
    ns /= 1000;
  }
  for (const [unit, size, least] of [['days', 86400, 172800], ['h', 3600, 7200], ['min', 60, 600]])
    if (ns >= least) return `${decimal(ns / size)} ${unit}`;
  return `${decimal(ns)} s`;
}

// "1 copy", "2 copies": `many` where it is not `one` with an s.
function plural(n, one, many = `${one}s`) { return `${n} ${n === 1 ? one : many}`; }

function percent(part, whole) { return whole ? `${Math.round(100 * part / whole)}%` : '0%'; }

// There are three kinds of reasons: the op is not supported, a weight or cache is elsewhere, or
// neighbours and settings decided.
function reasonKind(reason) {
  if (reason === 'op') return 'op';
  return /^(weight|offload|memory|op.memory)/.test(reason) ? 'weight' : 'other';
}
const REASONS = {
  op: 'the op is not supported', weight: 'its weight or cache is in other memory',
  other: 'a neighbour, a pin or a setting decided',
};
