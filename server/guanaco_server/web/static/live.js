// Follows a submission's log, searches it in place, reads earlier lines, and fetches the page's own parts
// (``data-part``) anew when its stage changes. Without this script links and a form do it.

const RANKS = ["debug", "info", "warning", "error"];
const log = document.getElementById("log");
const filter = document.getElementById("log-filter");
const MOST_ARRIVED = 5000; // a log that is followed has hundreds of lines
const arrived = []; // since the page was served: a search that was answered before them lacks them
const served = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.id, part.outerHTML]));

if (log) log.scrollTop = log.scrollHeight;
if (log && "live" in log.dataset) follow(log);

filter?.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
  replaceLines(`${filter.getAttribute("action")}?${query}`);
});
document.getElementById("log-level")?.addEventListener("change", () => filter.requestSubmit());
log?.addEventListener("click", (event) => {
  const link = event.target.closest(".earlier a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  prependLines(link);
});

async function fetched(href) {
  const answer = await fetch(href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function replaceLines(href) {
  const page = await fetched(href);
  if (!page) return location.assign(href);
  const found = page.getElementById("log");
  log.replaceChildren(...found.childNodes);
  for (const event of arrived) if (event.seq > Number(found.dataset.after) && isWanted(event)) append(log, event);
  log.scrollTop = log.scrollHeight;
  document.getElementById("log-file").href = page.getElementById("log-file").getAttribute("href");
}

async function prependLines(link) {
  const page = await fetched(link.href);
  if (!page) return location.assign(link.href);
  const fromEnd = log.scrollHeight - log.scrollTop;
  log.setAttribute("aria-live", "off"); // one has asked for them, and reads them oneself
  link.closest("p").replaceWith(...page.getElementById("log").childNodes);
  log.scrollTop = log.scrollHeight - fromEnd;
  log.focus({ preventScroll: true });
  setTimeout(() => log.removeAttribute("aria-live"), 500);
}

function isWanted(event) {
  const [words, level] = [filter?.elements.q.value.trim().toLowerCase(), filter?.elements.level.value];
  const rank = RANKS.indexOf(event.level);
  return (rank < 0 || rank >= RANKS.indexOf(level)) && `${event.stage ?? ""}\n${event.message}`.toLowerCase().includes(words ?? "");
}

function follow(log) {
  const source = new EventSource(`${log.dataset.events}?after=${log.dataset.after}`);
  for (const kind of ["status", "stage", "log"]) {
    source.addEventListener(kind, (message) => {
      const said = JSON.parse(message.data);
      if (said.seq <= (arrived.at(-1)?.seq ?? Number(log.dataset.after))) return; // told again after a reconnect
      arrived.push(said);
      if (arrived.length > MOST_ARRIVED) arrived.shift();
      if (isWanted(said)) append(log, said);
      if (kind !== "log") refreshSoon();
    });
  }
  source.addEventListener("open", () => say("live"));
  source.addEventListener("error", () => say("connecting again"));
  source.addEventListener("end", () => {
    source.close();
    say("ended");
    refreshSoon();
  });
}

function append(log, event) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const line = document.createElement("p");
  line.className = `${event.level} ${event.kind}`;
  const time = element("time", event.at.slice(11, 19));
  time.dateTime = event.at;
  time.dataset.as = "clock";
  log.querySelector(".nothing")?.remove();
  line.append(time, " ");
  if (event.stage) {
    const stage = element("span", event.stage);
    stage.className = "stage";
    line.append(stage, " ");
  }
  line.append(element("span", event.message));
  log.append(line);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function say(state) {
  const note = document.getElementById("live");
  if (!note) return;
  note.textContent = state;
  note.classList.toggle("on", state === "live");
}

let waiting = 0;

function refreshSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(refresh, 150);
}

async function refresh() {
  const fresh = await fetched(location.href);
  if (!fresh) return;
  for (const old of document.querySelectorAll("[data-part]")) {
    const part = fresh.getElementById(old.id);
    if (!part || part.outerHTML === served.get(old.id)) continue;
    served.set(old.id, part.outerHTML);
    const folds = [...old.querySelectorAll("details")];
    for (const [place, fold] of part.querySelectorAll("details").entries()) fold.open = folds[place]?.open ?? false;
    old.replaceWith(part);
  }
}
