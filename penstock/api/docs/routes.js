'use strict';
// Shows the routes.

/** A word of a shell's command. */
function quoted(text) { return /^[\w\-./:=,%+~]*$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`; }

/** A command for the shell that sends a request; null if its body is too long for one. */
function command(path, verb, operation) {
  const parts = (operation.parameters || []).map((each) => ({ ...each, place: each.in, value: given(each) }));
  const url = quoted(location.origin + BASE + target(path, parts).slice(1));
  const fields = parts.filter((each) => each.place === 'header' && each.value).map((each) => ` -H ${quoted(`${each.name}: ${each.value}`)}`);
  const method = { get: '', post: '' }[verb] ?? ` -X ${verb.toUpperCase()}`;
  const begin = `curl${method} ${url}${fields.join('')}`;
  if (verb === 'get') return begin;
  const content = operation.requestBody ? resolved(operation.requestBody).content['application/json'] : null;
  if (!content) return `${begin}${verb === 'post' ? ' -X POST' : ''}`;
  const shown = Object.values(content.examples || {})[0];
  const value = JSON.stringify(shown ? resolved(shown).value : sample(content.schema));
  if (value.length > 2000) return null;
  return `${begin} -d '${value.replace(/'/g, "'\\''")}'`;
}

/** A route, folded. */
function route(path, verb, operation, number) {
  const good = Object.entries(operation.responses || {}).filter(([status]) => status.startsWith('2'));
  const inner = make('div');
  const found = make('details', { class: 'route', id: operation.operationId || `route-${number}` },
    make('summary', {}, make('span', { class: 'verb' }, verb.toUpperCase()), make('span', { class: 'path' }, path),
      prose(operation.summary || '', { class: 'soft' }, 'span')), inner);
  found.addEventListener('toggle', () => {  // created when it is opened: a service may have many routes
    if (!found.open || inner.childElementCount) return;
    const asked = operation.requestBody ? resolved(operation.requestBody).content : null;
    const curl = command(path, verb, operation);
    inner.append(...[
      operation.description ? prose(operation.description) : null,
      asked ? body('Request', asked) : null,
      ...good.map(([status, each]) => {
        const at = resolved(each);
        return at.content ? body(`Answer ${status}`, at.content) : prose(`${status}: ${at.description}`);
      }),
      trial(path, verb, operation, number),
      curl ? make('details', { class: 'inner' }, make('summary', {}, 'curl'), make('pre', { tabindex: '0' }, curl)) : null,
      failures(operation.responses || {}),
    ].filter(Boolean));
  });
  return found;
}
