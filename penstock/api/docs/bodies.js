'use strict';
// Describes bodies: their media types, members and schemas.

/** The members of an object in a table, those inside it folded. */
function members(schema, seen) {
  const at = resolved(schema);
  if (!at.properties) return null;
  const rows = Object.entries(at.properties).map(([name, each]) => make('tr', {},
    make('td', {}, make('code', {}, name), (at.required || []).includes(name) ? '' : make('span', { class: 'soft' }, ' optional')),
    make('td', {}, typeOf(each)),
    make('td', { class: 'soft' }, [each.description || resolved(each).description || '', limitsOf(each)].filter(Boolean).join('; ')),
  ));
  const head = make('tr', {}, ...['member', 'type', ''].map((each) => make('th', { scope: 'col' }, each)));
  const inside = namesIn(at.properties).filter((each) => !seen.includes(each)).map((each) => {
    const inner = members({ $ref: `#/components/schemas/${each}` }, [...seen, each]);
    return inner && make('details', { class: 'inner' }, make('summary', {}, each), inner);
  });
  return make('div', {}, make('table', {}, make('thead', {}, head), make('tbody', {}, ...rows)), ...inside);
}

/** A body: its media types, its members and its schema. */
function body(title, content) {
  const kinds = Object.keys(content);
  const [first] = kinds;
  const schema = content[first].schema;
  const at = resolved(schema);
  const listed = schema && at.type === 'array' && at.items ? at.items : schema;
  return make('section', {},
    make('h3', {}, title, ' ', make('span', { class: 'soft' }, kinds.join(', '))),
    at.description ? prose(at.description, { class: 'soft' }) : null,
    make('p', {}, make('code', {}, typeOf(schema))),
    schema ? members(listed, namesIn(listed.$ref ? { a: listed } : {})) : null,
    schema ? make('details', { class: 'inner' }, make('summary', {}, 'JSON Schema'), make('pre', { tabindex: '0' }, pretty(at))) : null,
  );
}

/** A table of the error statuses. */
function failures(responses) {
  const rows = Object.entries(responses).filter(([status]) => !status.startsWith('2')).map(([status, response]) => {
    const at = resolved(response);
    const schema = Object.values(at.content || {})[0]?.schema;
    return make('tr', {}, make('td', {}, make('code', {}, status)), make('td', {}, prose(at.description)), make('td', {}, schema ? make('code', {}, typeOf(schema)) : ''));
  });
  if (!rows.length) return null;
  const names = namesIn(Object.values(responses).map(resolved));
  const error = names.includes('Error') ? members({ $ref: '#/components/schemas/Error' }, ['Error']) : null;
  return make('details', { class: 'inner' },
    make('summary', {}, 'Errors'), make('table', {}, make('tbody', {}, ...rows)),
    error && make('h3', {}, 'Error'), error);
}
