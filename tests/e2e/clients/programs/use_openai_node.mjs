// openai for Node: chat, streams, tools, responses, embeddings.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "not-needed" });
const model = "dictated";
const asked = (...answers) => `Say it. answers: ${answers.join(" ||| ")}`;
const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';
const messages = [{ role: "user", content: asked("Sunny.") }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { type: "string" } } },
    },
  },
];

const whole = await client.chat.completions.create({ model, messages });
assert.equal(whole.choices[0].message.content, "Sunny.");
const stream = client.chat.completions.stream({ model, messages });
assert.equal(await stream.finalContent(), "Sunny.");

const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: asked(call, "It is sunny.") }],
  tools: [{ ...tools[0], function: { ...tools[0].function, parse: JSON.parse, function: () => "21" } }],
});
assert.equal(await runner.finalContent(), "It is sunny.");

const response = await client.responses.create({ model, input: asked("Sunny.") });
assert.equal(response.output_text, "Sunny.");
const vectors = await client.embeddings.create({ model, input: ["one", "two"] });
assert.deepEqual(vectors.data.map((row) => row.embedding.length), [8, 8]);
await assert.rejects(
  client.chat.completions.create({ model: "another", messages }),
  (error) => error.status === 404 && error.code === "model_not_found",
);
