// Shows the little Markdown that chat models write: emphasis, code, links as text. Every node is made by hand, and text
// goes in as text: no reply can bring in an element, an attribute or an address.

"use strict";

const INLINE = /(`+)([\s\S]+?)\1|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*\n]*[^\s*])\*|(?<![\w_])_(?=\S)([^_\n]*[^\s_])_(?![\w_])/g;
const FENCE = /^ {0,3}```[^\n`]*\n([\s\S]*?)(?:^ {0,3}```[ \t]*$|(?![\s\S]))/gm;

function showMarkdown(place, text) {
  const made = document.createDocumentFragment();
  let at = 0;
  for (const found of text.matchAll(FENCE)) {
    appendInline(made, text.slice(at, found.index));
    made.append(codeBlock(found[1].replace(/\n$/, "")));
    at = found.index + found[0].length;
  }
  appendInline(made, text.slice(at));
  place.replaceChildren(made);
}

function appendInline(parent, text) {
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    parent.append(text.slice(at, found.index));
    const [, ticks, code, strong, starred, underlined] = found;
    const element = document.createElement(ticks ? "code" : strong ? "strong" : "em");
    if (ticks) element.textContent = code;
    else appendInline(element, strong ?? starred ?? underlined);
    parent.append(element);
    at = found.index + found[0].length;
  }
  parent.append(text.slice(at));
}

function codeBlock(code) {
  const [figure, pre, copy] = ["div", "pre", "button"].map((name) => document.createElement(name));
  figure.className = "code";
  pre.append(Object.assign(document.createElement("code"), { textContent: code }));
  pre.tabIndex = 0;
  copy.type = "button";
  copy.className = "plain copy";
  copy.textContent = "Copy";
  figure.append(pre, copy);
  return figure;
}

document.addEventListener("click", async (event) => {
  if (!event.target.matches?.(".copy")) return;
  try {
    await navigator.clipboard.writeText(event.target.previousElementSibling.textContent);
    event.target.textContent = "Copied";
  } catch {
    event.target.textContent = "Select the text to copy it";
  }
});
