// Talks to the server that the page came from.

// Kept until the tab is closed.
let key = sessionStorage.getItem('key') ?? '';
let declined = false;

// With --keys the server wants one.
function askForKey() {
  const given = declined ? null : prompt('The server wants a key with the scopes admin, metrics and infer:');
  declined = !given;
  if (declined) return false;
  key = given;
  sessionStorage.setItem('key', key);
  return true;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The status alone must do.
  }
  return new Error(message);
}

async function call(path, options) {
  const shown = key;
  const headers = shown ? {...options.headers, Authorization: `Bearer ${shown}`} : options.headers;
  const response = await fetch(path, {...options, headers});
  if (response.status === 401 && (shown !== key || askForKey())) return call(path, options);
  if (!response.ok) throw await failure(response);
  return response;
}

export function get(path, timeout = 5000) {
  return call(path, {signal: AbortSignal.timeout(timeout)});
}

export function send(method, path, body, type) {
  return call(path, {method, body, headers: {'Content-Type': type}});
}

// Yields the objects of a stream of server-sent events.
export async function* streamChat(body, signal) {
  const response = await call('/v1/chat/completions', {
    method: 'POST',
    headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) throw new Error('the stream ended early');
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
