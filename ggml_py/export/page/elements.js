// Elements of the page.

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
