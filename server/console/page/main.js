// The console: its two parts, and the status that both show.

import {get} from './api.js';
import {setChatNote, startChat} from './chat.js';
import {byId} from './dom.js';
import {drawOperate, startOperate} from './operate.js';

const kPause = 1000;  // milliseconds between two looks at the server

const tabs = [...document.querySelectorAll('[role=tab]')];
const panel = (tab) => byId(tab.getAttribute('aria-controls'));

function select(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute('aria-selected', String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    panel(other).hidden = !chosen;
  }
  const hash = tab.id.replace('tab-', '#');
  if (location.hash !== hash) history.replaceState(null, '', hash);
}

function startTabs() {
  tabs.forEach((tab, i) => {
    tab.addEventListener('click', () => select(tab));
    tab.addEventListener('keydown', (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1, Home: -i, End: tabs.length - 1 - i}[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = tabs[(i + step + tabs.length) % tabs.length];
      select(next);
      next.focus();
    });
  });
  const byHash = () => select(tabs.find((tab) => `#${tab.id}` === location.hash.replace('#', '#tab-')) ?? tabs[0]);
  addEventListener('hashchange', byHash);
  byHash();
}

function show(text, bad) {
  const state = byId('state');
  if (state.textContent !== text) state.textContent = text;  // said once, and not each second
  state.className = bad ? 'bad' : '';
}

function showStatus(status) {
  const state = !status.live ? 'does not answer' : status.draining ? 'drains' : status.ready ? 'ready' : 'starts';
  show(`${status.model || 'no model yet'} · ${state} · ${status.version}`, state !== 'ready');
  if (!status.engine) {
    setChatNote(status.model ? 'This model has tensors and no text: it has no chat.' : 'The model is not loaded yet.');
  } else {
    setChatNote(status.engine.chat ? '' : 'This model has no chat template, or makes embeddings: it has no chat.');
  }
}

async function look() {
  try {
    const status = await (await get('/admin/status')).json();
    status.at = performance.now();
    showStatus(status);
    if (!byId('panel-operate').hidden) await drawOperate(status);
  } catch (error) {
    show(`The server does not answer: ${error.message}`, true);
  }
  setTimeout(look, kPause);
}

startTabs();
startChat();
startOperate();
look();
