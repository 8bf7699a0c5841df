// The plans of a record or a run as a list, and which of them the page shows.

// A rate with a bound where its time has one. `known`: 0 measured, 1 at most, 2 it may have taken longer.
function rate(tokens, ns, known) {
  if (!tokens || ns <= 0) return '';
  const n = tokens / (ns / 1e9);
  return `${['', 'at least ', 'at most '][known]}${n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : Math.round(n).toLocaleString('en')} tokens/s`;
}

Object.assign(App.prototype, {
  // What the list has of a plan, and its process.
  listed(number) {
    for (const program of this.recording.programs) {
      const row = program.plans.find(each => each.number === number);
      if (row) return {row, program};
    }
    return null;
  },

  stats(number) { return this.listed(number)?.program.run?.stats[number]; },

  // The times of a plan's computes and what was predicted, in short.
  timesOf(number) {
    const stats = this.stats(number), {row, program} = this.listed(number), told = [];
    if (stats) {
      const known = stats.unknown === stats.n ? 2 : stats.bound ? 1 : 0;
      told.push(['median ', 'median at most ', 'at least '][known] + duration(stats.median));
      if (!program.run.per_op) told.push(rate(row.n_tokens, stats.median, known));
    }
    const predicted = this.recording.drawn[number]?.predicted;
    if (predicted) told.push(`predicted ${predicted.total < 0 ? 'not known' : duration(predicted.total)}`);
    return told.filter(text => text).join(' · ');
  },

  // Of a plan that stands beside others: its part of the longest time, and the memory it needs.
  besideOthers({beside}, plans) {
    const most = Math.max(...plans.map(each => each.beside.ns));
    return [beside.ns > 0 ? meter(beside.ns / most) : null,
      ...beside.memory.map(([device, needed, free]) => el('span.small', {}, `${device}: ${exactBytes(needed)}${free === null ? '' : ` of ${exactBytes(free)}`}`))];
  },

  rail() {
    const box = el('nav', {id: 'rail', 'aria-label': 'Plans', tabindex: 0});
    const main = this.get('center').parentNode;
    main.classList.add('railed');
    main.prepend(box);
    const {programs, notes, drawn} = this.recording;
    box.append(...notes.map(text => el('p.doubtful', {}, text)), ...programs.flatMap(program => [
      program.name ? el('h2.name', {}, program.name) : el('h2', {}, program.plans[0]?.beside ? 'Plans, beside 0' : 'Plans'),
      program.about.length ? el('details', {}, el('summary.small', {}, 'about it'), ...program.about.map(text => el('p.small', {}, text))) : '',
      ...program.plans.map(row => el(`button.plan${row.number in drawn ? '' : '.listed'}`, {
        'data-plan': row.number, title: row.difference || null, onclick: () => this.openPlan(row.number),
      }, el('span.right', {}, row.beside ? duration(row.beside.ns) : `${row.computed.toLocaleString('en')}${row.at_least ? '+' : ''}×`),
      el('b', {}, `${row.number} ${row.label}`), ...row.beside ? this.besideOthers(row, program.plans) : [el('span.small', {}, this.timesOf(row.number))],
      el('span.small', {}, `${plural(row.n_splits, 'split')}, ${plural(row.n_copies, 'copy', 'copies')} (${bytes(row.copy_bytes)})`
        + `${row.when < 0 ? '' : `, first after ${duration(row.when)}`}`),
      row.difference && row.difference !== 'first' ? el(`span.small.${row.beside ? 'beside' : 'unlike'}`, {}, row.beside ? row.difference : `unlike ${row.difference}`) : null,
      row.damaged ? el('span.small', {}, 'damaged') : row.number in drawn ? null : el('span.small', {}, 'only listed'))),
    ]));
    this.opened(this.recording.shown);
    this.compute = this.usualCompute(this.number);
  },

  // Marks the plan that is shown.
  opened(number) {
    this.number = number;
    const {row} = this.listed(number), {data} = this.plans[0];
    for (const each of document.querySelectorAll('#rail .plan')) {
      each.setAttribute('aria-current', String(Number(each.dataset.plan) === number));
    }
    this.get('headline').textContent = `Plan ${number}, ${row.label}: ${data.headline}`;
    this.get('verdict').replaceChildren(...flagged(data.verdict));
  },

  // The compute that the page's times of a plan are of, if its splits are here.
  usualCompute(number) {
    const run = this.listed(number)?.program.run;
    if (!run) return -1;
    const own = run.plan.flatMap((plan, i) => plan === number ? [i] : []), shown = own.filter(i => run.slices[i]);
    const middle = run.stats[number]?.median;
    return shown.find(i => run.took[i] === middle) ?? shown[0] ?? own[0] ?? -1;
  },

  // Shows a plan and one of its computes.
  openPlan(number, compute = this.usualCompute(number)) {
    if (!(number in this.recording.drawn)) {
      this.picked = this.pickedArrow = null;
      this.get('details').replaceChildren(...listedDetails(this, number));
      this.say(`plan ${number} is only listed`);
      return;
    }
    this.compute = compute;
    if (number !== this.number) this.change(number);
    this.timeline?.open();
    details(this);
    this.remember(true);
  },

  openCompute(program, i) {
    const number = program.run.plan[i];
    if (number in this.recording.drawn) return this.openPlan(number, i);
    this.compute = i;   // the page keeps its plan: this one is only listed
    this.timeline.open(program);
    details(this);
  },

  // Puts another plan in the place of the one that is shown.
  change(number) {
    const {shown, visited} = this;
    this.visited = null;
    this.take([this.recording.drawn[number]], null);
    this.opened(number);
    this.lanes.arrows = this.plans.map(arrowsOf);
    const box = this.get('table-scroll'), fresh = box.cloneNode(false);
    box.replaceWith(fresh);
    this.table = new Table(fresh, this);
    for (const view of VIEWS) if (!['lanes', 'table', 'timeline'].includes(view.name)) this.get(`${view.name}-view`)?.replaceChildren();
    this.choices();
    this.clear();
    glance(this);
    this.tabs();
    this.view(shown);
    this.lanes.fit();
    this.redraw();
    this.visited = visited;
  },
});

// A sentence whose flags are not broken.
function flagged(text) {
  return text.split(/((?<!\S)(?:-{1,2}[a-zA-Z][\w-]*|`[^`]+`))/).map((part, i) => i % 2 ? el('code', {}, part) : part);
}

function listedDetails(app, number) {
  const {row} = app.listed(number), {command} = app.recording;
  return [
    el('h2.name', {}, `Plan ${number}, ${row.label}`),
    el('p', {}, row.damaged || `It is only listed here: a page has room for some plans.`),
    !row.damaged && command ? el('p', {}, 'Its own page: ', el('code', {}, command.replace(' N ', ` ${number} `))) : null,
    el('dl.facts', {}, ...[['computed', row.beside ? '' : `${row.computed}${row.at_least ? ' or more' : ''} times`], ['times', timesIn(app, row)],
      ['unlike', row.difference], ['splits', row.n_splits], ['copies', `${row.n_copies}, ${bytes(row.copy_bytes)}`],
      ['nodes', row.n_nodes]].flatMap(([what, value]) => value === '' ? [] : [el('dt', {}, what), el('dd', {}, String(value))])),
  ].filter(Boolean);
}

// What is known of a plan's time, in words.
function timesIn(app, {number, beside}) {
  if (!beside) return app.timesOf(number);
  return beside.ns < 0 ? 'not known' : `${duration(beside.ns)} (${beside.known_by})`;
}

// For printing: the list as a table.
function printedPlans(app) {
  return app.recording.programs.flatMap(program => [
    el('h2', {}, program.name || 'Plans'), ...program.about.map(text => el('p.small', {}, text)),
    el('table', {}, el('thead', {}, el('tr', {}, ...['plan', 'kind', 'computed', 'times', 'unlike the plan before'].map(text => el('th', {}, text)))),
      el('tbody', {}, ...program.plans.slice(0, MOST_PRINTED).map(row => el('tr', {}, ...[row.number, row.label,
        row.beside ? '' : `${row.computed}${row.at_least ? '+' : ''}`, timesIn(app, row), row.difference].map(text => el('td', {}, String(text))))))),
    program.plans.length > MOST_PRINTED ? el('p', {}, `${program.plans.length - MOST_PRINTED} more`) : null,
  ]).filter(Boolean);
}
