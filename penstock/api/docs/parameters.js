'use strict';
// Parameters of the path, the query, header fields and cookies.

function isList(schema) {
  const at = resolved(schema);
  return at.type === 'array' || (at.anyOf || at.oneOf || []).some(isList);
}

/** The text for a parameter's input: its example, or a guess if it is required. */
function given(parameter) {
  if (parameter.example === undefined && !parameter.required) return '';
  const value = parameter.example === undefined ? sample(parameter.schema) : parameter.example;
  return [value].flat().map((each) => (typeof each === 'string' ? each : JSON.stringify(each))).join(',');
}

/** The path and query with values of parameters. */
function target(path, parts) {
  const at = (place) => parts.filter((each) => each.place === place);
  const filled = at('path').reduce((text, each) => text.replace(`{${each.name}}`, encodeURIComponent(each.value)), path);
  const pairs = at('query').filter((each) => each.value).flatMap((each) => (
    isList(each.schema) ? each.value.split(',').map((text) => [each.name, text.trim()]) : [[each.name, each.value]]));
  return pairs.length ? `${filled}?${new URLSearchParams(pairs)}` : filled;
}

/** A parameter with its input, and a text about it. */
function parameterInput(parameter, id) {
  const { name, schema } = parameter;
  return {
    name,
    place: parameter.in,
    schema,
    about: [typeOf(schema), limitsOf(schema), isList(schema) ? 'separated by commas' : '', parameter.description,
      parameter.in === 'cookie' ? 'a cookie, which the browser sends' : `in the ${parameter.in}`].filter(Boolean).join('; '),
    input: make('input', {
      type: 'text', id: id(name), autocomplete: 'off', '.value': given(parameter),
      ...(parameter.required ? { required: '' } : {}), ...(parameter.in === 'cookie' ? { disabled: '' } : {}),
    }),
  };
}
