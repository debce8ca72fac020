// npm rocketmq-client-nodejs with a gRPC endpoint: node grpc_clients.js HOST:PORT tls|plain
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const quiet = { info() {}, warn() {}, error: console.error, debug() {} };
const options = { endpoints: process.argv[2], sslEnabled: process.argv[3] === 'tls', logger: quiet, namespace: '' };
const COMMIT = 1;

async function until(ready, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    if (await ready()) return;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(`nothing after ${seconds} s: ${ready}`);
}

async function received(group, topic, wanted, count) {
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: group, subscriptions: new Map([[topic, wanted]]), awaitDuration: 5000 });
  await consumer.startup();
  const found = [];
  await until(async () => {
    for (const message of await consumer.receive(16, 20000)) {
      await consumer.ack(message);
      found.push(message.body.toString());
    }
    return found.length >= count;
  });
  await consumer.shutdown();
  return found.sort().join(',');
}

(async () => {
  const producer = new Producer({ ...options, topic: 'normal' });  // with several topics 1.0.8 may miss its settings
  await producer.startup();
  for (let n = 0; n < 4; n++) {
    await producer.send({ topic: 'normal', tag: n % 2 ? 'odd' : 'even', keys: [`k${n}`], body: Buffer.from(`n${n}`),
      properties: new Map([['n', String(n)]]) });
  }
  console.log('simple', await received('node-simple', 'normal', '*', 4));
  console.log('tag', await received('node-tag', 'normal', 'odd', 2));
  console.log('sql', await received('node-sql', 'normal', new FilterExpression('n > 2', 2), 1));

  const kept = await producer.send({ topic: 'later', delay: 2000, body: Buffer.from('kept') });
  const taken = await producer.send({ topic: 'later', delay: 2000, body: Buffer.from('taken') });
  await producer.recallMessage('later', taken.recallHandle);
  console.log('later', Boolean(kept.recallHandle), await received('node-later', 'later', '*', 1));

  const seen = [];
  let failed = false;
  const pusher = new PushConsumer({
    ...options, consumerGroup: 'node-push', subscriptions: new Map([['ordered', '*']]), messageListener: {
      async consume(message) {
        if (!failed) {
          failed = true;
          return ConsumeResult.FAILURE;
        }
        seen.push(message.body.toString());
        return ConsumeResult.SUCCESS;
      } } });
  await pusher.startup();
  for (let n = 0; n < 5; n++) {
    await producer.send({ topic: 'ordered', messageGroup: 'g', body: Buffer.from(`o${n}`) });
  }
  await until(() => seen.length >= 5);
  console.log('push', seen.sort().join(','));

  const asked = [];
  const transactional = new Producer({ ...options, topic: 'orphans', checker: {
    async check(message) {
      asked.push(message.body.toString());
      return COMMIT;
    } } });
  await transactional.startup();
  for (const body of ['commit', 'rollback', 'orphan']) {
    const transaction = transactional.beginTransaction();
    await transactional.send({ topic: 'orphans', body: Buffer.from(body) }, transaction);
    if (body === 'commit') await transaction.commit();
    if (body === 'rollback') await transaction.rollback();
  }
  await until(() => asked.length >= 1);
  console.log('half', asked.join(','), await received('node-half', 'orphans', '*', 2));
  await transactional.shutdown();
  await producer.shutdown();
  process.exit(0);
})().catch(error => { console.error(error); process.exit(1); });
