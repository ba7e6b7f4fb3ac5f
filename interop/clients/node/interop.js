'use strict';
// node interop.js NAMESRV SCENARIO [SUFFIX]
//
// Runs one scenario with the pure JavaScript client, checks what came back,
// prints one line of JSON and exits 0 if all was right. Topic and group names
// end in SUFFIX, so that runs do not disturb each other.
const { Producer, Consumer, Message } = require('ali-ons');

const [ , , nameSrv, scenario, suffix = Date.now().toString(36) ] = process.argv;
const quiet = { info() {}, warn() {}, debug() {}, error: (...a) => process.env.INTEROP_DEBUG && console.error(...a) };
const facts = {};
const closers = [];
const topic = s => `T_node_${s}_${suffix}`;
const group = s => `G_node_${s}_${suffix}`;
const sleep = ms => new Promise(r => setTimeout(r, ms));

function check(ok, what) {
  if (!ok) throw new Error(what);
}

async function wait(seconds, what, ok) {
  const end = Date.now() + seconds * 1000;
  while (!ok()) {
    check(Date.now() < end, 'timed out waiting for ' + what);
    await sleep(50);
  }
}

async function producer(g) {
  const p = new Producer({ httpclient: { request: async () => ({ status: 404 }) }, nameSrv, producerGroup: g, logger: quiet,
    accessKeyId: 'ak', accessKeySecret: 'sk' });
  p.on('error', e => quiet.error(e));
  await p.ready();
  closers.push(() => p.close());
  return p;
}

async function consumer(g, subscriptions, handler, more) {
  const c = new Consumer({ httpclient: { request: async () => ({ status: 404 }) }, nameSrv, consumerGroup: g, logger: quiet,
    accessKeyId: 'ak', accessKeySecret: 'sk', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 2000, ...more });
  c.on('error', e => quiet.error(e));
  for (const [ t, e ] of subscriptions) c.subscribe(t, e, handler);
  await c.ready();
  closers.push(() => c.close());
  return c;
}

// The client does not fall back to the template topic: topics must exist.
async function create(p, t) {
  const route = await p._mqClient.getDefaultTopicRouteInfoFromNameServer('TBW102', 3000);
  for (const b of route.brokerDatas) {
    await p._mqClient.createTopic(b.brokerAddrs[0], 'TBW102', { topicName: t, readQueueNums: 4, writeQueueNums: 4, perm: 6,
      topicFilterType: 'SINGLE_TAG', topicSysFlag: 0, order: false }, 3000);
  }
}

async function fill(p, t, n, body, ...tags) {
  for (let i = 0; i < n; i++) {
    const m = new Message(t, tags.length ? tags[i % tags.length] : null, body + i);
    m.keys = [ 'k' + i ];
    const r = await p.send(m);
    check(r.sendStatus === 'SEND_OK', 'send status ' + r.sendStatus);
  }
}

const same = (got, ...want) => JSON.stringify([ ...got ].sort()) === JSON.stringify(want.sort());

const scenarios = {
  async producer() {
    const t = topic('produce');
    const p = await producer(group('produce'));
    await create(p, t);
    const next = {};
    for (let i = 0; i < 5; i++) {
      const m = new Message(t, 'tag' + i % 2, 'sync' + i);
      m.keys = [ 'key' + i, 'shared' ];
      m.properties.color = 'red';
      const r = await p.send(m);
      check(r.sendStatus === 'SEND_OK' && r.msgId, JSON.stringify(r));
      const q = r.messageQueue.queueId;
      check(Number(r.queueOffset) === (next[q] || 0), 'queue offset ' + JSON.stringify(r));
      next[q] = Number(r.queueOffset) + 1;
    }
    await p.send(new Message(t, 'plain', 'plain'));
    const d = new Message(t, 'delay', 'delayed');
    d.properties.DELAY = '1';
    await p.send(d);
    const big = '0123456789'.repeat(1000);
    await p.send(new Message(t, 'big', big));
    const got = new Set();
    await consumer(group('producec'), [[ t, '*' ]], async m => { got.add(m.body.toString()); });
    await wait(40, 'all messages', () => same(got, 'sync0', 'sync1', 'sync2', 'sync3', 'sync4', 'plain', 'delayed', big));
  },

  // An unknown topic: one route lookup, then an error; no fall-back, no send.
  async 'producer-notopic'() {
    const p = await producer(group('notopic'));
    let e;
    try {
      await p.send(new Message(topic('notopic'), 'x'));
    } catch (err) {
      e = err;
    }
    check(e, 'unknown topic accepted');
  },

  async 'consumer-tags'() {
    const t = topic('tags');
    const t2 = topic('all');
    const p = await producer(group('tagsp'));
    await create(p, t);
    await create(p, t2);
    await fill(p, t, 6, 'm', 'a', 'b', 'c');
    await fill(p, t2, 3, 'x');
    const got = new Set();
    await consumer(group('tags'), [[ t, 'a || c' ], [ t2, '*' ]], async m => { got.add(m.body.toString()); });
    await wait(40, 'messages', () => same(got, 'm0', 'm2', 'm3', 'm5', 'x0', 'x1', 'x2'));
    await fill(p, t, 3, 'n', 'a', 'b', 'c');
    await wait(40, 'later messages', () => same(got, 'm0', 'm2', 'm3', 'm5', 'n0', 'n2', 'x0', 'x1', 'x2'));
  },

  async 'consumer-sql'() {
    const t = topic('sql');
    const p = await producer(group('sqlp'));
    await create(p, t);
    for (let i = 0; i < 8; i++) {
      const m = new Message(t, 't', 's' + i);
      m.properties.n = String(i);
      await p.send(m);
    }
    const got = new Set();
    await consumer(group('sql'), [[ t, { expressionType: 'SQL92', subString: 'n > 4' } ]], async m => { got.add(m.body.toString()); });
    await wait(40, 'filtered messages', () => same(got, 's5', 's6', 's7'));
  },

  async 'consumer-retry'() {
    const t = topic('retry');
    const p = await producer(group('retryp'));
    await create(p, t);
    await fill(p, t, 2, 'r');
    const tries = {};
    await consumer(group('retry'), [[ t, '*' ]], async m => {
      const b = m.body.toString();
      (tries[b] = tries[b] || []).push(m.reconsumeTimes);
      return b === 'r0' && m.reconsumeTimes < 1 ? Consumer.ACTION_RETRY : undefined;
    });
    // The client looks for its retry topic at start and then every 30 s.
    await wait(80, 'second try', () => (tries.r0 || []).length === 2);
    check(JSON.stringify(tries) === '{"r0":[0,1],"r1":[0]}' || JSON.stringify(tries) === '{"r1":[0],"r0":[0,1]}', JSON.stringify(tries));
  },

  async 'consumer-broadcast'() {
    const t = topic('broadcast');
    const p = await producer(group('broadcastp'));
    await create(p, t);
    await fill(p, t, 1, 'early');
    const got = new Set();
    await consumer(group('broadcast'), [[ t, '*' ]], async m => { got.add(m.body.toString()); }, { isBroadcast: true });
    await sleep(3000);
    await fill(p, t, 4, 'b');
    await wait(40, 'broadcast messages', () => [ 'b0', 'b1', 'b2', 'b3' ].every(b => got.has(b)));
  },
};

(async () => {
  if (!scenarios[scenario]) {
    console.error('usage: interop.js NAMESRV SCENARIO [SUFFIX]', Object.keys(scenarios));
    process.exit(2);
  }
  const start = Date.now();
  let error;
  const limit = setTimeout(() => { console.log(JSON.stringify({ client: 'node', scenario, suffix, ok: false, error: 'stuck' })); process.exit(1); }, 120000);
  try {
    await scenarios[scenario]();
  } catch (e) {
    error = String(e && e.message || e);
  }
  for (const c of closers.reverse()) await Promise.race([ Promise.resolve(c()).catch(e => quiet.error(e)), sleep(5000) ]);
  clearTimeout(limit);
  console.log(JSON.stringify({ client: 'node', scenario, suffix, ok: !error, ms: Date.now() - start, facts, error }));
  process.exit(error ? 1 : 0);
})();
