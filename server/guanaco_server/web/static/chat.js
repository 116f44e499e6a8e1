// Streams replies into the conversation. Without this script the same forms wait for the whole reply.

const messages = document.getElementById("messages");
const compose = document.getElementById("compose");
const content = document.getElementById("content");
const problem = document.getElementById("problem");
const spoken = document.getElementById("spoken");
const token = compose.elements.form_token.value;
let isBusy = false;

compose.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = content.value.trim();
  if (!text || isBusy) return;
  add("user", "You", text);
  content.value = "";
  reply(compose.action, { content: text }, () => (content.value ||= text));
});

content.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  compose.requestSubmit();
});

document.addEventListener("submit", (event) => {
  if (event.target.id !== "regenerate") return;
  event.preventDefault();
  if (isBusy) return;
  const old = messages.lastElementChild?.matches(".bot[data-reply]") ? messages.lastElementChild : null;
  old?.remove();
  reply(event.target.action, {}, () => old && messages.append(old));
});

for (const item of messages.querySelectorAll(".user ~ .bot")) item.dataset.reply = "";
messages.lastElementChild?.scrollIntoView({ block: "nearest" });

async function reply(action, fields, giveBack) {
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
    spoken.textContent = `${messages.dataset.bot}: ${said.textContent}`;
    document.getElementById("rating").hidden = false;
  } catch (error) {
    bubble.remove();
    giveBack();
    problem.textContent = error instanceof TypeError ? "The connection broke. Try again." : error.message;
    problem.hidden = false;
  }
  bubble.classList.remove("writing");
  offerAnother(Boolean(messages.lastElementChild?.matches(".bot")));
  setBusy(false);
  content.focus();
}

async function stream(action, fields, take) {
  const answer = await fetch(action, {
    method: "POST",
    headers: { Accept: "text/event-stream" },
    body: new URLSearchParams({ ...fields, form_token: token }),
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
  messages.append(item);
  item.scrollIntoView({ block: "nearest" });
  return item;
}

function offerAnother(hasReply) {
  let form = document.getElementById("regenerate");
  if (!form) {
    form = document.createElement("form");
    form.id = "regenerate";
    form.className = "regenerate";
    form.method = "post";
    form.action = compose.action.replace(/messages$/, "regenerate");
    const button = document.createElement("button");
    button.className = "plain";
    form.append(button);
    document.getElementById("after").append(form);
  }
  form.querySelector("button").textContent = hasReply ? "Another reply" : "Answer me again";
}

function setBusy(now) {
  isBusy = now;
  compose.querySelector("button").disabled = now;
  const again = document.querySelector("#regenerate button");
  if (again) again.disabled = now;
}
