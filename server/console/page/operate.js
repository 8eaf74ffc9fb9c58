// The operator's part: load, KV cache, steps, sequences, latencies, log levels, drain.

import {get, send} from './api.js';
import {hasPrompts, histogramChart, kvMap, stepsShown, stepTimeline} from './charts.js';
import {byId, count, duration, el} from './dom.js';
import {histogram, parse, quantile} from './metrics.js';

const kHistograms = [
  ['vllm:time_to_first_token_seconds', 'Time to first token'],
  ['vllm:inter_token_latency_seconds', 'Between tokens'],
  ['vllm:e2e_request_latency_seconds', 'Whole request'],
  ['vllm:request_queue_time_seconds', 'In the queue'],
];

let before = null;      // the status before this one, for rates
let logEdited = false;  // the field has what was typed and not set yet

function rate(engine, field, seconds) {
  return before === null || seconds <= 0 ? 0 : (engine[field] - before.engine[field]) / seconds;
}

function percent(part, whole) {
  return whole === 0 ? '–' : `${(100 * part / whole).toFixed(1)} %`;
}

function drawTiles(engine, seconds) {
  const used = engine.num_blocks === 0 ? 0 : engine.blocks_held;
  const tiles = [
    ['Running', count(engine.num_running)],
    ['Waiting', count(engine.num_waiting)],
    ['KV cache held', percent(used, engine.num_blocks)],
    ['Prefix hits', percent(engine.prefix_hits, engine.prefix_queries)],
    ['Decoded/s', count(Math.round(rate(engine, 'decode_tokens', seconds)))],
    ['Prefilled/s', count(Math.round(rate(engine, 'prefill_tokens', seconds)))],
    ['Preemptions', count(engine.preemptions)],
    ['Drafts accepted', percent(engine.accepted_tokens, engine.draft_tokens)],
  ];
  byId('tiles').replaceChildren(...tiles.map(([name, value]) =>
    el('div', {class: 'tile'}, el('dt', {}, name), el('dd', {}, value))));
}

function drawCache(engine) {
  byId('kv-map').replaceChildren(kvMap(engine.kv_cells));
  byId('kv-text').textContent = `${count(engine.num_blocks)} blocks of ${engine.block_size} tokens: ${count(engine.blocks_held)} held, ` +
    `${count(engine.blocks_cached)} cached, ${count(engine.blocks_free)} free.`;
}

function drawSteps({steps}) {
  const width = byId('steps').clientWidth || 400;  // 0: the part is not shown
  const shown = steps.slice(-stepsShown(width));
  const prompts = shown.filter(hasPrompts).length;
  byId('steps').replaceChildren(stepTimeline(shown, width));
  byId('steps-decode').textContent = count(shown.length - prompts);
  byId('steps-prompts').textContent = count(prompts);
  if (shown.length === 0) {
    byId('steps-text').textContent = 'No step has run yet.';
    return;
  }
  const times = shown.map(([, took]) => took / 1e6).sort((a, b) => a - b);
  const [ago, , tokens, sequences] = shown.at(-1);
  byId('steps-text').textContent = `The last ${shown.length}, ${count(prompts)} of them with prompts: median ${duration(times[times.length >> 1])}, longest ${duration(times.at(-1))}. ` +
    `The last one, ${duration(ago / 1e6)} ago, had ${count(tokens)} tokens of ${count(sequences)} sequences.`;
}

function drawSequences({sequences, num_running, num_waiting}) {
  const number = (value) => el('td', {class: 'number'}, count(value));
  const rows = sequences.map((s) => {
    const state = s.running ? (s.computed_tokens < s.prompt_tokens ? 'prefill' : 'decode') : 'waits';
    const id = el('th', {scope: 'row'}, el('code', {}, s.choice > 0 ? `${s.id} (${s.choice})` : s.id));
    return el('tr', {}, id, el('td', {}, state), number(s.prompt_tokens), number(s.cached_tokens),
      el('td', {class: 'number'}, `${count(s.generated_tokens)} / ${count(s.max_tokens)}`), number(s.blocks),
      el('td', {class: 'number'}, duration(s.age_us / 1e6)));
  });
  const more = num_running + num_waiting - sequences.length;
  if (rows.length === 0 || more > 0) {
    rows.push(el('tr', {}, el('td', {colspan: '7'}, rows.length === 0 ? 'Nothing runs.' : `and ${count(more)} more`)));
  }
  byId('sequences').replaceChildren(...rows);
}

function drawLatency(samples) {
  byId('latency').replaceChildren(...kHistograms.map(([name, title]) => {
    const buckets = histogram(samples, name);
    const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
    const card = el('div', {}, el('h4', {}, title));
    if (total === 0) {
      card.append(el('p', {class: 'help'}, 'None yet.'));
      return card;
    }
    const [half, most, nearly] = [0.5, 0.9, 0.99].map((share) => duration(quantile(buckets, share)));
    const text = `median ${half}, p90 ${most}, p99 ${nearly}, of ${count(total)}`;
    card.append(histogramChart(buckets, `${title}: ${text}`), el('p', {class: 'help'}, text));
    return card;
  }));
}

// Draws a status of /admin/status, and asks for the metrics.
export async function drawOperate(status) {
  const logField = byId('log');
  if (document.activeElement !== logField && !logEdited) logField.value = status.log;
  byId('drain').disabled = status.draining;
  const {engine} = status;
  if (engine === null) {
    byId('tiles').replaceChildren();
    return;
  }
  drawTiles(engine, before === null ? 0 : (status.at - before.at) / 1000);
  before = status;
  drawCache(engine);
  drawSteps(engine);
  drawSequences(engine);
  drawLatency(parse(await (await get('/metrics')).text()));
}

async function setLog(event) {
  event.preventDefault();
  const status = byId('log-status');
  try {
    const response = await send('PUT', '/log', byId('log').value, 'text/plain');
    logEdited = false;
    status.textContent = `The levels are ${(await response.text()).trim()}.`;
  } catch (error) {
    status.textContent = error.message;
  }
}

async function drain() {
  byId('drain-dialog').close();
  try {
    await send('POST', '/admin/drain', '{}', 'application/json');
    byId('drain-status').textContent = 'The server drains.';
  } catch (error) {
    byId('drain-status').textContent = error.message;
  }
}

export function startOperate() {
  byId('log-form').addEventListener('submit', setLog);
  byId('log').addEventListener('input', () => { logEdited = true; });
  byId('drain').addEventListener('click', () => byId('drain-dialog').showModal());
  byId('drain-no').addEventListener('click', () => byId('drain-dialog').close());
  byId('drain-yes').addEventListener('click', drain);
}
