'use strict';
// Queries of the page, and what it shows without access.

const BASE = location.pathname.replace(/ui$/, '');

let token = null;             // in memory only; a reload has the cookie of an answer, if there was one

function ask(path) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  return fetch(BASE + path, { cache: 'no-store', headers, credentials: 'same-origin' });
}

/** The text of an answer that is an error. */
async function messageOf(answer) {
  const { message } = await answer.json().catch(() => ({ message: `status ${answer.status}` }));
  return message;
}

/** Show why access is denied, or the form for the token. */
async function refuse(answer) {
  const message = await messageOf(answer);
  const login = answer.status === 401;
  byId('main').hidden = true;
  byId('refused').hidden = false;
  byId('login').hidden = !login;
  say(byId('refused-title'), login ? 'This page needs a token' : 'Access denied');
  say(byId('refused-text'), login && token !== null ? 'The token is wrong.' : `${message}.`);
  health('▲ not shown', 'warn');
  if (login) byId('token').focus();
}

/** Show the page again. */
function admit() {
  byId('main').hidden = false;
  byId('refused').hidden = true;
}

if (location.hash.startsWith('#token=')) {  // a part of the address that is never sent
  token = decodeURIComponent(location.hash.slice(7));
  history.replaceState(null, '', location.pathname);
}
