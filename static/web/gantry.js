// What pages gain from JavaScript beyond htmx. Everything works without.
'use strict';
// A menu closes when its work is done elsewhere.
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
// One press is one form.
addEventListener('submit', (event) => {
  const form = event.target;
  if (form.dataset.sent && !form.hasAttribute('hx-post')) event.preventDefault();
  form.dataset.sent = 'yes';
});
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload();
});
// What htmx cannot show in place is shown as the page it is.
for (const trouble of ['htmx:responseError', 'htmx:sendError']) {
  addEventListener(trouble, (event) => {
    const form = event.detail.elt.closest('form');
    if (form) form.submit();
    // A state that was asked for again and again.
    else if (trouble === 'htmx:responseError') location.reload();
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
  // What comes by itself does not take the focus away.
  if (event.detail.requestConfig.verb === 'get') return;
  const status = document.querySelector('[role=status]');
  if (status) {
    status.tabIndex = -1;
    status.focus();
  }
});
// The picker answers at once; without this its buttons ask the server.
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
        const may = [...row.querySelectorAll('input:enabled')].filter((it) => shown || it.value === 'none');
        const upTo = { none: ['none'], read: ['none', 'read'], write: ['none', 'read', 'write'] }[preset.value];
        may.filter((it) => upTo.includes(it.value)).at(-1).checked = true;
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
// A passkey: the server asks, the browser signs, and the form carries the answer.
if (globalThis.PublicKeyCredential?.parseCreationOptionsFromJSON && isSecureContext) {
  for (const form of document.querySelectorAll('[data-passkey]')) {
    form.hidden = false;
    document.querySelector('[data-without-passkeys]')?.remove();
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const wrong = form.querySelector('[role=alert]');
      wrong.hidden = true;
      try {
        const token = form.elements.form_token?.value ?? '';
        const asked = await fetch(form.dataset.ask, { method: 'POST', body: new URLSearchParams({ form_token: token }) });
        if (!asked.ok) throw new Error(`the server answered ${asked.status}`);
        const { id, options } = await asked.json();
        const create = form.dataset.passkey === 'create';
        const publicKey = create ? PublicKeyCredential.parseCreationOptionsFromJSON(options) : PublicKeyCredential.parseRequestOptionsFromJSON(options);
        const credential = await (create ? navigator.credentials.create({ publicKey }) : navigator.credentials.get({ publicKey }));
        form.elements.challenge.value = id;
        form.elements.answer.value = JSON.stringify(credential.toJSON());
        form.submit();
      } catch (error) {
        const words = { NotAllowedError: 'It was not finished. Try again.', InvalidStateError: 'There is a passkey on this device already.' };
        wrong.textContent = words[error.name] ?? 'That did not work. Load the page again, and try once more.';
        wrong.hidden = false;
        delete form.dataset.sent;
      }
    });
  }
}
