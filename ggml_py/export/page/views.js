// The views, a tab each: {name, label, has(app), make(app, panel), show(app)}. A view's file pushes
// its own; `make` is called when the view is first shown, `show` each time and when the filters change.

const VIEWS = [
  {name: 'lanes', label: 'Lanes', has: () => true, make() {}, show: app => app.redraw()},
  {name: 'table', label: 'Table', has: () => true, make() {}, show: app => app.table.show(app.picked)},
];

Object.assign(App.prototype, {
  // The tabs and panels of the views that this data has.
  tabs() {
    this.views = VIEWS.filter(view => view.has(this));
    this.made = new Set();
    const center = this.get('center');
    this.get('tabs').replaceChildren(...this.views.map(({name, label}) =>
      el('button', {id: `tab-${name}`, role: 'tab', 'aria-controls': `${name}-view`, onclick: () => this.view(name)}, label)));
    for (const {name} of this.views) if (!this.get(`${name}-view`)) {
      center.append(el('section.view', {id: `${name}-view`, role: 'tabpanel', 'aria-labelledby': `tab-${name}`, hidden: true}));
    }
    this.usualView = (this.views.find(each => each.name === this.data.view) || this.views[0]).name;
    this.view(this.usualView);
  },

  view(name) {
    this.shown = this.views.some(view => view.name === name) ? name : this.usualView;
    for (const view of this.views) {
      const here = view.name === this.shown, tab = this.get(`tab-${view.name}`);
      this.get(`${view.name}-view`).hidden = !here;
      tab.setAttribute('aria-selected', String(here));
      tab.tabIndex = here ? 0 : -1;
    }
    this.show();
    if (this.timeline && !this.picked && !this.pickedArrow) details(this);
    this.remember();
  },

  // Draws the view that is shown.
  show() {
    const view = this.views.find(each => each.name === this.shown);
    if (!this.made.has(view.name)) view.make(this, this.get(`${view.name}-view`));
    this.made.add(view.name);
    view.show(this);
  },

  // The tab `by` places further.
  turn(by) {
    const at = this.views.findIndex(view => view.name === this.shown), n = this.views.length;
    this.view(this.views[(at + by + n) % n].name);
    this.get(`tab-${this.shown}`).focus();
  },
});
