-- Makes jobs ready and opens groups, all or none but for what is known already.
-- KEYS: [1] to [12] as `RedisKeys.enqueue`; then three of each queue: list, delayed set, wake list.
-- ARGV: [2] request; [3] on: the runs of jobs; then the number of groups, and of each: id, size, middle and tail of its
--   callback's bytes (the numbers of done and dead members stand between head and middle, and before the tail), and the
--   callback as a job whose bytes are the head.
-- Returns '1' if all jobs are new, else a msgpack list: 1, or the id of what stands in the way.
local REQUESTS = 10
-- include requests
-- include new_jobs
local told = recall('p' .. ARGV[2])
if told then return told end
need_shared(9)
for queue = 13, #KEYS, 3 do
  need('list', KEYS[queue])
  need('zset', KEYS[queue + 1])
end
local answers, new, at = add_runs(3)
local groups = tonumber(ARGV[at])
at = at + 1
for _ = 1, groups do
  local id, size, middle, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local job
  job, at = read_job(at + 4)
  job.head, job.middle, job.tail, job.bytes = job.bytes, middle, tail, nil
  open_group(id, size, job)
end
local answer = new and '1' or cmsgpack.pack(answers)
remember('p' .. ARGV[2], answer)
return answer
