// Marks the point of a drawing that is under the pointer, and says it; by keyboard the arrows go from point to point.
// Without this script the browser shows the same words where the pointer rests.

const SVG = "http://www.w3.org/2000/svg";
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

const MOMENT = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});

function inOwnZone(at, words) {
  return at ? `${MOMENT.format(new Date(at))}${words.slice(words.indexOf(": "))}` : words;
}

function prepare(plot) {
  const hits = [...plot.querySelectorAll(".hit")];
  if (!hits.length) return;
  const svg = plot.querySelector("svg");
  const [line, dot] = [document.createElementNS(SVG, "line"), document.createElementNS(SVG, "circle")];
  line.setAttribute("class", "cross");
  line.setAttribute("y1", 0);
  line.setAttribute("y2", hits[0].getAttribute("height"));
  dot.setAttribute("class", "end");
  dot.setAttribute("r", 4);
  const said = document.createElement("p");
  said.className = "said-point";
  said.setAttribute("role", "status");
  plot.append(said);
  plot.tabIndex = 0;
  plot.setAttribute("aria-description", "The left and right arrow keys read the points.");
  for (const hit of hits) {
    hit.dataset.words = inOwnZone(hit.dataset.at, hit.querySelector("title").textContent);
    hit.querySelector("title").remove();
  }
  let chosen = -1;
  const choose = (place) => {
    chosen = place;
    const { x, y, words } = hits[place].dataset;
    for (const name of ["x1", "x2"]) line.setAttribute(name, x);
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
    svg.append(line, dot);
    said.textContent = words;
  };
  const leave = () => {
    chosen = -1;
    line.remove();
    dot.remove();
    said.textContent = "";
  };
  svg.addEventListener("pointermove", ({ target }) => {
    const place = hits.indexOf(target);
    if (place >= 0 && place !== chosen) choose(place);
  });
  svg.addEventListener("pointerdown", ({ target }) => {
    if (hits.includes(target)) choose(hits.indexOf(target));
  });
  svg.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const from = chosen < 0 ? (step > 0 ? -1 : hits.length) : chosen;
    choose(Math.min(hits.length - 1, Math.max(0, from + step)));
  });
}

function every(root) {
  if (root.matches?.("[data-plot]")) prepare(root);
  root.querySelectorAll("[data-plot]").forEach(prepare);
}

every(document);
new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) every(node);
}).observe(document.body, { childList: true, subtree: true });
