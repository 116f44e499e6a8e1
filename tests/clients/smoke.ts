// Clients of a running platform in TypeScript: generated from its openapi.json, and OpenAI's own. tests/e2e/test_clients.py
// generates `schema.ts`, compiles this strictly and runs it.
import OpenAI from "openai";
import createClient from "openapi-fetch";
import type { operations, paths } from "./schema.js";

declare const process: { argv: string[] };
function assert(holds: unknown, what: unknown): asserts holds {
  if (!holds) throw new Error(`not so: ${JSON.stringify(what)}`);
}
const equal = (found: unknown, wanted: unknown): void =>
  assert(JSON.stringify(found) === JSON.stringify(wanted), { found, wanted });

const [url, key, model] = process.argv.slice(2) as [string, string, string];
type StreamEvent = operations["chat_messages"]["responses"][200]["content"]["text/event-stream"];

async function generated(): Promise<void> {
  const api = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

  const me = await api.GET("/api/v1/me");
  equal(me.data?.role, "backend");

  const opened = await api.POST("/api/v1/conversations", {
    body: { user_id: "u1", consent: true, bot: { name: "Luna" } }, // what has a default may be left out
  });
  assert(opened.data, opened.error);
  const path = { conversation_id: opened.data.conversation_id };

  const reply = await api.POST("/api/v1/conversations/{conversation_id}/messages", {
    params: { path },
    body: { content: "Hello", stream: false },
  });
  assert(reply.data && "content" in reply.data, reply.error);
  equal(reply.data.content, "Hello from memory.");

  const streamed = await api.POST("/api/v1/conversations/{conversation_id}/messages", {
    params: { path },
    body: { content: "And now?", stream: true },
    parseAs: "text",
  });
  const events = String(streamed.data).trim().split("\n\n").map(parsed);
  const said = events.map((one) => (one.event === "token" ? one.data.text : "")).join("");
  const last = events.at(-1);
  assert(last?.event === "done", events);
  equal(said, last.data.content);

  const missing = await api.GET("/api/v1/conversations/{conversation_id}", {
    params: { path: { conversation_id: "conv_none" } },
  });
  equal(missing.response.status, 404);
  equal(missing.error?.error, "conversation_not_found");
}

function parsed(event: string): StreamEvent {
  const lines = new Map(event.split("\n").map((line) => line.split(/: (.*)/s) as [string, string]));
  return { event: lines.get("event"), data: JSON.parse(lines.get("data") ?? "") } as StreamEvent;
}

async function openai(): Promise<void> {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
  const messages = [{ role: "user" as const, content: "Hello" }];

  const models = await client.models.list();
  equal(models.data.map((one) => one.id), ["guanaco/auto", model]);
  assert(models.data.every((one) => one.created > 1_600_000_000), models);

  const whole = await client.chat.completions.create({ model: "guanaco/auto", messages });
  equal(whole.model, model);
  equal(whole.choices[0]?.message.content, "Hello from memory.");

  let text = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  equal(text, "Hello from memory.");

  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  await refused(stranger.models.list(), OpenAI.AuthenticationError, 401, /key/);
  await refused(client.models.retrieve("none"), OpenAI.NotFoundError, 404, /No submission none/);
  await refused(client.embeddings.create({ model, input: "x" }), OpenAI.NotFoundError, 404, /nothing at \/v1\/embeddings/);
  await refused(
    client.chat.completions.create({ model, messages, n: 3 }),
    OpenAI.BadRequestError,
    400,
    /n: /,
  );
}

async function refused(
  calling: PromiseLike<unknown>,
  kind: new (...given: never[]) => Error,
  status: number,
  says: RegExp,
): Promise<void> {
  const error = await Promise.resolve(calling).then(() => null, (error: unknown) => error);
  assert(error instanceof kind && error instanceof OpenAI.APIError, { error });
  equal(error.status, status);
  assert(says.test(error.message), error.message);
  assert(error.code, error.message);
}

await generated();
await openai();
console.log("every call was answered");
