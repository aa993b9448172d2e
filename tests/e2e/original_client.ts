// Adds jobs, processes them and reads every result back, with the original's own client.
// bun original_client.ts PORT COUNT; prints one line of JSON with what it found.
import { Queue, Worker } from 'bunqueue/client';

const [port, count] = process.argv.slice(2).map(Number);
const connection = { host: '127.0.0.1', port };
const queue = new Queue('work', { connection });
const ids: string[] = [];
for (let i = 0; i < count; i += 1000) {
  const jobs = Array.from({ length: Math.min(1000, count - i) }, (_, k) => ({ name: 'square', data: { n: i + k } }));
  for (const job of await queue.addBulk(jobs)) ids.push(job.id);
}
const runs = new Map<string, number>();
await new Promise<void>((resolve) => {
  let done = 0;
  const worker = new Worker(
    'work',
    async (job) => {
      runs.set(job.id, (runs.get(job.id) ?? 0) + 1);
      return { n: job.data.n, square: job.data.n ** 2 };
    },
    { connection, concurrency: 50 },
  );
  worker.on('completed', () => {
    if (++done === count) worker.close().then(resolve);
  });
});
let right = 0;
for (let i = 0; i < count; i += 100) {
  const jobs = await Promise.all(ids.slice(i, i + 100).map((id) => queue.getJob(id)));
  jobs.forEach((job, k) => {
    const value = job?.returnvalue as { n: number; square: number } | undefined;
    if (value?.n === i + k && value.square === (i + k) ** 2) right++;
  });
}
const counts = await queue.getJobCounts();
const once = [...runs.values()].filter((times) => times === 1).length;
console.log(JSON.stringify({ added: new Set(ids).size, once, right, completed: counts.completed }));
process.exit(0);
