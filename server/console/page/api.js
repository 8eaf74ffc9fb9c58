// Talks to the server that the page came from.

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The status alone must do.
  }
  return new Error(message);
}

export async function get(path, timeout = 5000) {
  const response = await fetch(path, {signal: AbortSignal.timeout(timeout)});
  if (!response.ok) throw await failure(response);
  return response;
}

export async function send(method, path, body, type) {
  const response = await fetch(path, {method, body, headers: {'Content-Type': type}});
  if (!response.ok) throw await failure(response);
  return response;
}

// Yields the objects of a stream of server-sent events.
export async function* streamChat(body, signal) {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST',
    headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
    signal,
  });
  if (!response.ok) throw await failure(response);
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
