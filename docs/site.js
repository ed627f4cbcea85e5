// A table that is wider than the page can be scrolled with the keyboard.
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
});
// The button of a block with prompts copies its commands, without the prompts and what they print.
addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-clipboard-target]");
  const code = button && document.querySelector(button.dataset.clipboardTarget);
  if (!code?.querySelector(".gp")) return;
  const lines = code.innerText.split("\n").filter((line) => line.startsWith("$ "));
  button.dataset.clipboardText = lines.map((line) => line.slice(2)).join("\n");
}, true);
