'use strict';
// Bodies to try a route with, made of its JSON schema.

/** A value that fits a schema of the document, as far as that can be guessed. */
function sample(document, schema, level = 0) {
  const at = resolved(document, schema || {});
  if (at.examples?.length) return at.examples[0];
  for (const key of ['example', 'default', 'const']) if (at[key] !== undefined) return at[key];
  if (at.enum) return at.enum[0];
  const choice = at.anyOf || at.oneOf;
  if (choice) return sample(document, choice[0], level + 1);
  const type = Array.isArray(at.type) ? at.type[0] : at.type;
  if (type === 'object' || at.properties) {
    return Object.fromEntries(Object.entries(level > 6 ? {} : at.properties || {})
      .filter(([name]) => (at.required || []).includes(name) || level < 2)
      .map(([name, each]) => [name, sample(document, each, level + 1)]));
  }
  if (type === 'array') {
    const length = at.items && level < 8 ? Math.min(at.minItems || 1, 64) : 0;
    return Array.from({ length }, () => sample(document, at.items, level + 1));
  }
  if (type === 'integer' || type === 'number') return at.minimum ?? 0;
  return { boolean: false, null: null, string: '' }[type] ?? {};
}

/** Follow references; at most 20, for they may go in a circle. */
function resolved(document, schema) {
  let at = schema;
  for (let i = 0; at.$ref && i < 20; i++) {
    const keys = at.$ref.slice(2).split('/').map((key) => key.replace(/~1/g, '/').replace(/~0/g, '~'));
    at = keys.reduce((found, key) => found[key], document);
  }
  return at;
}
