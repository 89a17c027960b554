'use strict';
// Reads the schemas of openapi.json.

let described = {};  // openapi.json

/** The schema of a reference. */
function resolved(value) {
  let found = value || {};
  for (let i = 0; found.$ref && i < 20; i++) {
    found = found.$ref.slice(2).split('/').reduce((at, key) => at[key.replace(/~1/g, '/').replace(/~0/g, '~')], described);
  }
  return found;
}

function nameOf(value) { return value.$ref ? value.$ref.split('/').pop() : ''; }

/** A type in few words, such as "list of Flower". */
function typeOf(schema) {
  if (!schema) return 'bytes';
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(' | ');
  const several = schema.anyOf || schema.oneOf || schema.allOf;
  if (several) return several.map(typeOf).join(schema.allOf ? ' & ' : ' | ');
  if (schema.contentMediaType) return `file (${schema.contentMediaType}), Base64 in JSON`;
  if (schema.format === 'base64url' || schema.contentEncoding) return 'file, Base64 in JSON';
  if (schema.type === 'array' && schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(', ')}]`;
  if (schema.type === 'array') return `list of ${schema.items ? typeOf(schema.items) : 'anything'}`;
  if (schema.type === 'object' && schema.additionalProperties && !schema.properties) {
    return schema.additionalProperties === true ? 'object' : `object of ${typeOf(schema.additionalProperties)}`;
  }
  const type = Array.isArray(schema.type) ? schema.type.join(' | ') : schema.type;
  return (type || 'anything') + (schema.format ? ` (${schema.format})` : '');
}

/** The further constraints of a schema. */
function limitsOf(schema) {
  const names = {
    minimum: '≥', exclusiveMinimum: '>', maximum: '≤', exclusiveMaximum: '<', minLength: 'length ≥', maxLength: 'length ≤',
    minItems: 'items ≥', maxItems: 'items ≤', pattern: 'pattern', multipleOf: 'multiple of', default: 'default',
  };
  return Object.entries(names).filter(([key]) => schema[key] !== undefined)
    .map(([key, word]) => `${word} ${JSON.stringify(schema[key])}`).join(', ');
}

/** A value that fits a schema, as far as that can be guessed. */
function sample(schema, depth) {
  const at = resolved(schema);
  const level = depth || 0;
  if (at.examples && at.examples.length) return at.examples[0];
  if (at.example !== undefined) return at.example;
  if (at.default !== undefined) return at.default;
  if (at.const !== undefined) return at.const;
  if (at.enum) return at.enum[0];
  const several = at.anyOf || at.oneOf;
  if (several) return sample(several.find((each) => resolved(each).type !== 'null') || several[0], level + 1);
  const type = Array.isArray(at.type) ? at.type[0] : at.type;
  if (type === 'object' || at.properties) {
    const found = {};
    if (level > 6) return found;
    for (const [name, each] of Object.entries(at.properties || {})) {
      if ((at.required || []).includes(name) || level < 2) found[name] = sample(each, level + 1);
    }
    return found;
  }
  if (type === 'array') {
    if (level > 8 || !at.items) return [];
    return Array.from({ length: Math.min(at.minItems || 1, 64) }, () => sample(at.items, level + 1));
  }
  if (type === 'integer' || type === 'number') return at.minimum ?? (at.exclusiveMinimum === undefined ? 0 : at.exclusiveMinimum + 1);
  if (type === 'boolean') return false;
  if (type === 'null') return null;
  return type === 'string' ? 'x'.repeat(at.minLength || 0) : {};
}

/** The schemas that a value refers to. */
function namesIn(value) {
  const found = new Set();
  JSON.stringify(value, (key, each) => {
    if (key === '$ref' && typeof each === 'string') found.add(each.split('/').pop());
    return each;
  });
  return [...found];
}
