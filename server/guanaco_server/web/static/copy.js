// Puts a button beside what one copies: a command, an id. Without this script it is selected by hand.

function offer(place) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  const name = place.dataset.copy || place.textContent.trim().split("\n")[0].slice(0, 40);
  button.setAttribute("aria-label", `Copy ${name}`);
  button.addEventListener("click", () => copy(place, button));
  place.after(button);
}

async function copy(place, button) {
  const text = place.dataset.copy || place.textContent;
  const isDone = await navigator.clipboard.writeText(text).then(() => true, () => byHand(text));
  button.textContent = isDone ? "Copied" : "Select it by hand";
  setTimeout(() => { button.textContent = "Copy"; }, 2_000);
}

// navigator.clipboard is there on https and localhost only.
function byHand(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden";
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}

function every(root) {
  if (root.matches?.("[data-copy]")) offer(root);
  root.querySelectorAll("[data-copy]").forEach(offer);
}

every(document);
new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) every(node);
}).observe(document.body, { childList: true, subtree: true });
