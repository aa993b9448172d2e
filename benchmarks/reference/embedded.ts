// One embedded workload of the original: bun embedded.ts VERB JOBS [FILE]; prints one line of JSON with the rate.
import { Queue, Worker } from 'bunqueue/client';

const [verb, jobs, file] = process.argv.slice(2);
const count = Number(jobs);
const payload = { to: 'user@example.com', n: 1, body: 'x'.repeat(50) };
const queue = new Queue('bench', file ? { embedded: true, dataPath: file } : { embedded: true });

async function addInBulk(): Promise<void> {
  for (let at = 0; at < count; at += 1000) {
    const size = Math.min(1000, count - at);
    await queue.addBulk(Array.from({ length: size }, () => ({ name: 'j', data: payload })));
  }
}

let start = performance.now();
switch (verb) {
  case 'add_bulk':
    await addInBulk();
    break;
  case 'add':
    for (let at = 0; at < count; at++) await queue.add('j', payload);
    break;
  case 'add_durable':
    for (let at = 0; at < count; at++) await queue.add('j', payload, { durable: true });
    break;
  case 'process': {
    await addInBulk();
    start = performance.now();
    let left = count;
    await new Promise<void>((done) => {
      const worker = new Worker('bench', async () => ({ ok: true }), { embedded: true, concurrency: 50 });
      worker.on('completed', () => --left === 0 && done());
    });
    break;
  }
  default:
    throw new Error(`unknown workload ${verb}`);
}
const seconds = (performance.now() - start) / 1000;
console.log(JSON.stringify({ rate: Math.round(count / seconds), seconds }));
process.exit(0);
