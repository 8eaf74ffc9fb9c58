// Draws the operator's charts. Each has a text beside it that says the same to those who do not see it.

import {duration, svg} from './dom.js';

// A square a cell: the larger of held and cached gives its colour, the share its height.
export function kvMap(cells) {
  const columns = 64;
  const size = 10;
  const rows = Math.max(1, Math.ceil(cells.length / columns));
  const image = svg('svg', {viewBox: `0 0 ${columns * size} ${rows * size}`, role: 'img', 'aria-labelledby': 'h-kv', 'aria-describedby': 'kv-text'});
  cells.forEach(([blocks, held, cached], i) => {
    const x = (i % columns) * size;
    const y = Math.floor(i / columns) * size;
    const height = size - 1;
    image.append(svg('rect', {x, y, width: height, height, class: 'free'}));
    let top = y + height;
    for (const [part, name] of [[held, 'held'], [cached, 'cached']]) {
      if (part === 0) continue;
      const tall = height * part / blocks;
      top -= tall;
      image.append(svg('rect', {x, y: top, width: height, height: tall, class: name}));
    }
  });
  return image;
}

// Bars, the newest to the right.
export function stepTimeline(steps) {
  const [width, height, slots] = [400, 90, 100];
  const shown = steps.slice(-slots);
  const most = Math.max(1, ...shown.map(([, took]) => took));
  const image = svg('svg', {viewBox: `0 0 ${width} ${height + 14}`, role: 'img', 'aria-labelledby': 'h-steps', 'aria-describedby': 'steps-text'});
  const wide = width / slots;
  shown.forEach(([, took, tokens, sequences], i) => {
    const tall = Math.max(1, height * took / most);
    // A step with more tokens than sequences computes prompts, too.
    image.append(svg('rect', {x: (i + slots - shown.length) * wide, y: height - tall, width: wide - 1, height: tall, class: tokens > sequences ? 'cached' : 'held'}));
  });
  image.append(svg('text', {x: 0, y: height + 12, class: 'axis'}, `highest: ${duration(most / 1e6)}`));
  return image;
}

export function histogramChart(buckets, label) {
  const used = buckets.filter(({count}) => count > 0);
  const first = Math.max(0, buckets.indexOf(used[0]) - 1);
  const last = Math.min(buckets.length, buckets.indexOf(used.at(-1)) + 2);
  const shown = buckets.slice(first, last);
  const [width, height] = [240, 80];
  const image = svg('svg', {viewBox: `0 0 ${width} ${height + 14}`, role: 'img', 'aria-label': label});
  const most = Math.max(1, ...shown.map(({count}) => count));
  const wide = width / shown.length;
  shown.forEach(({count}, i) => {
    const tall = height * count / most;
    image.append(svg('rect', {x: i * wide, y: height - tall, width: Math.max(1, wide - 1), height: tall, class: 'bar'}));
  });
  const text = (bound) => (bound === Infinity ? '∞' : duration(bound));
  image.append(svg('text', {x: 0, y: height + 12, class: 'axis'}, `≤ ${text(shown[0].below)}`),
    svg('text', {x: width, y: height + 12, class: 'axis', 'text-anchor': 'end'}, `≤ ${text(shown.at(-1).below)}`));
  return image;
}
