'use strict';
// Makes elements of the page, and texts.

/** An element with attributes, properties that start with a dot, listeners, and children. */
function make(tag, given, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (name.startsWith('on')) found.addEventListener(name.slice(2), value);
    else if (name.startsWith('.')) found[name.slice(1)] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children.filter((each) => each !== null && each !== undefined));
  return found;
}

/** Text with code between backquotes, as a paragraph or another element. */
function prose(text, attributes, tag) {
  const parts = String(text).split('`');
  return make(tag || 'p', attributes, ...parts.map((each, i) => (i % 2 ? make('code', {}, each) : each)));
}

function pretty(value) { return JSON.stringify(value, null, 2); }
