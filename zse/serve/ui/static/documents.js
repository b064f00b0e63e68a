// Sends files to the API, one after the other, and has the table shown anew.
(() => {
  const form = document.getElementById("upload");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    const failed = [];
    for (const file of form.elements.file.files) {
      const body = new FormData();
      body.append("file", file);
      window.zse.notify(`Reading ${file.name} …`, "passes");
      try {
        await window.zse.ask("api/rag/documents/upload", { method: "POST", body });
      } catch (error) { failed.push(`${file.name}: ${error.message}`); }
      document.body.dispatchEvent(new Event("zse:documents"));
    }
    button.disabled = false;
    form.reset();
    if (failed.length) window.zse.notify(failed.join(" ")); else window.zse.notify("Added.", "passes");
  });
})();
