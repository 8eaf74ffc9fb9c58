// Draws the operator's charts. Each has a text beside it that says the same to those who do not see it.

import {count, duration, svg} from './dom.js';

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

// The largest round number, 1, 2 or 5 times a power of ten, that is at most `value`.
function roundDown(value) {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  return power * [5, 2, 1].find((factor) => factor * power <= value * (1 + 1e-9));
}

function nextRound(round) {
  return roundDown(round * 2.5);
}

// The round numbers from one clearly below `least`, whose bar has a height, to the one at or above `most`; of a wide range the
// powers of ten and both ends.
function logTicks(least, most) {
  const ticks = [roundDown(least / 1.5)];
  while (ticks.at(-1) < most * (1 - 1e-9)) ticks.push(nextRound(ticks.at(-1)));
  const isPower = (tick) => roundDown(tick) === 10 ** Math.round(Math.log10(tick));
  return ticks.length <= 7 ? ticks : ticks.filter((tick, i) => i === 0 || i === ticks.length - 1 || isPower(tick));
}

// "5 ms": a round number of microseconds.
function tickText(microseconds) {
  const [size, unit] = microseconds >= 1e6 ? [1e6, 's'] : microseconds >= 1e3 ? [1e3, 'ms'] : [1, 'µs'];
  return `${Number((microseconds / size).toPrecision(3))} ${unit}`;
}

const kStepAxis = 48;  // the width of the axis's texts

// Of a chart that is so wide: how many steps it shows.
export function stepsShown(width) {
  return Math.max(20, Math.min(100, Math.floor((width - kStepAxis) / 3.5)));
}

// A step with more tokens than sequences computes prompts, too.
export const hasPrompts = ([, , tokens, sequences]) => tokens > sequences;

// Bars on a logarithmic axis, the newest to the right, so that one long step leaves the others visible. Drawn for `width` pixels: the
// texts are as large on a phone.
export function stepTimeline(shown, width) {
  const [top, height] = [8, 112];
  const slots = stepsShown(width);
  const times = shown.map(([, took]) => Math.max(1, took));
  const ticks = logTicks(times.length === 0 ? 1e3 : Math.min(...times), times.length === 0 ? 1e4 : Math.max(...times));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const image = svg('svg', {viewBox: `0 0 ${width} ${top + height + 6}`, role: 'img', 'aria-labelledby': 'h-steps', 'aria-describedby': 'steps-text'});
  const tall = (time) => height * Math.log(time / low) / Math.log(high / low);
  for (const tick of ticks) {
    const y = top + height - tall(tick);
    image.append(svg('line', {x1: kStepAxis, y1: y, x2: width, y2: y, class: 'grid'}),
      svg('text', {x: kStepAxis - 5, y: y + 4, class: 'axis', 'text-anchor': 'end'}, tickText(tick)));
  }
  const wide = (width - kStepAxis) / slots;
  shown.forEach((step, i) => {
    const [, , tokens, sequences] = step;
    const bar = tall(times[i]);
    image.append(svg('rect', {x: kStepAxis + (i + slots - shown.length) * wide, y: top + height - bar, width: Math.max(1, wide - 1), height: bar, class: hasPrompts(step) ? 'cached' : 'held'},
      svg('title', {}, `${duration(times[i] / 1e6)}: ${count(tokens)} tokens of ${count(sequences)} sequences`)));
  });
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
