// The nodes as a table; only the rows in view are in the document.

const ROW = 24;

const COLUMNS = [
  {title: '#', width: 54, num: true, of: (app, p, t) => t},
  {title: 'name', width: 178, of: (app, p, t) => app.plans[p].label(t)},
  {title: 'op', width: 122, of: (app, p, t) => app.plans[p].op(t)},
  {title: 'type', width: 48, of: (app, p, t) => app.plans[p].kind(t).type},
  {title: 'ne', width: 104, of: (app, p, t) => app.plans[p].kind(t).ne},
  {title: 'backend', width: 82, of: (app, p, t) => app.plans[p].backendName(app.plans[p].backend[t])},
  {title: 'cause', width: 64, of: (app, p, t) => app.plans[p].cause(t)},
  {title: 'off: why', width: 108, of: (app, p, t) => app.plans[p].offOf[t]?.reason || ''},
  {title: 'split', width: 50, num: true, of: (app, p, t) => app.plans[p].split[t]},
  {title: 'layer', width: 50, num: true, of: (app, p, t) => app.plans[p].layer[t] < 0 ? '' : app.plans[p].layer[t]},
  {title: 'bytes', width: 74, num: true, of: (app, p, t) => app.plans[p].kind(t).bytes, shown: n => n ? bytes(n) : ''},
  {title: 'FLOPs', width: 66, num: true, of: (app, p, t) => app.plans[p].kind(t).flops, shown: n => n ? count(n) : ''},
];

const TIME = {title: 'time', unit: 'ns', width: 74, num: true, of: (app, p, t) => app.plans[p].took(t), shown: n => n > 0 ? duration(n) : ''};

// Columns for the other plan.
const OTHER = [
  {title: 'after: #', width: 70, num: true, of: (app, p, t) => app.partner({p, t})?.t ?? ''},
  {title: 'after: on', width: 90, of: (app, p, t) => {
    const other = app.partner({p, t});
    return other ? app.plans[other.p].backendName(app.plans[other.p].backend[other.t]) : '–';
  }},
  {title: 'after: cause', width: 90, of: (app, p, t) => {
    const other = app.partner({p, t});
    return other ? app.plans[other.p].cause(other.t) : '–';
  }},
];

class Table {
  constructor(box, app) {
    this.box = box;
    this.app = app;
    this.columns = app.diff ? [...COLUMNS.slice(0, 3), ...COLUMNS.slice(5, 7), ...OTHER, ...COLUMNS.slice(7)] : [...COLUMNS];
    if (app.plans[0].time) this.columns.splice(7, 0, TIME);
    this.sorted = {column: this.columns[0], down: false};
    this.rows = [];
    box.addEventListener('scroll', () => this.draw());
    box.addEventListener('keydown', event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(box);
    this.head = el('tr', {}, ...this.columns.map(column => el(`th${column.num ? '.num' : ''}`, {scope: 'col'},
      el('button', {onclick: () => this.sort(column)}, column.title))));
    this.body = el('tbody');
    this.table = el('table', {'aria-label': 'Nodes'},
      el('colgroup', {}, ...this.columns.map(column => {
        const col = el('col');
        col.style.width = `${column.width}px`;
        return col;
      })), el('thead', {}, this.head), this.body);
    this.table.style.minWidth = `${this.columns.reduce((sum, column) => sum + column.width, 0)}px`;
    box.append(this.table);
  }

  sort(column) {
    this.sorted = {column, down: this.sorted.column === column ? !this.sorted.down : Boolean(column.num && column.title !== '#')};
    this.fill();
  }

  // The rows that pass the filters: nodes of the first plan, then those that only the second has.
  fill() {
    const {app} = this, rows = [];
    app.plans.forEach((plan, p) => {
      for (let t = 0; t < plan.n; t++) {
        const partner = p ? app.partner({p, t}) : null;
        if (!partner && (app.match[p][t] || (!p && app.diff && this.otherMatches(t)))) rows.push({p, t});
      }
    });
    const {column, down} = this.sorted, keys = new Map(rows.map(row => [row, column.of(app, row.p, row.t)]));
    const sign = down ? -1 : 1;
    rows.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      return sign * (x < y ? -1 : x > y ? 1 : 0) || a.p - b.p || a.t - b.t;
    });
    this.rows = rows;
    this.columns.forEach((each, i) => {
      const cell = this.head.children[i];
      cell.setAttribute('aria-sort', each === column ? (down ? 'descending' : 'ascending') : 'none');
      cell.firstChild.textContent = each.title + (each === column ? (down ? ' ▾' : ' ▴') : '');
    });
    this.table.setAttribute('aria-rowcount', rows.length + 1);
    this.draw();
  }

  otherMatches(t) {
    const partner = this.app.partner({p: 0, t});
    return partner && this.app.match[1][partner.t];
  }

  draw() {
    if (!this.box.isConnected || this.box.closest('[hidden]')) return;   // another plan has a table of its own
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 10);
    const end = Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / ROW) + 22);
    const space = height => {
      const row = el('tr', {'aria-hidden': 'true'}), cell = el('td', {colspan: this.columns.length});
      cell.style.height = `${height}px`;
      cell.style.padding = '0';
      row.append(cell);
      return row;
    };
    const {app} = this, rows = [space(first * ROW)];
    for (let i = first; i < end; i++) {
      const {p, t} = this.rows[i], picked = app.picked;
      const partner = picked && app.partner(picked);
      const here = picked && ((picked.p === p && picked.t === t) || (partner && partner.p === p && partner.t === t));
      const row = el('tr', {'aria-rowindex': i + 2, 'aria-selected': String(Boolean(here)), 'data-node': t, 'data-plan': p,
        onclick: () => app.pick(p, t)});
      if (app.isChanged(p, t)) row.className = 'changed';
      for (const column of this.columns) {
        const value = column.of(app, p, t), text = String(column.shown ? column.shown(value) : value);
        const cell = el(`td${column.num ? '.num' : ''}`, {title: text}, text);
        if (column.title === 'backend') cell.prepend(tint(el('span.dot'), app.color(p, t)));
        row.append(cell);
      }
      rows.push(row);
    }
    rows.push(space((this.rows.length - end) * ROW));
    this.body.replaceChildren(...rows);
  }

  at(picked) {
    const partner = picked && this.app.partner(picked);
    return picked ? this.rows.findIndex(row => (row.p === picked.p && row.t === picked.t)
      || (partner && row.p === partner.p && row.t === partner.t)) : -1;
  }

  show(picked) {
    const i = this.at(picked);
    if (i >= 0) {
      const top = i * ROW, room = this.box.clientHeight - 2 * ROW;
      if (top < this.box.scrollTop || top > this.box.scrollTop + room) this.box.scrollTop = top - room / 2;
    }
    this.draw();
  }

  key(event) {
    const page = Math.floor(this.box.clientHeight / ROW) - 2;
    const step = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9}[event.key];
    if (!step || event.target.closest('button') || !this.rows.length) return;
    event.preventDefault();
    event.stopPropagation();
    const i = Math.min(Math.max(this.at(this.app.picked) + step, 0), this.rows.length - 1);
    this.app.pick(this.rows[i].p, this.rows[i].t);
  }
}
