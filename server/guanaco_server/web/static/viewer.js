// j and k, or the arrows, read on and back; a chosen rating comes without loading the page anew.
// Without this script the same links load pages.

const KEYS = { j: "later", ArrowRight: "later", k: "earlier", ArrowLeft: "earlier" };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const link = document.getElementById(KEYS[event.key] ?? "");
  if (!link) return;
  event.preventDefault();
  open(link.href);
});

document.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  const link = event.target.closest("#ratings a, #earlier, #later, .steps .back");
  if (!link) return;
  event.preventDefault();
  open(link.href);
});

addEventListener("popstate", () => open(location.href, false));

let latest = 0;

async function open(href, isNew = true) {
  const turn = ++latest;
  const answer = await fetch(href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected) {
    location.assign(href);
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (turn !== latest) return;
  const [viewer, list] = [fresh.getElementById("viewer"), fresh.getElementById("ratings")];
  if (!viewer || !list) {
    location.assign(href);
    return;
  }
  const scrolled = document.getElementById("ratings")?.scrollTop ?? 0;
  document.getElementById("viewer").replaceWith(viewer);
  document.getElementById("ratings").scrollTop = scrolled;
  document.querySelector("#ratings [aria-current]")?.scrollIntoView({ block: "nearest" });
  if (isNew) history.pushState(null, "", href);
  document.getElementById("reading").focus({ preventScroll: true });
}
