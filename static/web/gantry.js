// Enhancements of the pages beyond htmx. All pages except passkeys work without JavaScript.
'use strict';
// Close an open menu on a click outside of it or on Escape.
const menus = () => document.querySelectorAll('details.menu[open]');
addEventListener('click', (event) => {
  for (const menu of menus()) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  for (const menu of menus()) {
    menu.open = false;
    menu.querySelector('summary').focus();
  }
});
// Submit a form once, even if its button is pressed twice.
addEventListener('submit', (event) => {
  const form = event.target;
  if (form.dataset.sent && !form.hasAttribute('hx-post')) event.preventDefault();
  form.dataset.sent = 'yes';
});
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload();
});
// If an htmx request fails, submit the form natively to show the error page.
for (const failure of ['htmx:responseError', 'htmx:sendError']) {
  addEventListener(failure, (event) => {
    const form = event.detail.elt.closest('form');
    if (form) form.submit();
    // The element that polls the status of a project.
    else if (failure === 'htmx:responseError') location.reload();
  });
}
addEventListener('htmx:beforeSwap', (event) => {
  const { pathname } = new URL(event.detail.xhr.responseURL || location.href);
  if (pathname === '/sign-in') {
    event.detail.shouldSwap = false;
    location.assign(`/sign-in?next=${encodeURIComponent(location.pathname)}`);
  }
});
addEventListener('htmx:afterSwap', (event) => {
  offerCopies();
  // Polling does not move the focus.
  if (event.detail.requestConfig.verb === 'get') return;
  const status = document.querySelector('[role=status]');
  if (status) {
    status.tabIndex = -1;
    status.focus();
  }
});
// Refresh a page when its project changes. Hidden pages hold no connection.
const FALLBACK_MS = 10_000;
const followed = () => document.querySelector('[data-changes]');
let changes;
let retry;
const refresh = () => {
  const element = followed();
  const isTyping = document.activeElement?.matches('input, select, textarea') && element?.contains(document.activeElement);
  if (element && !isTyping && !element.querySelector('details.menu[open]')) htmx.trigger(element, 'changed');
};
function follow() {
  changes?.close();
  clearTimeout(retry);
  if (document.hidden || !followed()) return;
  changes = new EventSource(followed().dataset.changes);
  changes.addEventListener('changed', refresh);
  changes.addEventListener('error', () => {
    // The browser connects again by itself unless the server refused.
    if (changes.readyState === EventSource.CLOSED) retry = setTimeout(() => (refresh(), follow()), FALLBACK_MS);
  });
}
addEventListener('visibilitychange', () => (document.hidden || refresh(), follow()));
addEventListener('pagehide', () => changes?.close());
follow();
// Filter and preset the permissions on the client. Without JavaScript the buttons submit the form.
const search = document.querySelector('#search');
if (search) {
  const rows = [...document.querySelectorAll('.grant')];
  const find = () => {
    const text = search.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.dataset.words.toLowerCase().includes(text);
    document.querySelector('#nothing-found').hidden = rows.some((row) => !row.hidden);
  };
  search.addEventListener('input', find);
  document.querySelector('[name=find]').hidden = true;
  for (const preset of document.querySelectorAll('[name=preset]')) {
    preset.addEventListener('click', (event) => {
      event.preventDefault();
      for (const row of rows) {
        const shown = getComputedStyle(row).display !== 'none' || row.hidden;
        const enabled = [...row.querySelectorAll('input:enabled')].filter((it) => shown || it.value === 'none');
        const upTo = { none: ['none'], read: ['none', 'read'], write: ['none', 'read', 'write'] }[preset.value];
        enabled.filter((it) => upTo.includes(it.value)).at(-1).checked = true;
      }
    });
  }
}
function offerCopies() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll('[data-copy][hidden]')) button.hidden = false;
}
offerCopies();
addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = 'Copied';
});
// Passkeys: fetch a challenge, let the authenticator sign it, submit the credential with the form.
if (globalThis.PublicKeyCredential?.parseCreationOptionsFromJSON && isSecureContext) {
  for (const form of document.querySelectorAll('[data-passkey]')) {
    form.hidden = false;
    document.querySelector('[data-without-passkeys]')?.remove();
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const message = form.querySelector('[role=alert]');
      message.hidden = true;
      try {
        const token = form.elements.form_token?.value ?? '';
        const response = await fetch(form.dataset.ask, { method: 'POST', body: new URLSearchParams({ form_token: token }) });
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        const { id, options } = await response.json();
        const create = form.dataset.passkey === 'create';
        const publicKey = create ? PublicKeyCredential.parseCreationOptionsFromJSON(options) : PublicKeyCredential.parseRequestOptionsFromJSON(options);
        const credential = await (create ? navigator.credentials.create({ publicKey }) : navigator.credentials.get({ publicKey }));
        form.elements.challenge.value = id;
        form.elements.answer.value = JSON.stringify(credential.toJSON());
        form.submit();
      } catch (error) {
        const messages = { NotAllowedError: 'The request was cancelled. Try again.', InvalidStateError: 'This device already has a passkey for this account.' };
        message.textContent = messages[error.name] ?? 'Something went wrong. Reload the page and try again.';
        message.hidden = false;
        delete form.dataset.sent;
      }
    });
  }
}
