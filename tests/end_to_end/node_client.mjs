// The main routes through OpenAI's client for Node; prints what came of them as JSON. argv: the base URL.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of Japan?" }];
const results = {};

const models = await client.models.list();
results.models = models.data.map((model) => model.id);

const chat = await client.chat.completions.create({ model: "", messages, temperature: 0 });
results.chat = [chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage.completion_tokens];

const helper = client.chat.completions.stream({
  model: "",
  messages,
  temperature: 0,
  stream_options: { include_usage: true },
});
results.pieces = 0;
helper.on("content", () => (results.pieces += 1));
const final = await helper.finalChatCompletion();
results.streamed = [final.choices[0].message.content, final.choices[0].finish_reason, final.usage.completion_tokens];

const completion = await client.completions.create({ model: "", prompt: ["One", "Two"], max_tokens: 3, n: 2 });
results.indexes = completion.choices.map((choice) => choice.index);

const response = await client.responses.create({ model: "", input: messages[0].content, temperature: 0 });
results.response = [response.output_text, response.status];

results.events = [];
const events = await client.responses.create({ model: "", input: "Hi", max_output_tokens: 2, stream: true });
for await (const event of events) results.events.push(event.type);

try {
  await client.chat.completions.create({ model: "", messages, temperature: 9 });
} catch (error) {
  results.error = [error.constructor.name, error.status, error.param, error.code];
}
console.log(JSON.stringify(results));
