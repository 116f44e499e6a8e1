// Streams replies into the conversation. Without this script the same forms wait for the whole reply.
// It runs before the page's body is read: an Enter is heard from the moment that there is something to type into.

"use strict";

const byId = (id) => document.getElementById(id);
const ACTIONS = { compose: say, regenerate: sayAgain };
let isBusy = false;

document.addEventListener("submit", (event) => {
  const action = ACTIONS[event.target.id];
  if (!action) return;
  event.preventDefault();
  if (!isBusy) action(event.target);
});

document.addEventListener("keydown", (event) => {
  if (event.target.id !== "content") return;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

document.addEventListener("DOMContentLoaded", () => {
  for (const item of byId("messages").querySelectorAll(".user ~ .bot")) item.dataset.reply = "";
  byId("messages").lastElementChild?.scrollIntoView({ block: "nearest" });
});

function say(compose) {
  const content = byId("content");
  const text = content.value.trim();
  if (!text) return;
  add("user", "You", text);
  content.value = "";
  reply(compose.action, { content: text }, () => (content.value ||= text));
}

function sayAgain(form) {
  const last = byId("messages").lastElementChild;
  const old = last?.matches(".bot[data-reply]") ? last : null;
  old?.remove();
  reply(form.action, {}, () => old && byId("messages").append(old));
}

async function reply(action, fields, giveBack) {
  const [messages, problem] = [byId("messages"), byId("problem")];
  setBusy(true);
  problem.hidden = true;
  const bubble = add("bot", messages.dataset.bot, "");
  bubble.dataset.reply = "";
  bubble.classList.add("writing");
  const said = bubble.querySelector(".said");
  try {
    await stream(action, fields, (name, data) => {
      if (name === "token") said.textContent += data.text;
      if (name === "done") said.textContent = data.text;
      if (name === "error") throw new Error([data.detail, data.hint].filter(Boolean).join(" "));
      bubble.scrollIntoView({ block: "nearest" });
    });
    byId("spoken").textContent = `${messages.dataset.bot}: ${said.textContent}`;
    byId("rating").hidden = false;
  } catch (error) {
    bubble.remove();
    giveBack();
    problem.textContent = error instanceof TypeError ? "The connection broke. Try again." : error.message;
    problem.hidden = false;
  }
  bubble.classList.remove("writing");
  offerAnother(Boolean(messages.lastElementChild?.matches(".bot")));
  setBusy(false);
  byId("content").focus();
}

async function stream(action, fields, take) {
  const answer = await fetch(action, {
    method: "POST",
    headers: { Accept: "text/event-stream" },
    body: new URLSearchParams({ ...fields, form_token: byId("compose").elements.form_token.value }),
  });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error([body.detail ?? "That did not work.", body.hint].filter(Boolean).join(" "));
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let isEnded = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part)?.[1];
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (!name || !data) continue;
      isEnded ||= name === "done";
      take(name, JSON.parse(data));
    }
  }
  if (!isEnded) throw new Error("The reply was cut off. Try again.");
}

function add(sender, name, text) {
  const item = document.createElement("li");
  item.className = `message ${sender}`;
  for (const [kind, words] of [["speaker", name], ["said", text]]) {
    const line = document.createElement("p");
    line.className = kind;
    line.textContent = words;
    item.append(line);
  }
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return item;
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
  }
  form.querySelector("button").textContent = hasReply ? "Another reply" : "Answer me again";
}

function setBusy(now) {
  isBusy = now;
  const send = document.querySelector("#compose button");
  if (send) send.disabled = now;
  const again = document.querySelector("#regenerate button");
  if (again) again.disabled = now;
}
