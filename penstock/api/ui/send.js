'use strict';
// The form that sends a request.

const SHOWN = 100000;         // characters of an answer that are shown

const routes = [];            // path, and a body to begin with
let keyed = false;            // whether the routes need a key; if not, they do not get the page's token

/** The routes that take JSON, of the service's description, or else those of the graphs; and the page's title. */
async function findRoutes() {
  const { graphs } = past[0].status;
  if (past[0].sends === false) {  // the page is on the port for operators, which does not have the routes
    byId('sending').hidden = true;
    return say(byId('title'), graphs.find((graph) => graph.name)?.name || 'Service');
  }
  const plain = graphs.filter((graph) => graph.name).map((graph) => `/${encodeURIComponent(graph.name)}`);
  const answer = await ask('openapi.json').catch(() => null);
  if (answer?.ok) {
    const description = await answer.json();
    say(byId('title'), description.info.title);
    document.title = `${description.info.title} live`;
    byId('docs').hidden = false;
    keyed = Boolean(description.components?.securitySchemes);
    routes.push(...describedRoutes(description));
  } else say(byId('title'), graphs.find((graph) => graph.name)?.name || 'Service');
  if (!routes.length) routes.push(...plain.map((path) => ({ path, body: {} })));
  byId('routes').replaceChildren(...routes.map((each) => make('option', { value: each.path })));
  const chosen = routes.find((each) => plain.includes(each.path)) || routes[0];
  if (chosen) byId('route').value = chosen.path;
  chooseRoute();
}

function describedRoutes(description) {
  const found = [];
  for (const [path, item] of Object.entries(description.paths)) {
    const content = item.post?.requestBody?.content?.['application/json'];
    if (!content) continue;
    const [example] = Object.values(content.examples || {});
    const body = example ? example.value : sample(description, content.schema);
    found.push({ path: path.replace('{name}', 'any').replace('{method}', 'prediction'), body });
  }
  return found;
}

function chooseRoute() {
  const route = routes.find((each) => each.path === byId('route').value);
  if (route) byId('body').value = JSON.stringify(route.body, null, 2);
}

function hex(length) {
  return [...crypto.getRandomValues(new Uint8Array(length))].map((each) => each.toString(16).padStart(2, '0')).join('');
}

async function showAnswer(answer, begun, trace) {
  let text = await answer.text();
  const took = performance.now() - begun;
  const size = new TextEncoder().encode(text).length;
  if ((answer.headers.get('content-type') || '').includes('json')) {
    try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { text = `${text}\n(this is no JSON)`; }
  }
  const status = `${answer.ok ? '✓' : '✕'} ${answer.status} ${answer.statusText}`.trim();
  const fields = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join('\n');
  byId('answer').replaceChildren(
    make('p', {}, make('strong', { class: `status ${answer.ok ? 'good' : 'bad'}` }, status),
      make('span', { class: 'soft' }, ` in ${time(took)}, ${size} bytes. `),
      link('Show its timeline', () => openRequest(trace), { id: 'its-timeline' })),
    make('pre', { class: 'result', tabindex: '0', 'aria-label': 'Answer' },
      text.length > SHOWN ? `${text.slice(0, SHOWN)} …` : text),
    make('details', {}, make('summary', {}, 'Header fields'),
      make('pre', { tabindex: '0', 'aria-label': 'Header fields' }, fields)));
}

byId('route').addEventListener('change', chooseRoute);
byId('send').addEventListener('submit', async (event) => {
  event.preventDefault();
  const path = byId('route').value.trim().replace(/^\/*/, '');
  const button = byId('send').querySelector('button');
  const trace = hex(16);  // by which the request is found again
  button.disabled = true;
  byId('answer').replaceChildren(make('p', { class: 'soft' }, 'Sent …'));
  try {
    const begun = performance.now();
    const answer = await fetch(BASE + path, {
      method: 'POST', body: byId('body').value, cache: 'no-store',
      headers: {
        'Content-Type': 'application/json', traceparent: `00-${trace}-${hex(8)}-01`,
        ...(keyed && token !== null ? { Authorization: `Bearer ${token}` } : {}),
      },
    });
    await showAnswer(answer, begun, trace);
    refreshLists();
  } catch (error) {
    byId('answer').replaceChildren(make('p', { class: 'bad' }, `✕ Not sent: ${error.message}`));
  } finally {
    button.disabled = false;
  }
});
