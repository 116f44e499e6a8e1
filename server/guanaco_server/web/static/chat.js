// Streams replies into the conversation. Without this script the same forms wait for the whole reply.
// It runs before the page's body is read: an Enter is heard from the moment that there is something to type into.
//
// A reply goes on at the server when this page is closed or loses its connection. What was sent is noted in
// sessionStorage until its reply is here, so that the page, loaded again, finds it.

"use strict";

const byId = (id) => document.getElementById(id);
const ACTIONS = { compose: say, regenerate: sayAgain, choice: choose, judgement: judge, vote };
const SILENCE_MS = 25_000; // the server sends something every 10 s
const TRIES = 3;
const NEAR_PX = 120;
const REPLIES_BEFORE_ASKING = 3;
let isBusy = false;
let isSending = false;
let awaited = ""; // the name of the turn whose reply is being written
let turns = 0;
let follows = true; // whether the newest text is kept in sight

const storage = (() => {
  try {
    return sessionStorage;
  } catch {
    return null; // the browser forbids it: then a reload finds only what is recorded
  }
})();

class Refused extends Error {} // the server said no: nothing of it was stored
class Failed extends Error {} // the server said that the reply failed; the message is stored
class Broken extends Error {} // the connection ended; the reply goes on

document.addEventListener("submit", (event) => {
  const action = event.target.matches(".rewrite") ? sayOtherwise : ACTIONS[event.target.id];
  if (!action) {
    isSending = true; // a form that goes to another page takes its words along
    return;
  }
  event.preventDefault();
  if (!isBusy) action(event.target, event.submitter);
});

document.addEventListener("keydown", (event) => {
  if (event.target.id !== "content") return;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

document.addEventListener("scroll", () => {
  follows = distanceToEnd() < NEAR_PX;
  if (follows && byId("newest")) byId("newest").hidden = true;
}, { passive: true });

document.addEventListener("click", (event) => {
  if (event.target.id === "newest") toNewest();
  if (event.target.id === "stop") stop(event.target);
  const link = event.target.closest("a[href]");
  const leaves = link && !link.hash && !link.target && !(event.ctrlKey || event.metaKey || event.shiftKey);
  if (leaves && askBeforeLeaving()) event.preventDefault();
});

// The browser asks whether to close a page with words that were not sent, and once one that was not rated.
addEventListener("beforeunload", (event) => {
  if (isSending || isBusy) return;
  if (hasUnsentWords() || askBeforeLeaving()) event.preventDefault();
});

addEventListener("pageshow", () => (isSending = false));

addEventListener("online", () => {
  if (!isBusy) resume();
});

document.addEventListener("DOMContentLoaded", () => {
  for (const said of byId("messages").querySelectorAll(".bot .said")) showMarkdown(said, said.textContent);
  toNewest();
  if (!isBusy) resume();
});

function say(compose, button) {
  const isBattle = button?.id === "battle";
  const content = byId("content");
  const text = content.value.trim();
  if (!text) return;
  const after = lastReply();
  const last = byId("messages").lastElementChild;
  const repeated = last?.matches(".user") && last.querySelector(".said").textContent === text;
  const asked = repeated ? last : add("user", "You", text);
  content.value = "";
  follows = true;
  const turn = newTurn();
  note({ text, after, turn });
  const action = isBattle ? button.formAction : compose.action;
  reply({ action, fields: { content: text, turn }, after, turn, isBattle }, () => {
    if (!repeated) asked.remove();
    content.value ||= text;
  });
}

// Whoever has talked for a while is asked once for a rating before they leave. True if they are asked now.
function askBeforeLeaving() {
  const rating = byId("rating");
  const isRated = rating.querySelector('[aria-pressed="true"]');
  const replies = byId("messages").querySelectorAll(".bot[data-reply]").length;
  if (isRated || rating.classList.contains("leaving") || replies < REPLIES_BEFORE_ASKING) return false;
  if (storage?.getItem(`${noteKey()} asked`)) return false;
  storage?.setItem(`${noteKey()} asked`, "yes");
  rating.classList.add("wanted", "leaving");
  rating.hidden = false;
  byId("asked").textContent = "Before you go: how was it?";
  rating.querySelector("button").focus();
  return true;
}

function hasUnsentWords() {
  const fields = [byId("content"), byId("words"), ...document.querySelectorAll(".rewrite textarea")];
  return fields.some((field) => field && field.value.trim() !== field.defaultValue.trim());
}

async function vote(form, button) {
  const battle = button.closest(".battle").dataset.id;
  if (await post(form, { battle, outcome: button.value })) byId("content").focus({ preventScroll: true });
}

function sayAgain(form) {
  const after = lastReply();
  const last = byId("messages").lastElementChild;
  const old = last?.matches(".bot[data-reply]") ? last : null;
  old?.remove();
  follows = true;
  const turn = newTurn();
  note({ text: null, after, turn });
  reply({ action: form.action, fields: { turn }, after, turn }, () => {}, () => old && byId("messages").append(old));
}

// The user's last message in other words: it goes, with the replies to it.
function sayOtherwise(form) {
  const text = form.elements.content.value.trim();
  if (!text) return;
  const asked = form.closest("li");
  const gone = [...byId("messages").children].slice([...byId("messages").children].indexOf(asked));
  for (const item of gone) item.remove();
  const after = lastReply();
  add("user", "You", text);
  follows = true;
  const turn = newTurn();
  note({ text, after, turn });
  const fields = { content: text, message: form.elements.message.value, turn };
  reply({ action: form.action, fields, after, turn }, () => {
    byId("messages").lastElementChild.remove();
    byId("messages").append(...gone);
    byId("content").value ||= text;
  });
}

// Goes on with the reply before or after the one that is shown.
async function choose(form, button) {
  const label = button.getAttribute("aria-label");
  if (!(await post(form, { message: button.value }))) return;
  const buttons = [...byId("messages").lastElementChild.querySelectorAll(".tools button:not([disabled])")];
  (buttons.find((one) => one.getAttribute("aria-label") === label) ?? buttons[0])?.focus();
}

async function judge(form, button) {
  const label = button.getAttribute("aria-label");
  const id = button.closest("li").id;
  if (await post(form, { judged: button.value })) byId(id)?.querySelector(`[aria-label="${label}"]`)?.focus();
}

// Sends a form and shows the page that answers it. False where it was refused.
async function post(form, fields) {
  setBusy(true);
  let why = "";
  try {
    const body = new URLSearchParams({ ...fields, form_token: form.elements.form_token.value });
    const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html, application/json;q=0.9" } });
    const text = await answer.text();
    if (answer.ok) showRecorded(text);
    else why = sentenceOfPage(text) || `That did not work (status ${answer.status}). Load the page again.`;
  } catch {
    why = "The connection broke. Try again.";
  }
  setBusy(false);
  complain(why);
  return !why;
}

// What was written until now stays.
async function stop(button) {
  button.disabled = true;
  const token = byId("compose").elements.form_token.value;
  const body = new URLSearchParams({ turn: awaited, form_token: token });
  try {
    await fetch(`${location.pathname}/stop`, { method: "POST", body, redirect: "manual" });
  } catch {
    button.disabled = false; // the reply goes on, and can be stopped again
  }
}

function complain(why) {
  const problem = byId("problem");
  problem.textContent = why;
  problem.hidden = !why;
  if (why) problem.scrollIntoView({ block: "nearest" });
}

function resume() {
  const noted = JSON.parse(storage?.getItem(noteKey()) ?? "null");
  if (!noted || lastReply() !== noted.after) return note(null);
  const content = byId("content");
  if (noted.text !== null && content.value === noted.text) content.value = ""; // it was given back meanwhile
  const last = byId("messages").lastElementChild;
  if (noted.text !== null && !(last?.matches(".user") && last.querySelector(".said").textContent === noted.text)) {
    add("user", "You", noted.text);
  }
  const old = noted.text === null && last?.matches(".bot[data-reply]") ? last : null;
  old?.remove();
  const restore = () => old && byId("messages").append(old);
  reply({ after: noted.after, turn: noted.turn ?? "" }, () => (content.value ||= noted.text ?? ""), restore);
}

async function reply(order, giveBack, restore = () => {}) {
  const messages = byId("messages");
  awaited = order.turn;
  turns += 1;
  setBusy(true);
  byId("stop").disabled = false;
  offerStop(true);
  complain("");
  const bubble = add("bot", messages.dataset.bot, "");
  bubble.dataset.reply = "";
  bubble.classList.add("writing");
  if (order.isBattle) divide(bubble);
  let isOver = true;
  try {
    await carry(order, bubble);
    if (bubble.dataset.id) {
      byId("rating").hidden = false;
      const text = bubble.matches(".battle") ? "two answers" : bubble.querySelector(".said").textContent;
      byId("spoken").textContent = `${messages.dataset.bot}: ${text}`;
    } else {
      bubble.remove(); // it was stopped before it began
      restore();
    }
    bubble.classList.remove("writing");
  } catch (error) {
    bubble.remove();
    restore();
    if (error instanceof Refused) giveBack();
    else isOver = await readAgain(giveBack);
    complain(error.message);
  }
  if (isOver) note(null);
  offerStop(false);
  offerAnother(Boolean(messages.lastElementChild?.matches(".bot")));
  const isBattle = bubble.isConnected && bubble.matches(".battle");
  const isShown = isOver && completeMessages(turns, isBattle);
  if (isBattle && !(await isShown)) complain("The connection broke. Load the page again to choose between the answers.");
  setBusy(false);
  (messages.lastElementChild?.querySelector(".which button") ?? byId("content")).focus({ preventScroll: true });
}

// Two models answer, side by side; then the page asks which reply is better.
function divide(bubble) {
  if (bubble.matches(".battle")) return;
  bubble.classList.add("battle");
  bubble.querySelector(".speaker").textContent = `${byId("messages").dataset.bot}: two answers`;
  const sides = Object.assign(document.createElement("div"), { className: "sides" });
  const said = bubble.querySelector(".said");
  sides.append(said, said.cloneNode());
  bubble.append(sides);
}

function unite(bubble) {
  if (!bubble.matches(".battle")) return;
  bubble.classList.remove("battle");
  bubble.querySelector(".speaker").textContent = byId("messages").dataset.bot;
  bubble.querySelector(".sides").replaceWith(bubble.querySelector(".said"));
}

// Shows what is recorded; a message that never arrived is given back. False where that cannot be known now.
async function readAgain(giveBack) {
  let recorded;
  try {
    const answer = await fetch(location.pathname);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    recorded = answer.ok && page.getElementById("messages");
  } catch {
    // there is no connection
  }
  if (!recorded) {
    giveBack();
    return false;
  }
  const [asked] = [...byId("messages").querySelectorAll(".user .said")].slice(-1);
  const [known] = [...recorded.querySelectorAll(".user .said")].slice(-1);
  if (asked && asked.textContent !== known?.textContent) giveBack();
  byId("messages").replaceChildren(...recorded.children);
  for (const said of byId("messages").querySelectorAll(".bot .said")) showMarkdown(said, said.textContent);
  return true;
}

// Gives what is shown the ids and buttons that the server's page has for it, unless the talk has gone on meanwhile.
// False where the page cannot be had: then they are missing until it is loaded again.
async function completeMessages(turn, isAwaited = false) {
  try {
    const answer = await fetch(location.pathname);
    const text = await answer.text();
    if (answer.ok && turn === turns && (isAwaited || !isBusy)) showRecorded(text);
    return answer.ok;
  } catch {
    return false;
  }
}

function showRecorded(text) {
  const recorded = new DOMParser().parseFromString(text, "text/html").getElementById("messages");
  if (!recorded) return;
  const [shown, fresh] = [[...byId("messages").children], [...recorded.children]];
  fresh.forEach((item, place) => {
    const old = shown[place];
    if (!old || (old.dataset.id && old.dataset.id !== item.dataset.id)) {
      for (const said of item.querySelectorAll(".said")) if (item.matches(".bot")) showMarkdown(said, said.textContent);
      if (old) old.replaceWith(item);
      else byId("messages").append(item);
      return;
    }
    if (!item.dataset.id) return;
    old.id = old.dataset.id = item.dataset.id;
    for (const tools of old.querySelectorAll(".tools, .edit")) tools.remove();
    old.append(...item.querySelectorAll(".tools, .edit"));
  });
  for (const old of shown.slice(fresh.length)) old.remove();
  if (follows) toNewest();
}

// Asks for the reply; where the connection breaks, follows the reply that goes on without it.
async function carry(order, bubble) {
  const show = shower(bubble);
  const token = byId("compose").elements.form_token.value;
  const body = order.action && new URLSearchParams({ ...order.fields, form_token: token });
  const follow = `${location.pathname}/reply?after=${encodeURIComponent(order.after)}`;
  for (let tries = order.action ? 0 : 1; ; tries += 1) {
    try {
      show.restart();
      return await (tries === 0 ? stream(order.action, { method: "POST", body }, show) : stream(follow, {}, show));
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      if (tries === TRIES) throw new Failed("The connection broke. Load the page again to see whether the reply has come.");
      await new Promise((wake) => setTimeout(wake, 500 * 2 ** tries));
    }
  }
}

function shower(bubble) {
  let texts = {};
  const draw = (side) => {
    const said = bubble.querySelectorAll(".said")[side === "b" ? 1 : 0];
    showMarkdown(said, texts[side ?? ""]);
    if (follows) toNewest();
    else byId("newest").hidden = false;
  };
  return {
    restart: () => (texts = {}),
    token: ({ text, side }) => {
      if (side) divide(bubble);
      texts[side ?? ""] = (texts[side ?? ""] ?? "") + text;
      draw(side);
    },
    done: (data) => {
      bubble.dataset.id = data.id;
      if (data.rate) byId("rating").classList.add("wanted");
      if (data.battle || !data.id) return;
      unite(bubble);
      texts[""] = data.text;
      draw();
    },
  };
}

async function stream(address, options, show) {
  const control = new AbortController();
  let silence;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => control.abort(), SILENCE_MS);
  };
  heard();
  try {
    const answer = await fetch(address, { ...options, headers: { Accept: "text/event-stream" }, signal: control.signal });
    if (!answer.ok) throw new Refused(sentence(await answer.json().catch(() => ({})), answer.status));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Broken();
      heard();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const name = /^event: (.*)$/m.exec(part)?.[1];
        const data = JSON.parse(/^data: (.*)$/m.exec(part)?.[1] ?? "null");
        if (name === "error") throw new Failed(sentence(data));
        if (name && data) show[name]?.(data);
        if (name === "done") return;
      }
    }
  } catch (error) {
    throw error instanceof Refused || error instanceof Failed ? error : new Broken();
  } finally {
    clearTimeout(silence);
    control.abort();
  }
}

function sentence(body, status) {
  return [body.detail ?? `That did not work${status ? ` (status ${status})` : ""}.`, body.hint].filter(Boolean).join(" ");
}

// What a page that tells of an error says.
function sentenceOfPage(text) {
  const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  return [main?.querySelector("h1"), main?.querySelector(".lead")].map((one) => one?.textContent.trim()).filter(Boolean).join(" ");
}

function add(sender, name, text) {
  const item = document.createElement("li");
  item.className = `message ${sender}`;
  const speaker = Object.assign(document.createElement("p"), { className: "speaker", textContent: name });
  const said = Object.assign(document.createElement("div"), { className: "said", textContent: text, dir: "auto" });
  item.append(speaker, said);
  byId("messages").append(item);
  if (follows) toNewest();
  return item;
}

function lastReply() {
  const last = [...byId("messages").querySelectorAll("[data-reply]")].at(-1);
  return last?.dataset.message ?? last?.dataset.id ?? "";
}

function noteKey() {
  return `guanaco ${location.pathname}`;
}

function note(what) {
  if (what) storage?.setItem(noteKey(), JSON.stringify(what));
  else storage?.removeItem(noteKey());
}

function distanceToEnd() {
  return document.documentElement.scrollHeight - innerHeight - scrollY;
}

function toNewest() {
  follows = true;
  if (byId("newest")) byId("newest").hidden = true;
  scrollTo(0, document.documentElement.scrollHeight); // a sticky composer is in sight already, what is above it may not be
}

function offerAnother(hasReply) {
  let form = byId("regenerate");
  if (!form) {
    form = document.createElement("form");
    form.id = "regenerate";
    form.className = "regenerate";
    form.method = "post";
    form.action = byId("compose").action.replace(/messages$/, "regenerate");
    const button = document.createElement("button");
    button.className = "plain";
    form.append(button);
    byId("after").append(form);
    if (follows) toNewest();
  }
  form.querySelector("button").textContent = hasReply ? "Another reply" : "Try again";
}

function newTurn() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function offerStop(now) {
  byId("stop").hidden = !now;
  for (const id of ["send", "battle"]) if (byId(id)) byId(id).hidden = now;
}

function setBusy(now) {
  isBusy = now;
  for (const button of [byId("send"), byId("battle"), document.querySelector("#regenerate button")]) {
    if (button) button.disabled = now;
  }
}
