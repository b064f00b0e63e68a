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
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401) { location.assign("login?next=" + location.pathname.split("/").pop()); }
    if (!response.ok) { throw new Error(await messageOf(response)); }
    return response;
  }

  async function messageOf(response) {
    try { return (await response.json()).error.message; } catch { return `The server answered ${response.status}.`; }
  }

  /** Tell the person something, aloud too; what is plain to see anyway, aloud alone. */
  function notify(text, isQuiet = false) {
    const place = document.getElementById("notice");
    place.classList.toggle("quiet", isQuiet);
    place.textContent = text;
    clearTimeout(notify.timer);
    notify.timer = setTimeout(() => { place.textContent = ""; }, 8000);
  }

  window.zse = { ask, notify };

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
  document.addEventListener("zse:made", () => document.querySelector("main form").reset());
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
    Alpine.data("secret", () => ({
      label: "Copy",
      async copy() {
        await navigator.clipboard.writeText(this.$refs.text.textContent);
        this.label = "Copied";
      },
    }));
  });
})();
