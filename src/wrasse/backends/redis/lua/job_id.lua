-- The id in a job's bytes, as job_json reads it; '' where there is none.
local function id_of(bytes)
  local id = string.match(bytes, '^{"id":"([^"\\%c]+)"')
  if id then return id end
  local read, job = pcall(cjson.decode, bytes)
  if not read or type(job) ~= 'table' then return '' end
  if type(job.id) == 'number' then return string.format('%.0f', job.id) end
  return type(job.id) == 'string' and job.id or ''
end
