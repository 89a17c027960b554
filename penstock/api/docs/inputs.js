'use strict';
// The inputs of a body, by its media type.

/** The inputs of a JSON body; like the others its elements, and what reads its body and header fields. */
function jsonInput(kind, { schema, examples }, id) {
  const given = Object.values(examples || {}).map((each) => resolved(each).value);
  const text = make('textarea', { id: id('body'), spellcheck: 'false', '.value': pretty(given.length ? given[0] : sample(schema)) });
  const elements = [make('label', { for: id('body') }, 'Body'), text];
  if (given.length > 1) {
    const choice = make('select', { id: id('example'), onchange: () => { text.value = pretty(given[Number(choice.value)]); } },
      ...given.map((_, i) => make('option', { value: i }, `Example ${i + 1}`)));
    elements.unshift(make('label', { for: id('example') }, 'Example'), choice);
  }
  return [elements, async () => [text.value, { 'Content-Type': kind }]];
}

/** The inputs of a form's fields. */
function formInput(kind, { schema }, id) {
  const at = resolved(schema);
  const fields = Object.entries(at.properties || {}).map(([name, each]) => {
    const isFile = each.format === 'binary';
    const input = make('input', { type: isFile ? 'file' : 'text', id: id(`field-${name}`) });
    if (!isFile && (at.required || []).includes(name)) {
      const value = sample(each);
      input.value = typeof value === 'string' ? value : JSON.stringify(value);
    }
    return { name, input, isFile, schema: resolved(each) };
  });
  const read = async () => {
    const form = new FormData();
    for (const each of fields) {
      if (each.isFile) {
        if (each.input.files.length) form.append(each.name, each.input.files[0]);
      } else if (each.input.value !== '') {
        const isText = each.schema.type === 'string';
        form.append(each.name, isText ? each.input.value : new Blob([each.input.value], { type: 'application/json' }));
      }
    }
    return [form, {}];
  };
  return [fields.flatMap(({ name, input }) => [make('label', { for: input.id }, name), input]), read];
}

/** The input of a body that is a file. */
function fileInput(kind, _, id) {
  const file = make('input', { type: 'file', id: id('file'), accept: kind.startsWith('image/') ? kind : '*/*' });
  const read = async () => {
    const chosen = file.files[0];
    if (!chosen) throw new Error('choose a file first');
    const type = kind.includes('*') ? chosen.type || 'application/octet-stream' : kind;
    return [await chosen.arrayBuffer(), { 'Content-Type': type }];
  };
  return [[make('label', { for: id('file') }, 'File'), file], read];
}

const INPUTS = { 'application/json': jsonInput, 'multipart/form-data': formInput };
