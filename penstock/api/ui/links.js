'use strict';
// Links: what the panel shows is named by the part of the address after `#`, which browsers do not send.
// A link to an op has its graph, version and name, one to a request its data id or trace id.

/** Name what the panel shows; nothing without a kind. */
function nameInAddress(kind, ...parts) {
  const hash = kind ? `#${kind}=${parts.map(encodeURIComponent).join('/')}` : '';
  if (hash !== location.hash) history.pushState(null, '', location.href.split('#')[0] + hash);
}

/** What the address names: `op` or `request`, and its parts; nothing if it is no link of this page. */
function namedByAddress() {
  const [, kind, text] = location.hash.match(/^#(op|request)=(.+)$/) || [];
  try { return kind ? [kind, ...text.split('/').map(decodeURIComponent)] : []; } catch { return []; }
}
