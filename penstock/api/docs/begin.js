'use strict';
// Reads openapi.json, and shows its routes.

async function begin() {
  const main = document.getElementById('routes');
  try {
    const answer = await fetch(`${BASE}openapi.json`, { headers: who() });
    if (answer.status === 401) {
      document.getElementById('access').hidden = false;
      document.getElementById('access-said').textContent = key ? 'It is not valid.' : '';
      main.replaceChildren(make('p', { class: 'soft' }, 'This service asks for a key or token.'));
      main.setAttribute('aria-busy', 'false');
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    described = await answer.json();
  } catch (error) {
    main.replaceChildren(make('p', { class: 'bad' }, `openapi.json cannot be read: ${error.message}`));
    return;
  }
  document.getElementById('access').hidden = !described.security;
  const { title, description } = described.info;
  document.title = title;
  document.getElementById('title').textContent = title;
  if (description) document.getElementById('about').replaceWith(prose(description, { class: 'soft' }));
  const groups = new Map();
  let number = 0;
  for (const [path, item] of Object.entries(described.paths)) {
    for (const [verb, operation] of Object.entries(item)) {
      const [group] = operation.tags || [''];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(route(path, verb, operation, number++));
    }
  }
  main.replaceChildren(...[...groups].map(([group, routes]) => make('section', {}, make('h2', {}, group), ...routes)));
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  const opened = wanted || main.querySelector('details.route');
  if (opened) opened.open = true;
  main.setAttribute('aria-busy', 'false');
}

begin();
