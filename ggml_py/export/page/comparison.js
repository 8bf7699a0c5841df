// Cases of two releases: a strip of splits for each side, what differs, and filters by state.

const get = id => document.getElementById(id);
const {names, cases, colors} = JSON.parse(get('data').textContent);
const STATES = ['worse', 'mixed', 'better', 'differs', 'allowed', 'same', 'no plan'];
const counts = new Map(STATES.map(state => [state, cases.filter(one => one.state === state).length]));
const chosen = new Set(STATES.filter(state => counts.get(state) && !['same', 'no plan'].includes(state)));
if (!chosen.size) for (const state of STATES) chosen.add(state);

// The splits in a row, as wide as they have nodes.
function strip(splits) {
  const all = splits.reduce((sum, [, n]) => sum + n, 0), box = el('span.bar');
  for (const [backend, n, copied] of splits) {
    const part = tint(el('span', {title: `${backend}: ${n} nodes, ${copied} copied`}, n > 0.2 * all ? backend : ''), colors[backend]);
    part.style.width = `${100 * n / Math.max(all, 1)}%`;
    box.append(part);
  }
  return box;
}

function drawn(one) {
  return el('details.case', {open: !['same', 'no plan', 'allowed'].includes(one.state)},
    el('summary', {}, el('span.tag', {'data-state': one.state}, one.state), ` ${one.name} `, el('span.soft', {}, one.headline)),
    ...one.sides.map(({splits, error}, i) => el('div.side', {}, el('span.soft', {}, names[i]), splits ? strip(splits) : el('span', {}, error))),
    one.details ? el('pre', {}, one.details) : null);
}

function show() {
  const words = get('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = cases.filter(one => chosen.has(one.state) && words.every(word => one.text.includes(word)));
  get('cases').replaceChildren(...fits.slice(0, MOST).map(drawn), ...fits.length > MOST ? [el('p.note', {}, `${fits.length - MOST} more: search for them`)] : []);
  get('found').textContent = `${fits.length} of ${cases.length}`;
}
const MOST = 500;

for (const one of cases) one.text = `${one.name} ${one.headline} ${one.details}`.toLowerCase();
get('states').append(...STATES.filter(state => counts.get(state)).map(state => el('button', {
  type: 'button', 'aria-pressed': String(chosen.has(state)),
  onclick: event => {
    if (!chosen.delete(state)) chosen.add(state);
    event.currentTarget.setAttribute('aria-pressed', String(chosen.has(state)));
    show();
  },
}, `${counts.get(state)} ${state}`)));
get('search').oninput = show;
get('toolbar').onsubmit = event => event.preventDefault();
const theme = dark => { document.documentElement.dataset.theme = dark ? 'dark' : 'light'; };
get('theme').onclick = () => theme(document.documentElement.dataset.theme !== 'dark');
document.addEventListener('keydown', event => {
  if (event.target.closest('input') || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === '/') get('search').focus();
  else if (event.key === 'd') get('theme').click();
  else return;
  event.preventDefault();
});
theme(matchMedia('(prefers-color-scheme: dark)').matches);
show();
