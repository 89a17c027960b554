'use strict';
// Makes and changes elements of the page.

const SVG = 'http://www.w3.org/2000/svg';
const byId = (id) => document.getElementById(id);

/** An element with attributes, listeners (`onclick`), and children. */
function make(tag, given, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same for an element of a picture. */
function draw(tag, given, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(found, given, children) {
  for (const [name, value] of Object.entries(given || {})) {
    if (name.startsWith('on')) found.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) found.setAttribute(name, value);
  }
  found.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return found;
}

/** Change a text only if it differs, to avoid layout and repeated announcements. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Show which of these buttons is pressed. */
function press(buttons, chosen) {
  for (const each of buttons) each.setAttribute('aria-pressed', String(each === chosen));
}

/** A button that looks like a link. */
function link(text, onclick, given) {
  return make('button', { class: 'plain', ...given, onclick }, text);
}

/** One of the facts in a list of them. */
function fact(title, ...value) {
  return make('div', {}, make('dt', {}, title), make('dd', {}, ...value));
}

function numberCell(text, given) {
  return make('td', { class: 'num', ...given }, text);
}

/** A row of a table: its head, and further cells. */
function tableRow(head, ...cells) {
  return make('tr', {}, make('th', { scope: 'row' }, head), ...cells);
}

/** A table of such rows with a caption and heads: a title each, and whether its column has numbers. */
function headedTable(caption, heads, rows) {
  const made = heads.map(([title, isNumber]) => make('th', { scope: 'col', class: isNumber ? 'num' : '' }, title));
  return make('table', {}, make('caption', {}, caption), make('thead', {}, make('tr', {}, ...made)), make('tbody', {}, ...rows));
}

/** A table of such rows under a heading; the caption is for screen readers only. */
function tableSection(title, caption, rows, given) {
  return make('section', {}, make('h3', {}, title),
    make('table', given, make('caption', { class: 'quiet' }, caption), make('tbody', {}, ...rows)));
}
