// The cards at the top: who does how much, what is copied, what is not on the GPU and why, advice.

// An element: el('p.small', {title: '…'}, 'text', child). Text is always text, never markup.
function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split('.');
  const element = document.createElement(tag || 'div');
  if (classes.length) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== ''));
  return element;
}

// Gives an element a colour of the palette, and its text the colour to go with it. The page's own
// policy does not allow style attributes.
function tint(element, name) {
  element.style.background = `var(--${name})`;
  element.style.color = `var(--on-${name})`;
  return element;
}

function glance(app) {
  const box = document.getElementById('glance');
  const cards = app.diff ? [changesCard(app), totalsCard(app), movedCard(app), contextCard(app)]
    : [sharesCard(app), copiesCard(app), offCard(app), adviceCard(app)];
  box.replaceChildren(...cards);
}

function card(title, ...children) { return el('div.card', { tabindex: 0 }, el('h2', {}, title), ...children); }

function bar(app, p, values) {
  const total = values.reduce((a, b) => a + b, 0), box = el('span.bar');
  values.forEach((value, b) => {
    if (!value) return;
    const name = app.plans[p].backendName(b), share = percent(value, total);
    const beside = values.length > 1 && b === values.length - 1;   // `last` writes it
    const text = beside ? '' : value > 0.6 * total ? `${name} ${share}` : value > 0.25 * total ? share : '';
    const part = tint(el('span', {title: `${name}: ${share}`}, text), app.laneColor(p, b));
    part.style.width = `${100 * value / total}%`;
    box.append(part);
  });
  return box;
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

function sharesCard(app) {
  const plan = app.plans[0];
  const made = plan.data.made.map(([key, value]) => `${key} ${value}`).join(' · ');
  return card('Who does what', ...timeRows(app, 0), ...shareRows(app, 0), el('p.small', {}, made));
}

// The total time of some nodes; null if it is not known for all of them.
function spent(plan, nodes) {
  const known = plan.time && nodes.every(t => plan.took(t) >= 0);
  return known ? nodes.reduce((sum, t) => sum + plan.took(t), 0) : null;
}

// The times of each backend and of the copies, if they were measured.
function timeRows(app, p) {
  const plan = app.plans[p], {time} = plan;
  if (!time) return [];
  const took = plan.backends.map(() => 0), doubts = new Map();
  for (const split of plan.splits) {
    const {ns, known} = plan.splitTime(split.index);
    took[split.backend] += Math.max(ns, 0);
    if (known !== 'measured' && known !== 'predicted') doubts.set(plan.backendName(split.backend), known);
  }
  const sum = values => values.reduce((a, b) => a + Math.max(b, 0), 0);
  const later = plan.copies.filter(copy => copy.ns < 0).length;
  const said = [...doubts].map(([name, known]) => `${name}: ${known}`).join(', ');
  return [el('p.big', {}, duration(time.total), el('small', {}, ` ${time.compute}`)),
    el(`div.share${said ? '.doubt' : ''}`, {title: plan.predicted ? 'from a calibration: nothing was run' : time.per_op ? 'each node was computed alone and waited for'
      : 'the times of splits: nodes were not measured alone'}, el('span.what', {}, 'time'), bar(app, p, took), last(app, p, took)),
    said ? el('p.small', {}, `${said} (their nodes were done by then)`) : null,
    el('div.share', {}, el('span.what', {}, 'copies'), el('span', {}, `${duration(sum(time.copies))}${later ? `, and ${later} ${plan.predicted ? 'of which nothing was measured' : 'handed over'}` : ''}${plan.predicted ? '' : `; waits before them ${duration(sum(time.waits))}`}`))].filter(Boolean);
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
    const group = groups.get(key) || {key, bytes: 0, copies: []};
    group.bytes += copy.nbytes;
    group.copies.push(copy);
    groups.set(key, group);
  }
  const most = [...groups.values()].sort((a, b) => b.bytes - a.bytes || b.copies.length - a.copies.length);
  const rows = most.map(group => {
    const meter = el('span.meter');
    meter.style.width = `${Math.max(2, 100 * group.bytes / most[0].bytes)}%`;
    const readers = group.copies.flatMap(copy => app.readersOfCopy(0, copy));
    return el('li', {}, el('button.row', {
      title: 'Show the nodes that read them',
      onclick: () => app.choose(group.key, [readers]),
    }, el('span.right', {}, bytes(group.bytes)), `${group.copies.length}× ${group.key}`, meter));
  });
  return card('Copies per evaluation',
    el('p.big', {}, bytes(plan.copyBytes), el('small', {}, ` in ${plural(plan.copies.length, 'copy', 'copies')}, ${plural(plan.splits.length, 'split')}`)),
    el('ul.rows', {}, ...rows));
}

function offCard(app) {
  const plan = app.plans[0], own = plan.backends.filter(b => b.own);
  if (!own.length) {
    return card('Off the device', el('p.good', {}, 'No backend here has memory of its own, so there is no device that nodes could be off.'));
  }
  const title = `Not on ${own.length > 1 ? 'a device' : own[0].name}, and why`;
  if (!plan.off.length) {
    return card(title, el('p.good', {}, plan.stages.length ? 'Every computed node is on a device.'
      : 'A log or a snapshot does not tell what backends support.'));
  }
  const nodes = plan.off.reduce((sum, row) => sum + row.nodes.length, 0);
  const all_off = spent(plan, plan.off.flatMap(row => row.nodes)), took = all_off === null ? '' : ` ${plan.predicted ? 'take' : 'took'} ${duration(all_off)},`;
  const moved = plan.off.reduce((sum, row) => sum + row.bytes, 0);
  const all = plan.data.shares.reduce((sum, row) => sum + row[2], 0);
  const rows = plan.off.map(row => el('li', {}, el('button.row', {
    title: 'Show these nodes', onclick: () => app.choose(`${row.op}: ${row.reason}`, [row.nodes]),
  }, el('span.right', {}, [spent(plan, row.nodes) === null ? '' : duration(spent(plan, row.nodes)), bytes(row.bytes), row.flops ? `${count(row.flops)}FLOP` : ''].filter(x => x).join(' · ')),
    tint(el('span.dot'), `off-${reasonKind(row.reason)}`), `${row.nodes.length}× ${row.op} on ${row.backend} `,
    el('code', {}, row.reason), el('span.small', {}, row.text))));
  return card(title,
    el('p.big', {}, plural(nodes, 'node'), el('small', {}, `${took} ${nodes === 1 ? 'reads and writes' : 'read and write'} ${bytes(moved)}, ${percent(moved, all)} of all`)),
    el('ul.rows', {}, ...rows));
}

function adviceCard(app) {
  const found = app.plans[0].data.advice;
  if (!found.length) return card('Advice', el('p.good', {}, 'Nothing to advise.'));
  return card('Advice', ...found.map((one, i) => el('details.finding', {open: i === 0 && found.length < 3},
    el('summary', {}, el('code', {}, one.id), ` ${one.title} `, el('span.severity.' + one.severity, {}, one.severity),
      one.bytes ? ` ${bytes(one.bytes)}` : '', one.seconds ? ` ${duration(1e9 * one.seconds)}` : ''),
    el('p', {}, one.text), el('p.advice', {}, one.suggestion),
    one.tensors.length ? el('button', {onclick: () => app.chooseFinding(one)},
      `Show ${plural(one.tensors.length, 'node')}`) : null,
    el('span.small', {}, `More: ${one.page}`))));
}

// --- for two plans

function changesCard(app) {
  return card('Who does what', ...['before', 'after'].map((side, p) => el('div', {}, el('h3', {}, side), ...shareRows(app, p).slice(-3, -1))));
}

function totalsCard(app) {
  const [a, b] = app.plans, sum = plan => plan.data.shares || [];
  const off = plan => plan.off.reduce((n, row) => n + row.nodes.length, 0);
  const rows = [
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
    ...sections.filter(([title]) => title !== 'made with').map(([title, rows], i) =>
      el('details.finding', {open: i === 0}, el('summary', {}, `${title} (${rows.length})`),
        el('ul.notes', {}, ...rows.slice(0, 200).map(row => el('li', {}, row))))));
}

function contextCard(app) {
  const made = app.diff.sections.find(([title]) => title === 'made with');
  const advice = app.plans.map(plan => plan.data.advice);
  return card('Made with', made ? el('ul.notes', {}, ...made[1].map(row => el('li', {}, row))) : el('p.good', {}, 'the same'),
    ...advice.flatMap((found, p) => [el('h3', {}, `advice ${p ? 'after' : 'before'}`),
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
