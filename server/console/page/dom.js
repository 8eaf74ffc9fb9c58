// Makes elements. Text is only ever set as text: nothing here, or elsewhere in the console, parses HTML.

const kSvg = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) throw new Error(`${name}: use addEventListener`);
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children) element.append(child);  // a string becomes a text node
  return element;
}

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(kSvg, name), attributes, children);
}

export function button(label, onClick, attributes = {}) {
  const made = el('button', {type: 'button', class: 'small', ...attributes}, label);
  made.addEventListener('click', onClick);
  return made;
}

export const byId = (id) => document.getElementById(id);

// "1.24 s", "35 ms".
export function duration(seconds) {
  if (seconds >= 100) return `${Math.round(seconds)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  if (seconds >= 0.01) return `${Math.round(seconds * 1000)} ms`;
  return `${(seconds * 1000).toFixed(2)} ms`;
}

export const count = (number) => number.toLocaleString('en');
