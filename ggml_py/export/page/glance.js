// The cards at the top: who does how much, what is copied, what is not on the GPU and why, advice.

function glance(app) {
  const box = document.getElementById('glance');
  const cards = app.diff ? [changesCard(app), totalsCard(app), movedCard(app), findingsCard(app)]
    : [timeCard(app), reasonsCard(app), memoryCard(app), offCard(app), copiesCard(app)];
  box.replaceChildren(...cards.filter(Boolean));
  if (app.isBeside) {
    document.getElementById('verdict').replaceChildren(...flagged(app.diff.verdict));
    document.getElementById('headline').textContent = '';
  }
  chips(app);
  actions(app);
}

function card(title, ...children) { return el('div.card', {}, el('h2', {}, title), ...children); }

// How the plan was made; of two, what differs in that.
function chips(app) {
  const {made} = app.diff || {}, all = !made ? app.plans[0].data.chips : made.length ? made : [['made with', 'the same']];
  const chip = ([key, value]) => el('span.made', {}, el('span.soft', {}, key), ` ${value}`);
  const rest = made ? all.slice(MOST_CHIPS) : all.filter(([key]) => !SHOWN.has(key));
  document.getElementById('chips').replaceChildren(...all.filter(one => !rest.includes(one)).map(chip),
    rest.length ? el('details', {}, el('summary', {}, `${rest.length} more`), ...rest.map(chip)) : '');
}
const MOST_CHIPS = 12;
const SHOWN = new Set(['program', 'flags', 'context', 'tokens', 'tokens before', 'sequences', 'devices', 'ggml', 'times from', 'read from', 'planned by']);

// What can be done about the verdict.
function actions(app) {
  const {remedy} = app.plans[0].data;
  document.getElementById('actions').replaceChildren(...[
    remedy && !app.diff ? copyButton(app, remedy.copy, copying(remedy)) : null,
    app.data.beside && el('button', {onclick: () => app.turnBeside()}, app.diff ? 'Show this plan alone' : 'See that plan beside this one'),
  ].filter(Boolean));
}

function copyButton(app, text, label = 'Copy') {
  return el('button.copy', {title: text, onclick: () => app.copy(text, 'copied')}, label);
}

function copying({flags, copy}) { return copy === flags ? `Copy ${flags}` : 'Copy the new flags'; }

// At most `n` rows, the others behind a line that opens them.
function rowsOf(rows, n = 3) {
  const rest = rows.slice(n);
  return [el('ul.rows', {}, ...rows.slice(0, n)),
    rest.length ? el('details', {}, el('summary.soft', {}, `${rest.length} more`), el('ul.rows', {}, ...rest)) : null];
}

// A bar of parts {name, value, color, title}; `whole` is its full length.
function stacked(parts, whole = parts.reduce((sum, {value}) => sum + value, 0)) {
  const box = el('span.bar');
  for (const {name, value, color, title} of parts) {
    if (!(value > 0)) continue;
    const share = value / whole, part = el(`span${color === 'free' ? '.free' : ''}`, {title: title || name}, share > 0.22 ? name : '');
    if (color !== 'free') tint(part, color);
    part.style.width = `${100 * share}%`;
    box.append(part);
  }
  return box;
}

function bar(app, p, values) {
  const total = values.reduce((a, b) => a + b, 0), beside = values.length - 1;   // `last` writes the last one's
  return stacked(values.map((value, b) => {
    const name = app.plans[p].backendName(b), share = percent(value, total);
    return {value, color: app.laneColor(p, b), title: `${name}: ${share}`,
      name: values.length > 1 && b === beside ? '' : value > 0.6 * total ? `${name} ${share}` : share};
  }));
}

function shareRows(app, p) {
  const shares = app.plans[p].data.shares;
  if (!shares) {
    const counts = app.plans[p].backends.map((_, b) => app.laneCount(p, b));
    return [el('div.share', {}, el('span.what', {}, 'nodes'), bar(app, p, counts), last(app, p, counts)),
      el('p.small', {}, 'A log or a snapshot has no shapes, so FLOPs and bytes are not known.')];
  }
  return ['nodes', 'FLOPs', 'bytes', 'weights'].map((what, i) =>
    el('div.share', {title: ['computed nodes', 'estimated', 'read and written, estimated', 'held in its memory'][i]},
      el('span.what', {}, what), bar(app, p, shares.map(row => row[i])), last(app, p, shares.map(row => row[i]))));
}

// The share of the last backend, the CPU, beside the bar: in the bar it may have too little room.
function last(app, p, values) {
  const total = values.reduce((a, b) => a + b, 0);
  return values.length > 1 ? el('span.what', {}, `${app.plans[p].backends.at(-1).name} ${percent(values.at(-1), total)}`) : '';
}

// The total time of some nodes; null if it is not known for all of them.
function spent(plan, nodes) {
  const known = plan.time && nodes.every(t => plan.took(t) >= 0);
  return known ? nodes.reduce((sum, t) => sum + plan.took(t), 0) : null;
}

// Where the time goes: each backend's nodes, the copies, the waits, and the rest.
function timeCard(app) {
  const plan = app.plans[0], {time, data} = plan;
  if (!time) return card('Who does what', ...shareRows(app, 0));
  const took = plan.backends.map(() => 0), doubts = new Map();
  const copying = plan.copies.reduce((sum, copy) => sum + Math.max(copy.ns, 0), 0), waiting = time.waits.reduce((a, b) => a + Math.max(b, 0), 0);
  for (const split of plan.splits) {
    const {ns, known} = plan.splitTime(split.index);
    const copies = plan.predicted ? plan.copyTime(split) : 0;   // its time has them
    took[split.backend] += Math.max(ns - copies, 0);
    if (known !== 'measured' && known !== 'predicted') doubts.set(plan.backendName(split.backend), known);
  }
  const parts = plan.backends.map((backend, b) => ({name: backend.name, value: took[b], color: app.laneColor(0, b)}));
  parts.push({name: 'copies', value: copying, color: 'arrow'}, {name: 'waits', value: waiting, color: 'none'});
  const sum = parts.reduce((all, {value}) => all + value, 0), rest = time.total - sum;
  if (rest > 0.005 * time.total) parts.push({name: 'the rest', value: rest, color: 'free', title: 'between the splits, and in the scheduler'});
  const shown = parts.filter(({value}) => value > 0).sort((a, b) => b.value - a.value);
  for (const part of shown) part.title = `${part.title || part.name}: ${duration(Math.round(part.value))}, ${percent(part.value, Math.max(sum, time.total))}`;
  const later = plan.copies.filter(copy => copy.ns < 0).length;
  const said = [...doubts].map(([name, known]) => `${name}: ${known}`).join(', ');
  return card(time.total < 0 ? 'Time' : `Time of ${data.what}`,
    el('p.big', {}, data.rate.endsWith('tokens/s') ? data.rate : duration(time.total)),
    el('p.small', {}, `${duration(time.total)}, ${time.compute}`),
    el(`div${said ? '.doubt' : ''}`, {title: plan.predicted ? 'nothing was run' : time.per_op ? 'each node was computed alone and waited for'
      : 'the times of splits: nodes were not measured alone'}, stacked(shown, Math.max(sum, time.total))),
    el('ul.legend', {}, ...shown.slice(0, 10).map(({name, value, color}) => el('li', {}, color === 'free' ? el('span.dot.free') : tint(el('span.dot'), color), `${name} ${duration(Math.round(value))}`))),
    said ? el('p.small', {}, `${said} (their nodes were done by then)`) : null,
    later ? el('p.small', {}, `${plural(later, 'copy', 'copies')} ${plan.predicted ? 'of which nothing was measured' : 'handed over'}: not counted`) : null,
    sum > 1.005 * time.total && time.total > 0 ? el('p.small', {}, `Backends compute at the same time: ${duration(Math.round(sum))} of work.`) : null,
    el('details', {}, el('summary.soft', {}, 'nodes, FLOPs, bytes, weights'), ...shareRows(app, 0)));
}

// What takes the time or may go wrong, the costliest first, and what helps.
function reasonsCard(app) {
  const {advice, bound} = app.plans[0].data;
  const title = 'What it costs, and what helps';
  if (!advice.length) return card(title, el('p.good', {}, `Nothing to change was found.${bound ? ` Most of the time is bound by ${bound}.` : ''}`));
  const isSmall = one => one.share !== null && one.share < LEAST;
  const line = one => el('li', {}, el('details.finding', {},
    el('summary', {}, el('span.right', {}, costOf(one)), `${one.headline} `, one.severity === 'cost' ? '' : el('span.severity.' + one.severity, {}, one.severity),
      el('code.soft', {}, one.id), one.flags ? el('span.small', {}, helps(one)) : null,
      one.share ? meter(one.share) : null),
    one.headline === one.title ? null : el('p.soft', {}, one.title), el('p', {}, one.text), el('p.advice', {}, one.suggestion),
    one.tensors.length ? el('button', {onclick: () => app.chooseFinding(one)}, `Show ${plural(one.tensors.length, 'node')}`) : null,
    one.flags ? copyButton(app, one.copy, copying(one)) : null,
    el('span.small', {}, `More: ${one.page}`)));
  const small = advice.filter(isSmall);
  return card(title, ...rowsOf(advice.filter(one => !isSmall(one)).map(line), 4),
    folded(small.map(line), 'time'));
}
const LEAST = 0.01;   // of the time

function helps({flags, instead, fits, gain}) {
  const given = instead && !flags.includes('without ') ? ` instead of ${instead}` : '';
  return `→ ${flags}${given}, ${fits ? 'which fits' : 'not checked'}${gain ? `: ${gain}` : ''}`;
}

function folded(rows, of) {
  if (!rows.length) return null;
  return el('details', {}, el('summary.soft', {}, `${rows.length} under ${percent(LEAST, 1)} of the ${of}`), el('ul.rows', {}, ...rows));
}

function costOf(one) {
  if (one.seconds) return `${duration(Math.round(1e9 * one.seconds))}${one.share ? `, ${percent(one.share, 1)}` : ''}`;
  return one.bytes ? bytes(one.bytes) : '';
}

function meter(share) {
  const box = el('span.meter');
  box.style.width = `${Math.min(100, Math.max(2, 100 * share))}%`;
  return box;
}

const PARTS = {weights: 'b0', 'mapped file': 'host', cache: 'b2', compute: 'b1', outputs: 'b3', others: 'host2'};

// What each device holds, and what stays free.
function memoryCard(app) {
  const {memory} = app.plans[0].data;
  if (!memory.length) return null;
  const most = Math.max(...memory.map(({parts}) => parts.reduce((sum, [, n]) => sum + n, 0)));
  const used = new Set();
  const rows = memory.map(({device, needed, mapped, free, largest, parts}) => {
    const all = needed + mapped, whole = free === null ? most : Math.max(free, all);
    const shown = parts.map(([name, value]) => ({name, value, color: PARTS[name], title: `${name}: ${exactBytes(value)}`}));
    if (free !== null && free > all) shown.push({name: 'free', value: free - all, color: 'free', title: `free: ${exactBytes(free - all)}`});
    for (const {name} of shown) used.add(name);
    const lacks = free !== null && needed > free;
    return el('li', {}, el('button.row', {title: `Show the addresses on ${device}`, onclick: () => app.showMemory(device)},
      el('span.right', {}, free === null ? `${exactBytes(needed)}; free: not known` : lacks ? `lacks ${exactBytes(needed - free)} of ${exactBytes(needed)}`
        : `${exactBytes(needed)} of ${exactBytes(free)}`), device, stacked(shown, whole),
      largest ? el('span.small', {}, `buffers up to ${exactBytes(largest)}`) : null));
  });
  return card('Memory by device', ...rowsOf(rows, 4),
    el('ul.legend', {}, ...[...used].map(name => el('li', {}, PARTS[name] ? tint(el('span.dot'), PARTS[name]) : el('span.dot.free'), name))));
}

function copiesCard(app) {
  const plan = app.plans[0];
  if (!plan.copies.length) {
    return card('Copies per evaluation', el('p.big', {}, '0 B'),
      el('p.small', {}, `${plural(plan.splits.length, 'split')}: nothing is copied between backends.`));
  }
  const groups = new Map();
  for (const copy of plan.copies) {
    const key = `${plan.backendName(copy.from)} → ${plan.backendName(copy.to)}, ${copy.what}s`;
    const group = groups.get(key) || {key, bytes: 0, ns: 0, copies: []};
    group.bytes += copy.nbytes;
    group.ns += Math.max(copy.ns, 0);
    group.copies.push(copy);
    groups.set(key, group);
  }
  const most = [...groups.values()].sort((a, b) => b.bytes - a.bytes || b.copies.length - a.copies.length);
  const rows = most.map(group => {
    const readers = group.copies.flatMap(copy => app.readersOfCopy(0, copy));
    return el('li', {}, el('button.row', {
      title: 'Show the nodes that read them',
      onclick: () => app.choose(group.key, [readers]),
    }, el('span.right', {}, [group.ns ? duration(group.ns) : '', bytes(group.bytes)].filter(Boolean).join(' · ')), `${group.copies.length}× ${group.key}`, meter(group.bytes / most[0].bytes)));
  });
  return card('Copies per evaluation',
    el('p.big', {}, bytes(plan.copyBytes), el('small', {}, ` in ${plural(plan.copies.length, 'copy', 'copies')}, ${plural(plan.splits.length, 'split')}`)),
    ...rowsOf(rows));
}

function offCard(app) {
  const plan = app.plans[0], own = plan.backends.filter(b => b.own);
  if (!own.length) return null;   // there is no device that nodes could be off
  const title = `Not on ${own.length > 1 ? 'a device' : own[0].name}, and why`;
  if (!plan.off.length) {
    return card(title, el('p.good', {}, plan.stages.length ? 'Every computed node is on a device.'
      : 'A log or a snapshot does not tell what backends support.'));
  }
  const nodes = plan.off.reduce((sum, row) => sum + row.nodes.length, 0);
  const all_off = spent(plan, plan.off.flatMap(row => row.nodes)), took = all_off === null ? '' : ` ${plan.predicted ? 'take' : 'took'} ${duration(all_off)},`;
  const moved = plan.off.reduce((sum, row) => sum + row.bytes, 0);
  const all = plan.data.shares.reduce((sum, row) => sum + row[2], 0);
  const cost = row => spent(plan, row.nodes) ?? row.bytes, whole = all_off === null ? all : plan.time.total;
  const isSmall = row => cost(row) < LEAST * whole;
  const line = row => el('li', {}, el('details.finding', {}, el('summary', {},
    el('span.right', {}, spent(plan, row.nodes) === null ? bytes(row.bytes) : duration(spent(plan, row.nodes))),
    tint(el('span.dot'), `off-${reasonKind(row.reason)}`), `${row.nodes.length}× ${row.op} on ${row.backend} `, el('code.soft', {}, row.reason), el(`span.small.${large.length > 1 ? 'two' : 'four'}-lines`, {}, row.text)),
    el('p.soft', {}, [bytes(row.bytes), row.flops ? `${count(row.flops)}FLOP` : ''].filter(Boolean).join(' · ')),
    el('button', {onclick: () => app.choose(`${row.op}: ${row.reason}`, [row.nodes])}, `Show ${plural(row.nodes.length, 'node')}`)));
  const sorted = [...plan.off].sort((a, b) => cost(b) - cost(a)), small = sorted.filter(isSmall), large = sorted.filter(row => !isSmall(row));
  return card(title,
    el('p.big', {}, plural(nodes, 'node'), el('small', {}, `${took} ${nodes === 1 ? 'reads and writes' : 'read and write'} ${bytes(moved)}, ${percent(moved, all)} of all`)),
    ...rowsOf(large.map(line)), folded(small.map(line), all_off === null ? 'bytes' : 'time'));
}

// --- for two plans

function changesCard(app) {
  return card('Who does what', ...['before', 'after'].map((side, p) => el('div', {}, el('h3', {}, side), ...shareRows(app, p).slice(-3, -1))));
}

function totalsCard(app) {
  const [a, b] = app.plans, sum = plan => plan.data.shares || [];
  const off = plan => plan.off.reduce((n, row) => n + row.nodes.length, 0);
  const rows = [
    ...(a.time && b.time ? [['time', ...[a, b].map(plan => duration(plan.time.total) || 'not known')]] : []),
    ...a.data.memory.flatMap(({device, needed}) => {
      const other = b.data.memory.find(each => each.device === device);
      return other ? [[`memory of ${device}`, exactBytes(needed), exactBytes(other.needed)]] : [];
    }),
    ['nodes', ...[a, b].map(plan => plan.computedOn.reduce((x, y) => x + y, 0))],
    ['splits', a.splits.length, b.splits.length],
    ['copies', a.copies.length, b.copies.length],
    ['copied', bytes(a.copyBytes), bytes(b.copyBytes)],
    ['off the device', off(a), off(b)],
    ...(sum(a).length ? a.backends.flatMap((backend, i) => {
      const j = b.backends.findIndex(other => other.name === backend.name);
      return j < 0 ? [] : [[`FLOPs on ${backend.name}`, count(sum(a)[i][1]), sum(b).length ? count(sum(b)[j][1]) : '?']];
    }) : []),
  ];
  return card('Before and after', el('table', {}, el('tbody', {}, ...rows.map(([what, x, y]) =>
    el('tr', {}, el('td', {}, what), el('td.num', {}, String(x)), el('td.num', {}, x === y ? '=' : String(y)))))));
}

function movedCard(app) {
  const sections = app.diff.sections;
  if (!sections.length) return card('Differences', el('p.good', {}, 'Both plans make the same decisions.'));
  const changed = app.changed.map(set => [...set]);
  return card('Differences',
    changed.some(ids => ids.length) ? el('button', {onclick: () => app.choose('what changed', changed)},
      `Show ${plural(Math.max(...changed.map(ids => ids.length)), 'changed node')}`) : null,
    ...sections.map(([title, rows], i) =>
      el('details.finding', {open: i === 0}, el('summary', {}, `${title} (${rows.length})`),
        ...rowsOf(rows.slice(0, 200).map(row => el('li', {}, row)), 4))));
}

function findingsCard(app) {
  const advice = app.plans.map(plan => plan.data.advice);
  return card('Findings',
    ...advice.flatMap((found, p) => [el('h3', {}, p ? 'after' : 'before'),
      found.length ? el('ul.notes', {}, ...found.map(one => el('li', {title: one.text},
        el('button.ref', {onclick: () => app.chooseFinding(one, p)}, `${one.id} ${one.title}${one.bytes ? `, ${bytes(one.bytes)}` : ''}`))))
        : el('p.good', {}, 'nothing')]));
}

// What the colours mean, for the colours that are in use.
function legend(app) {
  const items = new Map(), seen = new Set(app.colors.flat());
  app.plans.forEach((plan, p) => plan.backends.forEach((b, i) => items.set(`${b.name}`, app.laneColor(p, i))));
  for (const [kind, text] of Object.entries(REASONS)) if (seen.has(`off-${kind}`)) items.set(`on the host: ${text}`, `off-${kind}`);
  if (seen.has('none')) items.set('on no backend yet', 'none');
  if (app.diff) items.set('different', 'changed');
  else if (app.stage && app.stage < app.lastStage) items.set('placed by this sweep', 'changed');
  if (app.plans.some(plan => plan.copies.length) && app.stage === app.lastStage) items.set('copy', 'arrow');
  document.getElementById('legend').replaceChildren(...[...items].map(([text, color]) =>
    el('span', {}, tint(el('span.dot'), color), text)));
}
