// The chat: a conversation that can be stopped, edited and asked again, and what each answer took.

import {streamChat} from './api.js';
import {button, byId, count, duration, el} from './dom.js';
import {markdown} from './markdown.js';

const kNumbers = ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'seed'];
const kLongText = 20000;  // characters; a longer answer is rendered when it is complete

const conversation = [];  // {role, content, …}; an answer also has tokens, timing and error
let running = null;       // the AbortController of the answer that comes

// Returns the request's fields that the form sets.
function settings() {
  const fields = {};
  for (const name of kNumbers) {
    const value = byId(name).value.trim();
    if (value !== '') fields[name] = Number(value);
  }
  if (byId('logprobs').checked) Object.assign(fields, {logprobs: true, top_logprobs: 5});
  return fields;
}

function messages() {
  const system = byId('system').value.trim();
  const said = conversation.filter(({error, content}) => !error || content).map(({role, content}) => ({role, content}));
  return system ? [{role: 'system', content: system}, ...said] : said;
}

// ---- Tokens ----

function alternatives(token) {
  const shown = (text) => JSON.stringify(text);
  const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;
  const others = (token.top_logprobs ?? []).map((top) => `${shown(top.token)} ${percent(top.logprob)}`);
  return `${shown(token.token)}: log-probability ${token.logprob.toFixed(3)}, ${percent(token.logprob)}. Likeliest: ${others.join(', ')}`;
}

// The answer a token at a time; hovering, or the arrow keys, show what the model might have said instead.
function tokenView(tokens) {
  const tip = el('p', {class: 'tip', 'aria-live': 'polite'});
  const view = el('div', {class: 'tokens', role: 'toolbar', 'aria-label': 'Tokens; the arrow keys go through them'});
  const show = (i) => { tip.textContent = alternatives(tokens[i]); };
  const spans = tokens.map((token, i) => {
    const unlikely = token.logprob < -3 ? ' p2' : token.logprob < -1 ? ' p1' : '';
    const span = el('span', {class: `token${unlikely}`, role: 'button', tabindex: i === 0 ? '0' : '-1', title: alternatives(token)}, token.token);
    span.addEventListener('mouseenter', () => show(i));
    span.addEventListener('focus', () => show(i));
    return span;
  });
  view.addEventListener('keydown', (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const at = spans.indexOf(document.activeElement);
    if (!step || at < 0 || !spans[at + step]) return;
    event.preventDefault();
    spans[at].tabIndex = -1;
    spans[at + step].tabIndex = 0;
    spans[at + step].focus();
  });
  view.append(...spans);
  return el('div', {}, view, tip);
}

// ---- Messages ----

function timingText({first, total, tokens, prompt, cached}) {
  const parts = [];
  if (first !== undefined) parts.push(`first token after ${duration(first)}`);
  parts.push(`${duration(total)} in all`);
  if (tokens !== undefined) {
    parts.push(`${count(tokens)} tokens`);
    const decoding = total - (first ?? 0);
    if (tokens > 1 && decoding > 0) parts.push(`${((tokens - 1) / decoding).toFixed(1)} tokens/s`);
  }
  if (prompt !== undefined) parts.push(`prompt of ${count(prompt)}${cached ? `, ${count(cached)} cached` : ''}`);
  return parts.join(' · ');
}

function body(message) {
  if (message.role === 'user') return el('div', {class: 'plain'}, message.content);
  if (message.showsTokens) return tokenView(message.tokens);
  const whole = !message.running || message.content.length <= kLongText;
  return whole ? markdown(message.content) : el('div', {class: 'plain'}, message.content);
}

function editor(message, index) {
  const text = el('textarea', {rows: '3', 'aria-label': 'Edit the message'});
  text.value = message.content;
  const save = button('Send again', () => {
    conversation.length = index;
    ask(text.value);
  });
  const cancel = button('Cancel', () => {
    message.edits = false;
    draw();
  });
  return el('div', {}, text, el('div', {class: 'buttons'}, save, cancel));
}

function actions(message, index) {
  const all = el('div', {class: 'buttons'});
  if (running) return all;
  if (message.role === 'user') {
    all.append(button('Edit', () => {
      message.edits = true;
      draw();
      byId('messages').children[index].querySelector('textarea').focus();
    }));
    return all;
  }
  if (index === conversation.length - 1) {
    all.append(button('Regenerate', () => {
      conversation.length = index;
      answer();
    }));
  }
  all.append(button('Copy', async (event) => {
    try {
      await navigator.clipboard.writeText(message.content);
      event.target.textContent = 'Copied';
    } catch {
      event.target.textContent = 'The browser refuses';
    }
  }));
  if (message.tokens.length > 0) {
    all.append(button('Tokens', () => {
      message.showsTokens = !message.showsTokens;
      draw();
      byId('messages').children[index].querySelector('[aria-pressed]').focus();
    }, {'aria-pressed': String(Boolean(message.showsTokens))}));
  }
  return all;
}

function item(message, index) {
  const who = message.role === 'user' ? 'You' : 'Model';
  const made = el('li', {class: `message ${message.role}`}, el('p', {class: 'who'}, who));
  made.append(message.edits ? editor(message, index) : body(message));
  if (message.error) made.append(el('p', {class: 'error'}, message.error));
  if (message.timing) made.append(el('p', {class: 'timing'}, timingText(message.timing)));
  if (!message.edits) made.append(actions(message, index));
  return made;
}

function draw() {
  byId('messages').replaceChildren(...conversation.map(item));
  byId('send').disabled = running !== null;
  byId('stop').disabled = running === null;
}

function drawLast() {
  const index = conversation.length - 1;
  byId('messages').lastElementChild.replaceWith(item(conversation[index], index));
  byId('messages').lastElementChild.scrollIntoView({block: 'end'});
}

// ---- Asking ----

async function receive(message, controller) {
  const begin = performance.now();
  const since = () => (performance.now() - begin) / 1000;
  message.timing = {total: 0};
  let drawn = 0;
  for await (const event of streamChat({messages: messages().slice(0, -1), ...settings()}, controller.signal)) {
    if (event.usage) {
      Object.assign(message.timing, {tokens: event.usage.completion_tokens, prompt: event.usage.prompt_tokens,
        cached: event.usage.prompt_tokens_details?.cached_tokens});
    }
    const choice = event.choices[0];
    if (!choice) continue;
    if (choice.delta.content) {
      message.timing.first ??= since();
      message.content += choice.delta.content;
    }
    message.tokens.push(...(choice.logprobs?.content ?? []));
    message.timing.total = since();
    if (choice.finish_reason === 'length') message.error = 'The answer ended at the most tokens.';
    if (performance.now() - drawn > 100) {
      drawn = performance.now();
      drawLast();
    }
  }
}

async function answer() {
  const message = {role: 'assistant', content: '', tokens: [], running: true};
  conversation.push(message);
  running = new AbortController();
  byId('chat-status').textContent = 'The model answers.';
  draw();
  try {
    await receive(message, running);
  } catch (error) {
    message.error = error.name === 'AbortError' ? 'Stopped.' : error.message;
  }
  message.running = false;
  running = null;
  byId('chat-status').textContent = message.error ?? `The answer is complete: ${timingText(message.timing)}.`;
  draw();
}

function ask(text) {
  if (running || text.trim() === '') return;
  conversation.push({role: 'user', content: text});
  answer();
}

// Sets why there is no chat; empty: there is.
export function setChatNote(note) {
  byId('chat-note').hidden = note === '';
  byId('chat-note').textContent = note;
  byId('prompt').disabled = note !== '';
}

export function startChat() {
  const prompt = byId('prompt');
  const submit = () => {
    if (running || prompt.value.trim() === '' || !byId('composer').reportValidity()) return;
    ask(prompt.value);
    prompt.value = '';
  };
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && running) running.abort();
  });
  byId('stop').addEventListener('click', () => running?.abort());
  byId('clear').addEventListener('click', () => {
    running?.abort();
    conversation.length = 0;
    draw();
    prompt.focus();
  });
}
