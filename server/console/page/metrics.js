// Reads Prometheus' text format.

const kSample = /^([\w:]+)(?:\{(.*)\})? (\S+)/;
const kLabel = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Returns a map of names to samples, {labels, value}.
export function parse(text) {
  const samples = new Map();
  for (const line of text.split('\n')) {
    if (line.startsWith('#')) continue;
    const match = kSample.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(kLabel)) labels[name] = value;
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({labels, value: Number(match[3])});
  }
  return samples;
}

// Returns a histogram's buckets, [{below, count}], each without the ones before it, of all its label sets together.
export function histogram(samples, name) {
  const sums = new Map();
  for (const {labels, value} of samples.get(`${name}_bucket`) ?? []) {
    const below = labels.le === '+Inf' ? Infinity : Number(labels.le);
    sums.set(below, (sums.get(below) ?? 0) + value);
  }
  let before = 0;
  return [...sums].sort(([a], [b]) => a - b).map(([below, sum]) => {
    const count = sum - before;
    before = sum;
    return {below, count};
  });
}

// Returns the bound below which a share of the values lies, between bounds in a straight line; null without values.
export function quantile(buckets, share) {
  const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  if (total === 0) return null;
  let left = share * total;
  let low = 0;
  for (const {below, count} of buckets) {
    if (count > 0 && left <= count) return below === Infinity ? low : low + (below - low) * left / count;
    left -= count;
    if (below !== Infinity) low = below;
  }
  return low;
}
