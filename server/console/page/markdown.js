// Renders a model's Markdown as DOM nodes. The text is hostile: HTML stays text, links lead to http, https and mailto alone,
// images are not loaded, and nesting and searches are bounded, so that no text takes long.

import {el} from './dom.js';

const kDepth = 6;       // of blocks in blocks, and of spans in spans
const kSearch = 1000;   // characters in which a span or a link must end
const kSchemes = ['http:', 'https:', 'mailto:'];

// Returns the URL if it may be a link's target; otherwise null.
export function safeUrl(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return kSchemes.includes(url.protocol) ? url.href : null;
}

// Returns where `what` ends a span that begins at `from`: -1 if it does not.
function closing(text, what, from) {
  const at = text.slice(from, from + kSearch).indexOf(what);
  return at <= 0 ? -1 : from + at;
}

// "[label](target)" at `i`, which is a "[".
function linkAt(text, i) {
  const middle = closing(text, '](', i + 1);
  const end = middle < 0 ? -1 : closing(text, ')', middle + 2);
  if (end < 0) return null;
  return {label: text.slice(i + 1, middle), target: text.slice(middle + 2, end).trim(), end: end + 1};
}

function link(label, target, depth) {
  const href = safeUrl(target);
  if (href === null) return document.createTextNode(`${label} (${target})`);
  const a = el('a', {href, target: '_blank', rel: 'noopener noreferrer nofollow', title: href});
  a.append(...inline(label, depth + 1));
  return a;
}

const kSpans = [['**', 'strong'], ['__', 'strong'], ['~~', 's'], ['*', 'em'], ['_', 'em']];

function spanAt(text, i, depth) {
  for (const [mark, name] of kSpans) {
    if (!text.startsWith(mark, i)) continue;
    // snake_case is no emphasis.
    if (mark[0] === '_' && /\w/.test(text[i - 1] ?? '')) continue;
    const begin = i + mark.length;
    if (/\s/.test(text[begin] ?? ' ')) continue;
    const end = closing(text, mark, begin);
    if (end < 0 || /\s/.test(text[end - 1])) continue;
    const node = el(name);
    node.append(...inline(text.slice(begin, end), depth + 1));
    return {node, end: end + mark.length};
  }
  return null;
}

function specialAt(text, i, depth) {
  const c = text[i];
  if (c === '`') {
    const mark = text.startsWith('``', i) ? '``' : '`';
    const end = closing(text, mark, i + mark.length);
    if (end < 0) return null;
    return {node: el('code', {}, text.slice(i + mark.length, end).trim()), end: end + mark.length};
  }
  if (c === '!' && text[i + 1] === '[') {
    const image = linkAt(text, i + 1);
    return image && {node: link(`image: ${image.label}`, image.target, kDepth), end: image.end};
  }
  if (c === '[') {
    const found = linkAt(text, i);
    return found && {node: link(found.label, found.target, depth), end: found.end};
  }
  return '*_~'.includes(c) ? spanAt(text, i, depth) : null;
}

// Returns the nodes of a text without blocks.
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = '';
  for (let i = 0; i < text.length;) {
    if (text[i] === '\\' && /[\\`*_~[\]()#!-]/.test(text[i + 1] ?? '')) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    const special = depth < kDepth && '`![*_~'.includes(text[i]) ? specialAt(text, i, depth) : null;
    if (special === null) {
      plain += text[i++];
      continue;
    }
    if (plain) nodes.push(plain);
    plain = '';
    nodes.push(special.node);
    i = special.end;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

const kFence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]{0,30})/;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kHeading = /^(#{1,6})\s+(.*)$/;
const kRule = /^\s*([-*_])(\s*\1){2,}\s*$/;
const kTableRule = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((cell) => cell.trim());
}

function table(lines) {
  const row = (line, name, attributes) => el('tr', {}, ...cells(line).map((cell) => el(name, attributes, ...inline(cell))));
  return el('table', {tabindex: '0'}, el('thead', {}, row(lines[0], 'th', {scope: 'col'})),
    el('tbody', {}, ...lines.slice(2).map((line) => row(line, 'td', {}))));
}

function list(lines, depth) {
  const first = kItem.exec(lines[0]);
  const node = el(/\d/.test(first[2]) ? 'ol' : 'ul', /\d/.test(first[2]) ? {start: parseInt(first[2], 10)} : {});
  let item = null;
  for (const line of lines) {
    const found = kItem.exec(line);
    if (found && found[1].length <= first[1].length + 1) {
      item = [found[3]];
      node.append(el('li'));
      node.lastChild.lines = item;
    } else {
      item.push(line.slice(Math.min(first[1].length + 2, line.length - line.trimStart().length)));
    }
  }
  for (const li of node.children) {
    const only = li.lines.length === 1;
    li.append(...(only ? inline(li.lines[0]) : blocks(li.lines, depth + 1)));
  }
  return node;
}

// Takes lines from `i` on while `belongs` says so.
function take(lines, i, belongs) {
  let end = i + 1;
  while (end < lines.length && belongs(lines[end])) ++end;
  return end;
}

function blockAt(lines, i, depth) {
  const line = lines[i];
  const fence = kFence.exec(line);
  if (fence) {
    const end = take(lines, i, (next) => !next.trim().startsWith(fence[1]));
    const code = el('code', {}, lines.slice(i + 1, end).join('\n'));
    return {node: el('pre', {tabindex: '0', title: fence[2] || null}, code), end: end + 1};
  }
  const heading = kHeading.exec(line);
  if (heading) {
    return {node: el(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])), end: i + 1};
  }
  if (kRule.test(line)) return {node: el('hr'), end: i + 1};
  if (depth < kDepth && line.startsWith('>')) {
    const end = take(lines, i, (next) => next.startsWith('>'));
    const inner = lines.slice(i, end).map((text) => text.replace(/^> ?/, ''));
    return {node: el('blockquote', {}, ...blocks(inner, depth + 1)), end};
  }
  if (depth < kDepth && kItem.test(line)) {
    const end = take(lines, i, (next) => kItem.test(next) || /^\s{2,}\S/.test(next));
    return {node: list(lines.slice(i, end), depth), end};
  }
  if (line.includes('|') && i + 1 < lines.length && lines[i + 1].length < 500 && kTableRule.test(lines[i + 1])) {
    const end = take(lines, i + 1, (next) => next.includes('|'));
    return {node: table(lines.slice(i, end)), end};
  }
  const end = take(lines, i, (next) => next.trim() !== '' && !kFence.test(next) && !kHeading.test(next) && !kItem.test(next) && !next.startsWith('>'));
  return {node: el('p', {}, ...inline(lines.slice(i, end).join('\n'))), end};
}

function blocks(lines, depth) {
  const nodes = [];
  for (let i = 0; i < lines.length;) {
    if (lines[i].trim() === '') {
      ++i;
      continue;
    }
    const {node, end} = blockAt(lines, i, depth);
    nodes.push(node);
    i = end;
  }
  return nodes;
}

// Models skip levels of headings, which those who jump from heading to heading would look for.
function closeGaps(root) {
  let before = 2;  // of the heading above the chat
  for (const heading of root.querySelectorAll('h3, h4, h5, h6')) {
    const level = Math.min(Number(heading.localName[1]), before + 1);
    const closed = el(`h${level}`);
    closed.append(...heading.childNodes);
    heading.replaceWith(closed);
    before = level;
  }
}

// Returns an element with the text's blocks.
export function markdown(text) {
  const root = el('div', {class: 'markdown'}, ...blocks(text.split(/\r?\n/), 0));
  closeGaps(root);
  return root;
}
