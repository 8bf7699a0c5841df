// What is written in the search field. Terms stand between spaces, and a node must fit all:
//   soft_max        part of the node's name or op, or of the name of a weight or input that it reads
//   "two words"     the same, with spaces        /^blk\.\d/   a regular expression
//   #95             the node, or a reader of the tensor, with this number
//   name: op: on: cause: layer:3-7               one of these; op, on and cause are the whole value
//                                                if there is one like it, otherwise part of it
//   -…              not that

const TERM = /\s*(-?)(?:(name|op|on|cause|layer):)?("[^"]*"?|\/(?:\\.|[^\\])*?\/(?=\s|$)|\S*)/iy;
const VALUES = {
  op: (plan, t) => plan.op(t), on: (plan, t) => plan.backendName(plan.backend[t]), cause: (plan, t) => plan.cause(t),
};

class Query {
  // `problem` says what is wrong with the text; it fits no node then.
  constructor(text) {
    this.terms = [];
    this.problem = '';
    TERM.lastIndex = 0;
    while (TERM.lastIndex < text.length) {
      const [whole, not, field, value] = TERM.exec(text);
      try {
        const term = termOf(field?.toLowerCase() || '', value);
        if (term) this.terms.push({...term, not: Boolean(not)});
      } catch (error) {
        this.problem ||= `${whole.trim()}: ${error.message.split(': ').at(-1)}`;
      }
    }
  }

  // The function (p, t) that tells whether a node fits.
  over(plans) {
    if (this.problem) return () => false;
    const tests = this.terms.map(term => testOf(term, plans));
    return (p, t) => tests.every((test, i) => test(plans[p], t) !== this.terms[i].not);
  }
}

// One term: its field, "" for none, and what it asks for. Null as long as nothing is asked.
function termOf(field, value) {
  const quoted = value.startsWith('"'), text = quoted ? value.replace(/^"|"$/g, '') : value;
  if (!text) return null;
  if (field === 'layer') {
    const [from, to = from] = /^\d+(-\d+)?$/.test(text) ? text.split('-').map(Number) : [];
    if (!(from <= to)) throw new Error('expected a number, or a range like 3-7');
    return {field, from, to};
  }
  if (!quoted && text.startsWith('/')) {   // one without an end is still being typed
    const source = text.length > 1 && text.endsWith('/') ? text.slice(1, -1) : text.slice(1);
    return source ? {field, expression: new RegExp(source, 'i')} : null;
  }
  if (!quoted && !field && /^#\d+$/.test(text)) return {field: '#', number: Number(text.slice(1))};
  return {field, text: text.toLowerCase()};
}

function testOf({field, from, to, number, expression, text}, plans) {
  if (field === 'layer') return (plan, t) => from <= plan.layer[t] && plan.layer[t] <= to;
  if (field === '#') return (plan, t) => t === number || (!plan.isNode(number) && plan.readers(number).includes(t));
  const fits = expression ? value => expression.test(value) : value => value.toLowerCase().includes(text);
  if (VALUES[field]) {
    const of = VALUES[field], whole = !expression && plans.some(plan => {
      for (let t = 0; t < plan.n; t++) if (of(plan, t).toLowerCase() === text) return true;
      return false;
    });
    return whole ? (plan, t) => of(plan, t).toLowerCase() === text : (plan, t) => fits(of(plan, t));
  }
  return (plan, t) => fits(plan.label(t)) || (!field && fits(plan.op(t)))
    || plan.srcs(t).some(s => !plan.isNode(s) && fits(plan.label(s)));
}
