// Says times in the reader's own zone, and how long ago they were; a running clock runs.
// Without this script they are said in UTC, as of when the page was made.

const day = { day: "numeric", month: "short", year: "numeric" };
const FORMS = {
  moment: new Intl.DateTimeFormat("en-GB", { ...day, hour: "2-digit", minute: "2-digit", timeZoneName: "short" }),
  day: new Intl.DateTimeFormat("en-GB", day),
  clock: new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
};

function say(time) {
  const at = new Date(time.dateTime);
  if (Number.isNaN(at.getTime())) return;
  const kind = time.dataset.as;
  time.title = FORMS.moment.format(at);
  time.textContent = kind === "ago" ? ago(at) : (FORMS[kind] ?? FORMS.moment).format(at);
}

function ago(at) {
  const minutes = Math.floor((Date.now() - at) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes}\u202fmin ago`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)}\u202fh ago`;
  if (minutes < 31 * 1440) return `${Math.floor(minutes / 1440)}\u202fd ago`;
  return FORMS.day.format(at);
}

function lasting(since) {
  const seconds = Math.max(0, Math.floor((Date.now() - new Date(since)) / 1000));
  const two = (value) => String(value).padStart(2, "0");
  if (seconds < 60) return `${seconds}\u202fs`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}\u202fmin ${two(seconds % 60)}\u202fs`;
  return `${Math.floor(seconds / 3600)}\u202fh ${two(Math.floor(seconds / 60) % 60)}\u202fmin`;
}

function every(root, selector, work) {
  if (root.matches?.(selector)) work(root);
  root.querySelectorAll(selector).forEach(work);
}

every(document, "time[data-as]", say);
new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) every(node, "time[data-as]", say);
}).observe(document.body, { childList: true, subtree: true });
setInterval(() => every(document, 'time[data-as="ago"]', say), 30_000);
setInterval(() => every(document, "[data-since]", (clock) => { clock.textContent = lasting(clock.dataset.since); }), 1_000);

const zone = document.getElementById("zone");
if (zone) zone.textContent = `Times are those of ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
