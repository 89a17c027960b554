'use strict';
// The panel at the side, which shows an op or a request.

let opened = null;            // the key of the op in the panel, or null

function openPanel() {
  const panel = byId('panel');
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
  byId('panel-title').focus();
}

byId('close').addEventListener('click', () => byId('panel').close());
byId('panel').addEventListener('close', () => {
  opened = null;
  nameInAddress('');
});
byId('panel').addEventListener('click', (event) => { if (event.target === byId('panel')) byId('panel').close(); });
