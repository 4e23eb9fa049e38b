// @platformatic/kafka produces numbers to a topic. See README.md above for the arguments.
// It counts the sequences of an idempotent producer when it is answered, so there is one call at a time.

import fs from "node:fs";
import { ProduceAcks, Producer, stringSerializers } from "@platformatic/kafka";

const [servers, topic, first, count, acked, perSecond = "1e6"] = process.argv.slice(2);
const BATCH = 50;

const producer = new Producer({
  clientId: "door", bootstrapBrokers: [servers], serializers: stringSerializers,
  idempotent: true, acks: ProduceAcks.ALL, retries: 400, retryDelay: 500,
});
const file = fs.openSync(acked, "w");
const [begin, end] = [Date.now(), Number(first) + Number(count)];
for (let from = Number(first); from < end; from += BATCH) {
  const due = begin + ((from - first) * 1000) / perSecond;
  if (due > Date.now()) await new Promise((go) => setTimeout(go, due - Date.now()));
  const numbers = Array.from({ length: Math.min(BATCH, end - from) }, (_, at) => from + at);
  const messages = numbers.map((number) => (
    { topic, key: `${number % 10}`, value: `${number}`, headers: { n: `${number}` } }));
  let outcome = "-1 -1";
  try {
    await producer.send({ messages });
  } catch (error) {
    outcome = `failed ${error}`.replaceAll("\n", " ");
  }
  numbers.forEach((number) => fs.writeSync(file, `${number} ${outcome}\n`));
}
await producer.close();
