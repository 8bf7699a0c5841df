// The details of the node, tensor or arrow that was picked.

function details(app) {
  const box = document.getElementById('details'), {picked, pickedArrow} = app;
  if (pickedArrow) box.replaceChildren(...arrowDetails(app, pickedArrow));
  else if (picked) box.replaceChildren(...tensorDetails(app, picked.p, picked.t));
  else if (app.shown === 'timeline') box.replaceChildren(...app.timeline.details());
  else box.replaceChildren(...intro(app));
  box.scrollTop = 0;
}

function intro(app) {
  const plan = app.plans[0], worst = plan.off[0];
  return [
    el('h2', {}, 'Pick a node'),
    el('p', {}, 'Click a block to see why it is where it is, what kept it off the faster backends, and what would change that. Arrows are copies.'),
    worst ? el('p.advice', {}, 'Start with ', ref(app, 0, worst.nodes[0]), `: the ${worst.nodes.length > 1 ? `first of ${worst.nodes.length} ${worst.op} nodes` : `only ${worst.op} node`} on ${worst.backend}.`) : null,
    ...dearest(app, 0),
    ...(plan.data.disagreements.length ? [el('h3', {}, 'Where the reference scheduler plans differently'),
      el('ul.notes', {}, ...plan.data.disagreements.slice(0, 50).map(text => el('li', {}, text)))] : []),
    ...(plan.data.unknown.length ? [el('h3', {}, 'Not known'),
      el('ul.notes', {}, ...plan.data.unknown.map(text => el('li', {}, text)))] : []),
  ].filter(Boolean);
}

// Where the time goes, by op and backend. Bytes if times were not measured.
function dearest(app, p) {
  const plan = app.plans[p], groups = new Map();
  let time = Boolean(plan.time);
  for (let t = 0; t < plan.n && time; t++) time = plan.took(t) >= 0;   // otherwise by bytes: no time is made up
  let all = 0;
  for (let t = 0; t < plan.n; t++) {
    const cost = time ? plan.took(t) : plan.kind(t).bytes;
    if (!cost) continue;
    const key = `${plan.op(t)} ${plan.backend[t]} ${app.color(p, t)}`;
    if (!groups.has(key)) groups.set(key, {op: plan.op(t), b: plan.backend[t], color: app.color(p, t), cost: 0, nodes: []});
    const group = groups.get(key);
    group.cost += cost;
    group.nodes.push(t);
    all += cost;
  }
  const copied = time ? plan.copies.filter(copy => copy.ns > 0) : [];
  if (copied.length) {
    const cost = copied.reduce((sum, copy) => sum + copy.ns, 0);
    groups.set('', {text: plural(copied.length, 'copy', 'copies'), color: 'arrow', cost, nodes: copied.flatMap(copy => app.readersOfCopy(p, copy))});
    all += cost;
  }
  const most = [...groups.values()].sort((a, b) => b.cost - a.cost).slice(0, 14);
  return most.length ? [el('h3', {}, `Where the ${time ? 'time goes' : 'bytes go'}`), el('ul.rows', {}, ...most.map(group => {
    const meter = tint(el('span.meter'), group.color);
    meter.style.width = `${Math.max(1, 100 * group.cost / most[0].cost)}%`;
    const {text = `${group.op} on ${plan.backendName(group.b)}`} = group;
    return el('li', {}, el('button.row', {onclick: () => app.choose(text, [group.nodes])},
      el('span.right', {}, `${time ? duration(group.cost) : bytes(group.cost)} · ${percent(group.cost, all)}`),
      group.text || `${group.nodes.length}× ${text}`, meter));
  }))] : [];
}

function ref(app, p, t, text = app.plans[p].label(t)) {
  return el('a.ref', {href: `#${t}`, onclick: event => {
    event.preventDefault();
    app.pick(p, t, true);
  }}, text);
}

// A stored sentence, with links from names to their tensors.
function sentence(app, p, number, near) {
  return app.plans[p].pieces(number).map((piece, i) => {
    const t = i % 2 ? app.plans[p].find(piece, near) : -1;
    return t < 0 ? piece : ref(app, p, t, piece);
  });
}

function tag(app, p, backend) {
  const name = app.plans[p].backendName(backend);
  return tint(el('span.tag.color', {}, name), backend < 0 ? 'none' : app.laneColor(p, backend));
}

function tensorDetails(app, p, t) {
  const plan = app.plans[p], kind = plan.kind(t), node = plan.isNode(t);
  const copy = plan.isCopy.get(t), off = node ? plan.offOf[t] : null;
  const which = {node: `node ${t}`, leaf: 'leaf', other: 'tensor', copy: 'copy'}[kind.kind];
  return [
    el('h2.name', {}, plan.label(t)),
    el('div.tags', {}, el('span.tag', {}, which + (app.diff ? (p ? ' after' : ' before') : '')),
      tag(app, p, plan.backend[t]), plan.cause(t) ? el('span.tag.mono', {}, plan.cause(t)) : null,
      off ? tint(el('span.tag.color', {}, off.reason), `off-${reasonKind(off.reason)}`) : null),
    app.diff ? bothSides(app, p, t) : null,
    facts(app, p, t, kind, node),
    ...(node ? arrowsInto(app, p, t) : []),
    ...(copy ? copyPart(app, p, copy) : []),
    ...chainPart(app, p, t, copy),
    ...(node ? whyNot(app, p, t) : []),
    ...(plan.hasStages(t) ? [el('h3', {}, 'After each pass'), stages(app, p, t)] : []),
    ...lists(app, p, t, node),
    copy ? null : el('p', {}, el('button', {onclick: event => copyText(event.target, plan.explain(t))}, 'Copy as text')),
  ].filter(Boolean);
}

// The time of a node or its split, as far as it is known.
function splitWords(plan, t, alone = -1) {
  const {ns, known} = plan.splitTime(plan.split[t]), took = alone >= 0 || plan.predicted ? alone : ns;
  if (took < 0 || known === 'not known') return `an unknown time: ${plan.predicted ? 'nothing like it was measured' : 'nobody waited for it'}`;
  return `${known === 'measured' ? '' : `${known} `}${duration(took)}`;
}

function facts(app, p, t, kind, node) {
  const plan = app.plans[p], rows = [];
  if (node) rows.push(['op', plan.signature(t)]);
  rows.push([node ? 'result' : 'shape', [kind.type, kind.ne, kind.nbytes ? bytes(kind.nbytes) : ''].filter(x => x).join(' ')]);
  if (kind.place) rows.push(['memory', kind.place + (kind.weight ? ', as a weight' : '')]);
  if (node && plan.computed[t] && kind.bytes) {
    rows.push(['moves', `${bytes(kind.bytes)}, ${count(kind.flops)}FLOP (estimated)`]);
  }
  if (node && plan.computed[t] && plan.time) {
    rows.push([plan.predicted ? 'takes' : 'took', plan.took(t) >= 0 ? splitWords(plan, t, plan.took(t)) : plan.predicted ? splitWords(plan, t, plan.took(t)) : `not measured alone; its split #${plan.split[t]} took ${splitWords(plan, t)}`]);
  }
  if (node && !plan.computed[t]) rows.push(['computed', 'no: a view, or not needed']);
  if (node) {
    const split = plan.splits[plan.split[t]];
    if (split) rows.push(['split', `#${split.index} on ${plan.backendName(split.backend)}: nodes ${split.start}–${split.end - 1}`]);
    if (plan.layer[t] >= 0) rows.push(['layer', plan.layer[t]]);
  }
  return el('dl.facts', {}, ...rows.flatMap(([key, value]) => [el('dt', {}, key), el('dd.mono', {}, String(value))]));
}

// Buttons for the copies into the node's split, because keys do not reach arrows.
function arrowsInto(app, p, t) {
  const plan = app.plans[p], arrows = app.lanes.arrows[p].filter(arrow => arrow.split === plan.split[t]);
  return arrows.map(arrow => el('p', {}, el('button', {onclick: () => app.pickArrow({p, arrows: [arrow]})},
    `${bytes(arrow.bytes)} copied from ${plan.backendName(arrow.from)}`)));
}

// A node before and after: its backend, cause and time.
function bothSides(app, p, t) {
  const other = app.partner({p, t});
  if (!other) return app.plans[p].isNode(t) ? el('p.advice', {}, `There is no such node ${p ? 'before' : 'after'}.`) : null;
  const sides = p ? [other, {p, t}] : [{p, t}, other], moved = new Set(sides.map(({p, t}) => app.plans[p].backendName(app.plans[p].backend[t]))).size > 1;
  const rows = [
    [moved ? 'moved' : 'backend', ({p, t}) => tag(app, p, app.plans[p].backend[t])],
    ['cause', ({p, t}) => app.plans[p].cause(t) || '–'],
    ['takes', ({p, t}) => app.plans[p].time && app.plans[p].computed[t] ? splitWords(app.plans[p], t, app.plans[p].took(t)) : '–'],
  ];
  return el('table.sides', {}, el('thead', {}, el('tr', {}, el('td'), ...sides.map(one => el('th', {}, ref(app, one.p, one.t, one.p ? 'after' : 'before'))))),
    el('tbody', {}, ...rows.map(([what, of]) => el('tr', {}, el('td.soft', {}, what), ...sides.map(one => el('td', {}, of(one)))))));
}

function copyPart(app, p, copy) {
  const readers = app.readersOfCopy(p, copy);
  return [el('h3', {}, 'A copy'), el('ul.notes', {},
    el('li', {}, `${bytes(copy.nbytes)} (${copy.what}) of `, ref(app, p, copy.id), ` for split #${copy.split}`),
    el('li', {}, 'read by ', ...readers.slice(0, 8).flatMap((r, i) => [i ? ', ' : '', ref(app, p, r)])))];
}

function chainPart(app, p, t, copy) {
  const plan = app.plans[p], chain = plan.shortChain(t), notes = plan.data.notes[t];
  if (!chain.length) return [];
  return [
    el('h3', {}, copy ? 'Why it is there' : `Why on ${plan.backendName(plan.backend[t])}`),
    el('ul.chain', {}, ...chain.map(link => {
      const stage = [link.code, link.pass ? `pass ${link.pass} ${link.sweep}`.trimEnd() : ''].filter(x => x).join(', ');
      const passed = link.passed ? `, skipping ${link.passed} node${link.passed === 1 ? '' : 's'} of the same sweep` : '';
      return el('li', {}, link.relation ? el('span.small', {}, link.relation + passed) : null,
        link.tensor === t ? el('b', {}, plan.label(t)) : ref(app, p, link.tensor),
        link.backend ? ` on ${link.backend} ` : ' ', stage ? el('span.tag.mono', {}, stage) : null,
        el('span', {}, ' ', ...sentence(app, p, link.text, link.tensor)));
    })),
    ...(notes.length ? [el('ul.notes', {}, ...notes.map(note => el('li', {}, ...sentence(app, p, note, t))))] : []),
  ];
}

function whyNot(app, p, t) {
  const plan = app.plans[p], rows = plan.data.not[t] || [], off = plan.offOf[t];
  const alike = b => off && off.nodes.length > 1 && plan.backendName(b) === off.device
    ? el('p.small', {}, `One of ${off.nodes.length} such ${off.op} nodes. `, el('button', {
      onclick: () => app.choose(`${off.op}: ${off.reason}`, app.plans.map((_, i) => i === p ? off.nodes : [])),
    }, 'Show them')) : null;
  return rows.flatMap(([b, rule, text, changes]) => [
    el('h3', {}, `Why not on ${plan.backendName(b)}`),
    el('div.why-not', {}, el('code', {}, plan.data.strings[rule]), ' ', ...sentence(app, p, text, t),
      changes.length ? el('ul.notes', {}, ...changes.map(change => el('li', {}, ...sentence(app, p, change, t)))) : null,
      alike(b))]);
}

function stages(app, p, t) {
  const plan = app.plans[p];
  return el('div.stages', {}, ...plan.stages.map((name, stage) => {
    const b = plan.at(t, stage), where = b < 0 ? 'not yet' : plan.backendName(b);
    const box = el('button', {title: `after pass ${name}: ${where}`, onclick: () => app.setStage(stage)},
      name.replace('2 ', ''), el('br'), b < 0 ? '?' : plan.backendName(b));
    box.style.borderBottom = `3px solid var(--${b < 0 ? 'none' : app.laneColor(p, b)})`;
    return box;
  }));
}

function lists(app, p, t, node) {
  const plan = app.plans[p], parts = [];
  const line = s => el('li', {}, ref(app, p, s), ' ', el('span.soft', {}, plan.isNode(s) ? plan.op(s) : plan.signature(s)),
    ` on ${plan.backendName(plan.backend[s])}`);
  const add = (title, ids) => {
    if (!ids.length) return;
    const more = ids.length > 20 ? [el('li', {}, `${ids.length - 20} more`)] : [];
    parts.push(el('h3', {}, title), el('ul.notes', {}, ...ids.slice(0, 20).map(line), ...more));
  };
  if (node) add('Sources', plan.srcs(t));
  add('Read by', plan.readers(t));
  return parts;
}

const MOST_COPIES = 200;

// "split #7", or "12 splits".
function splitsOf(arrows) { return arrows.length > 1 ? plural(arrows.length, 'split') : `split #${arrows[0].split}`; }

function arrowDetails(app, {p, arrows}) {
  const plan = app.plans[p], [{from, to}] = arrows, first = plan.splits[arrows[0].split], last = plan.splits[arrows.at(-1).split];
  const copies = arrows.flatMap(arrow => arrow.copies).sort((a, b) => b.nbytes - a.nbytes || a.split - b.split);
  return [
    el('h2.name', {}, `Copies into ${splitsOf(arrows)}`),
    el('div.tags', {}, tag(app, p, from), '→', tag(app, p, to), el('span.tag', {}, inArrows(arrows))),
    first === last ? el('p', {}, 'The split begins with ', ref(app, p, first.start), `: nodes ${first.start}–${first.end - 1}.`)
      : el('p', {}, `From #${first.index}, which begins with `, ref(app, p, first.start), `, to #${last.index}, which begins with `, ref(app, p, last.start), '. Zoom in to see them apart (z).'),
    el('ul.chain', {}, ...copies.slice(0, MOST_COPIES).map(copy => el('li', {}, ref(app, p, copy.copy, plan.label(copy.id)), ` ${bytes(copy.nbytes)}, ${copy.what}`,
      first === last ? '' : `, for split #${copy.split}`,
      copy.ns > 0 ? `, ${duration(copy.ns)}` : copy.ns < 0 ? `, ${plan.predicted ? 'nothing like it was measured' : 'handed over'}: its time is not known` : '',
      copy.waited > 0 ? ` after a wait of ${duration(copy.waited)}` : '',
      el('span.small', {}, ...plan.chain(copy.copy).slice(0, 1).flatMap(link => sentence(app, p, link.text, plan.splits[copy.split].start)))))),
    copies.length > MOST_COPIES ? el('p', {}, `${copies.length - MOST_COPIES} more, all smaller.`) : null,
  ].filter(Boolean);
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {   // a file may not use the clipboard: select the text
    const area = el('textarea', {rows: 8, readonly: true, 'aria-label': 'The explanation'});
    area.value = text;
    area.style.width = '100%';
    button.after(area);
    area.select();
    return;
  }
  button.textContent = 'Copied';
}
