// Follows a submission's log, and fetches the page's own parts (``data-part``) anew when its stage changes.
// Without this script the page is the same, and "refresh" does it.

const log = document.getElementById("log");

if (log) log.scrollTop = log.scrollHeight;
if (log && "live" in log.dataset) follow(log);

function follow(log) {
  const source = new EventSource(`${log.dataset.events}?after=${log.dataset.after}`);
  for (const kind of ["status", "stage", "log"]) {
    source.addEventListener(kind, (message) => {
      append(log, JSON.parse(message.data));
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
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-part]")) {
    const part = fresh.getElementById(old.id);
    if (part && !part.isEqualNode(old)) old.replaceWith(part);
  }
}
