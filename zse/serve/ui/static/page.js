// What every page has: the token that goes with each change, the theme, and notices of what failed.
(() => {
  let csrf = document.querySelector('meta[name="csrf"]').content;

  /** Ask this server for something; a change carries the page's token. Returns the response, or throws with its message. */
  async function ask(path, options = {}) {
    const headers = { "x-csrf-token": csrf, ...options.headers };
    if (options.json !== undefined) {
      headers["content-type"] = "application/json";
      options = { ...options, body: JSON.stringify(options.json) };
    }
    const response = await fetch(path, { ...options, headers }).catch(() => { throw new Error("The server does not answer."); });
    if (response.status === 401) { location.assign("login?next=" + location.pathname.split("/").pop()); }
    if (!response.ok) { throw new Error(await messageOf(response)); }
    return response;
  }

  async function messageOf(response) {
    try { return (await response.json()).error.message; } catch { return `The server answered ${response.status}.`; }
  }

  /** Say aloud what is plain to see anyway. */
  function announce(text) { document.getElementById("aloud").textContent = text; }

  /** Tell the person something, aloud too. It `stays` until it is closed, or `passes`. */
  function notify(text, how = "stays") {
    const place = document.getElementById("notice"), close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => place.replaceChildren());
    place.className = how;
    place.replaceChildren(...(how === "stays" ? [close, text] : [text]));
    clearTimeout(notify.timer);
    if (how !== "stays") notify.timer = setTimeout(() => place.replaceChildren(), 8000);
  }

  /** Copy a text; also where the page came over plain HTTP, to which browsers give no clipboard of its own. */
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea"), before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    before?.focus();
    if (!isCopied) throw new Error("The browser does not let this page copy: select the text instead.");
  }

  /** A button that copies what `read` returns, and says so on itself. */
  function copying(button, read) {
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await copy(read());
        button.textContent = "Copied";
        announce("Copied.");
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      } catch (error) { notify(error.message); }
    });
    return button;
  }

  window.zse = { ask, notify, announce, copying };

  document.addEventListener("htmx:config:request", (event) => {
    event.detail.ctx.request.headers["x-csrf-token"] = csrf;
  });
  // Parts of pages are HTML; a refusal is the API's JSON, which is told and not shown in their place.
  document.addEventListener("htmx:before:response", (event) => {
    const { response } = event.detail.ctx;
    if (response.status === 401) location.assign("login?next=" + location.pathname.split("/").pop());
    else if (response.headers.get("content-type")?.startsWith("application/json")) messageOf(response.raw ?? response).then(notify);
    else return;
    event.preventDefault();
  });
  document.addEventListener("zse:session", (event) => { // who made the first key is logged in with it
    csrf = event.detail.csrf;
    notify("You are logged in with this key. Keep it before you leave this page.");
  });
  document.addEventListener("zse:made", () => { // the first key administers, those after it need not
    const form = document.querySelector("main form");
    for (const option of form.elements.scope.options) option.defaultSelected = option.value === "inference";
    form.reset();
  });
  document.addEventListener("htmx:error", () => notify("The server does not answer."));
  document.addEventListener("alpine:init", () => {
    Alpine.data("theme", () => ({
      swap() {
        const theme = document.documentElement.dataset.theme === "light" ? "dark" : "light";
        document.documentElement.dataset.theme = theme;
        try { localStorage.setItem("zse-theme", theme); } catch { /* it holds for this page */ }
        document.dispatchEvent(new Event("zse:theme"));
      },
    }));
    Alpine.data("copies", () => ({ // what stands in the element before the button
      init() { copying(this.$el, () => this.$el.previousElementSibling.textContent); },
    }));
  });
})();
