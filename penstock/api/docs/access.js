'use strict';
// The key or token that this page sends; it stays in the memory of the page.

let key = '';

/** Header fields that say who calls. */
function who() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

document.getElementById('access').addEventListener('submit', (event) => {
  event.preventDefault();
  key = document.getElementById('access-key').value.trim();
  document.getElementById('access-said').textContent = key ? 'Requests of this page have it.' : '';
  if (!described.paths) begin();
});
