// Layers × roles: a cell's colour is the backend, its darkness the time (or bytes, where no times are
// known); hatched cells were not measured. A click filters the nodes.

VIEWS.push({
  name: 'layers', label: 'Layers', has: app => !app.diff && app.axis.runs.length > 0,
  make(app, panel) {
    this.panel = panel;
    const cells = new Map(), plan = app.plans[0], roles = new Set(), layers = new Set();
    for (let t = 0; t < plan.n; t++) {
      if (!plan.computed[t]) continue;
      const key = `${plan.role(t)} ${plan.layer[t]}`, cell = cells.get(key) || {nodes: [], bytes: 0, ns: 0, known: Boolean(plan.time), on: new Map()};
      const ns = plan.took(t), weight = plan.kind(t).bytes || 1;
      cell.nodes.push(t);
      cell.bytes += plan.kind(t).bytes;
      if (ns >= 0) cell.ns += ns; else cell.known = false;
      cell.on.set(plan.backend[t], (cell.on.get(plan.backend[t]) || 0) + weight);
      cells.set(key, cell);
      roles.add(plan.role(t));
      layers.add(plan.layer[t]);
    }
    const all = [...cells.values()], timed = all.some(cell => cell.known && cell.ns);
    const size = cell => timed ? cell.known ? cell.ns : 0 : cell.bytes, most = Math.max(1, ...all.map(size));
    const columns = [...layers].sort((a, b) => a - b), rows = [...roles].sort((a, b) => a - b);
    const name = (role, layer) => `${layer < 0 ? 'no layer' : `layer ${layer}`}, ${plan.data.roles[role]}`;
    const button = (role, layer) => {
      const cell = cells.get(`${role} ${layer}`);
      if (!cell) return el('td');
      const said = [plural(cell.nodes.length, 'node'), cell.known ? duration(cell.ns) : plan.time ? 'time not known' : '', bytes(cell.bytes),
        ...[...cell.on].map(([b]) => plan.backendName(b))].filter(Boolean).join(', ');
      const shown = el(`button.cell${timed && !cell.known ? '.unmeasured' : ''}`, {title: `${name(role, layer)}: ${said}`, 'aria-label': `${name(role, layer)}: ${said}`, tabindex: -1,
        onclick: () => app.choose(name(role, layer), [cell.nodes])});
      // The greater part is above; where one is alone it fills the cell.
      const total = [...cell.on.values()].reduce((a, b) => a + b, 0);
      let at = 0;
      const stops = [...cell.on].sort((a, b) => b[1] - a[1]).flatMap(([b, n]) => {
        const color = `var(--${b < 0 ? 'none' : app.laneColor(0, b)})`, from = at;
        at += 100 * n / total;
        return [`${color} ${from}%`, `${color} ${at}%`];
      });
      const fill = el('span');
      fill.style.background = `linear-gradient(${stops.join(', ')})`;
      fill.style.opacity = timed && !cell.known ? 0.4 : 0.12 + 0.88 * Math.sqrt(size(cell) / most);
      shown.append(fill);
      return el('td', {}, shown);
    };
    const every = columns.length > 40 ? 5 : columns.length > 20 ? 2 : 1;
    const table = el('table.heat', {'aria-label': 'Layers and roles; arrow keys move, Enter shows the nodes'},
      el('thead', {}, el('tr', {}, el('td'), ...columns.map(layer => layer > 0 && layer % every ? el('td') : el('th.num', {scope: 'col'}, layer < 0 ? '–' : `${layer}`)))),
      el('tbody', {}, ...rows.map(role => el('tr', {}, el('th', {scope: 'row'}, plan.data.roles[role]), ...columns.map(layer => button(role, layer))))));
    table.addEventListener('keydown', event => stepCell(table, event));
    const first = table.querySelector('button');
    if (first) first.tabIndex = 0;
    panel.replaceChildren(table, el('p.small', {}, `Colour: the backend (see the legend of the lanes). Darkness: ${timed ? 'time' : 'bytes read and written'}.`
      + (timed && all.some(cell => !cell.known) ? ' Hatched: not measured.' : '') + ' A click filters the nodes; “–” has those of no layer.'));
  },
  show() {},
});

// Arrow keys move the focus among the cells.
function stepCell(table, event) {
  const by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (!by || event.target.tagName !== 'BUTTON') return;
  event.preventDefault();
  event.stopPropagation();
  const rows = [...table.tBodies[0].rows], at = event.target.closest('td');
  let r = rows.indexOf(at.parentElement), c = at.cellIndex;
  for (;;) {
    r += by[0];
    c += by[1];
    const cell = rows[r]?.cells[c];
    if (!cell || c < 1) return;
    const button = cell.querySelector('button');
    if (button) {
      event.target.tabIndex = -1;
      button.tabIndex = 0;
      button.focus();
      return;
    }
  }
}
