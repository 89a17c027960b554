'use strict';
// Sends requests to the service that this page came from, and shows its answers.

const BASE = location.pathname.replace(/docs$/, '');
const FILE = 'a file';
const IN_PIECES = /^(text\/event-stream|application\/x-ndjson)/;

/** A form that sends a request to the route, and shows its answer. */
function trial(path, verb, operation, number) {
  const content = operation.requestBody ? resolved(operation.requestBody).content : {};
  const kinds = Object.keys(content);
  const id = (name) => `${name}-${number}`;
  const parts = (operation.parameters || []).map((each) => parameterInput(each, id));
  const out = make('div', { role: 'status', 'aria-live': 'polite' });
  const send = make('button', { class: 'send', type: 'submit' }, 'Send');
  const area = make('div');
  let current = async () => [undefined, {}];

  /** Show the inputs for a media type; ``current`` reads the body and its header fields. */
  function choose(kind) {
    const [elements, read] = (INPUTS[kind] || fileInput)(kind, content[kind], id);
    area.replaceChildren(...elements);
    current = read;
  }

  const offered = kinds.filter((each) => each !== 'application/msgpack');
  const form = make('form', {
    onsubmit: async (event) => {
      event.preventDefault();
      send.disabled = true;
      out.replaceChildren(make('p', { class: 'soft' }, 'Sent …'));
      try {
        const [data, headers] = await current();
        const filled = parts.map((each) => ({ ...each, value: each.input.value }));
        const url = BASE + target(path, filled).slice(1);
        for (const each of filled) {
          if (each.place === 'header' && each.value) headers[each.name] = each.value;
        }
        const begun = performance.now();
        const answer = await fetch(url, { method: verb.toUpperCase(), body: data, headers: { ...headers, ...who() }, cache: 'no-store' });
        const [bytes, cut] = IN_PIECES.test(answer.headers.get('content-type')) ? await arriving(out, answer) : [await answer.arrayBuffer()];
        await show(out, answer, bytes, performance.now() - begun);
        if (cut) out.append(make('p', { class: 'bad' }, `The answer ended in the middle: ${cut.message}`));
      } catch (error) {
        out.replaceChildren(make('p', { class: 'bad' }, `Not sent: ${error.message}`));
      } finally {
        send.disabled = false;
      }
    },
  }, make('h3', {}, 'Try it'));
  for (const each of parts) {
    form.append(make('label', { for: each.input.id }, each.name, make('span', { class: 'soft' }, ` ${each.about}`)), each.input);
  }
  if (offered.length > 1) {
    const choice = make('select', { id: id('kind'), onchange: () => choose(choice.value) },
      ...offered.map((each) => make('option', { value: each }, each === 'application/octet-stream' || each.startsWith('image/') ? `${each} (${FILE})` : each)));
    form.append(make('label', { for: id('kind') }, 'Content-Type'), choice);
  }
  if (offered.length) choose(offered[0]);
  form.append(area, send, out);
  return form;
}

/** Show the text of an answer in pieces while it arrives; returns its bytes, and the error if it was cut off. */
async function arriving(out, answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  const chunks = [];
  const shown = make('pre', { class: 'arriving', tabindex: '0' });
  out.replaceChildren(make('p', {}, make('button', { class: 'stop', type: 'button', onclick: () => reader.cancel() }, 'Stop')), shown);
  let cut;
  try {
    for (let each = await reader.read(); !each.done; each = await reader.read()) {
      chunks.push(each.value);
      shown.append(decoder.decode(each.value, { stream: true }));
    }
  } catch (error) {
    cut = error;
  }
  return [await new Blob(chunks).arrayBuffer(), cut];
}

/** An answer: status, time, header fields and body. */
async function show(out, answer, bytes, milliseconds) {
  const kind = answer.headers.get('content-type') || '';
  let shown;
  if (kind.startsWith('image/')) {
    shown = make('img', { src: URL.createObjectURL(new Blob([bytes], { type: kind })), alt: 'the answer' });
  } else {
    let text = new TextDecoder().decode(bytes);
    if (kind.includes('json')) {
      try { text = pretty(JSON.parse(text)); } catch (error) { text = `${text}\n(no JSON: ${error.message})`; }
    }
    shown = make('pre', { class: 'answer', tabindex: '0' }, text);
  }
  const headers = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join('\n');
  out.replaceChildren(
    make('p', {}, make('strong', { class: `status ${answer.ok ? 'good' : 'bad'}` }, `${answer.status} ${answer.statusText}`.trim()),
      make('span', { class: 'soft' }, ` ${milliseconds.toFixed(1)} ms, ${bytes.byteLength} bytes`)),
    shown,
    make('details', { class: 'inner' }, make('summary', {}, 'Header fields'), make('pre', { class: 'headers', tabindex: '0' }, headers)),
  );
}
