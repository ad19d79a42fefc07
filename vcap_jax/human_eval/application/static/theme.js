// Light or dark: the system's choice, until somebody makes another with the button.
const KEY = "vcap-theme";
const kept = localStorage.getItem(KEY);
if (kept) document.documentElement.dataset.theme = kept;

document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-theme-switch]")) return;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const other = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  localStorage.setItem(KEY, other);
});
