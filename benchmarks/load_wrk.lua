-- wrk -s load_wrk.lua URL -- BODY: POST the file's content, and print the counts as one line of JSON.

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = file:read("*a")
  file:close()
  whole = wrk.format()
end

function request()
  return whole
end

function done(summary, latency, requests)
  local errors = summary.errors
  local line = '{"requests":%d,"seconds":%f,"bytes":%d,"p50_us":%d,"p99_us":%d,'
    .. '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\n'
  io.write(line:format(
    summary.requests, summary.duration / 1e6, summary.bytes,
    latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout
  ))
end
