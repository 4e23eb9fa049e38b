// kafkajs produces numbers to a topic. See README.md above for the arguments.
// It gives new numbers to what it sends again, and the same ones to what waits behind it, so records are lost
// when an idempotent producer has several calls on their way. Here there is one call at a time.

const fs = require("fs");
const { Kafka } = require("kafkajs");

const [servers, topic, first, count, acked, perSecond = "1e6"] = process.argv.slice(2);
const [AT_ONCE, BATCH] = [1, 50];

async function main() {
  const retry = { retries: 400, initialRetryTime: 100, maxRetryTime: 500 };
  const producer = new Kafka({ brokers: [servers], retry }).producer({ idempotent: true, retry });
  const file = fs.openSync(acked, "w");
  const send = async (from, to) => {
    const numbers = Array.from({ length: to - from }, (_, at) => from + at);
    const messages = numbers.map((number) => (
      { key: `${number % 10}`, value: `${number}`, headers: { n: `${number}` } }));
    let outcome = "-1 -1";
    try {
      await producer.send({ topic, messages, acks: -1 });
    } catch (error) {
      outcome = `failed ${error}`.replaceAll("\n", " ");
    }
    numbers.forEach((number) => fs.writeSync(file, `${number} ${outcome}\n`));
  };
  await producer.connect();
  const [begin, end] = [Date.now(), Number(first) + Number(count)];
  const onTheirWay = new Set();
  for (let from = Number(first); from < end; from += BATCH) {
    const due = begin + ((from - first) * 1000) / perSecond;
    if (due > Date.now()) await new Promise((go) => setTimeout(go, due - Date.now()));
    while (onTheirWay.size >= AT_ONCE) await Promise.race(onTheirWay);
    const one = send(from, Math.min(from + BATCH, end)).finally(() => onTheirWay.delete(one));
    onTheirWay.add(one);
  }
  await Promise.all(onTheirWay);
  await producer.disconnect();
}

main();
