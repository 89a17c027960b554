'use strict';
// The colours: those of the system, light or dark. The choice is kept in the browser.

const THEME = 'penstock-theme';

function kept(value) {  // some browsers refuse it
  try { return value === undefined ? localStorage.getItem(THEME) : localStorage.setItem(THEME, value); } catch { return null; }
}

function showTheme() {
  document.documentElement.style.colorScheme = byId('theme').value;
}

byId('theme').value = kept() || 'light dark';
showTheme();
byId('theme').addEventListener('change', () => {
  showTheme();
  kept(byId('theme').value);
});
