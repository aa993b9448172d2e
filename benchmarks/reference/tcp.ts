// One workload over TCP with the original's own client, against any server that speaks the protocol:
// bun tcp.ts VERB JOBS PORT[,PORT…]; several ports are brokers that share one storage. Prints one line of JSON with the rate.
import { Queue, Worker } from 'bunqueue/client';

const [verb, jobs, portList] = process.argv.slice(2);
const count = Number(jobs);
const connections = portList.split(',').map((port) => ({ host: '127.0.0.1', port: Number(port) }));
const name = `bench-${verb}-${process.pid}`;
const queues = connections.map((connection) => new Queue(name, { connection }));
const concurrency = queues.length > 1 ? 16 / queues.length : 50;
const payload = { to: 'user@example.com', n: 1, body: 'x'.repeat(50) };
const queueOf = (turn: number) => queues[turn % queues.length];

async function addInBulk(): Promise<void> {
  for (let at = 0, turn = 0; at < count; at += 1000, turn++) {
    const size = Math.min(1000, count - at);
    await queueOf(turn).addBulk(Array.from({ length: size }, () => ({ name: 'j', data: payload })));
  }
}

async function addPipelined(): Promise<void> {
  for (let at = 0; at < count; at += 100) {
    const size = Math.min(100, count - at);
    await Promise.all(Array.from({ length: size }, (_, turn) => queueOf(turn).add('j', payload)));
  }
}

function process_all(): Promise<void> {
  let left = count;
  return new Promise((done) => {
    for (const connection of connections) {
      const worker = new Worker(name, async () => ({ ok: true }), { connection, concurrency });
      worker.on('completed', () => --left === 0 && done());
    }
  });
}

// Connections are made before the clock starts.
for (const queue of queues) await queue.getJobCounts();
let start = performance.now();
switch (verb) {
  case 'add_bulk':
    await addInBulk();
    break;
  case 'add':
    await addPipelined();
    break;
  case 'add_sequential':
    for (let at = 0; at < count; at++) await queues[0].add('j', payload);
    break;
  case 'process':
    await addInBulk();
    start = performance.now();
    await process_all();
    break;
  case 'lifecycle': {
    const finished = process_all();
    await addPipelined();
    await finished;
    break;
  }
  default:
    throw new Error(`unknown workload ${verb}`);
}
const seconds = (performance.now() - start) / 1000;
console.log(JSON.stringify({ rate: Math.round(count / seconds), seconds }));
process.exit(0);
