// Before anything is painted: the theme that was chosen here, else the dark one.
try {
  if (localStorage.getItem("zse-theme") === "light") document.documentElement.dataset.theme = "light";
} catch { /* a browser that keeps nothing gets the dark one */ }
