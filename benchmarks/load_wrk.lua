-- wrk -s load_wrk.lua URL -- BODIES HEADS KIND [BEARER]: POST the contents of files, separated by commas, in turn, with the
-- fields of a real client, and print the counts as one line of JSON. KIND: the bodies' media type. HEADS: "same" or
-- "different" trace ids, request ids and time limits in all requests. BEARER: a key or token, sent with each.

local heads, start
local rest, whole, turn = {}, {}, 0

function init(arguments)
  heads = arguments[2]
  wrk.method = "POST"
  wrk.headers["Content-Type"] = arguments[3]
  wrk.headers["User-Agent"] = "python-httpx/0.28.1"
  wrk.headers["Accept"] = "*/*"
  if arguments[4] then wrk.headers["Authorization"] = "Bearer " .. arguments[4] end
  for path in arguments[1]:gmatch("[^,]+") do
    local file = assert(io.open(path, "rb"))
    wrk.body = file:read("*a")
    file:close()
    local plain = wrk.format()
    local line = plain:find("\r\n", 1, true)
    start = plain:sub(1, line + 1)
    rest[#rest + 1] = plain:sub(line + 2)
    whole[#whole + 1] = fresh(#rest)
  end
end

function fresh(number)
  local r, most = math.random, 2147483647
  return start .. string.format(
    "traceparent: 00-%08x%08x%08x%08x-%08x%08x-01\r\n"
      .. "x-request-id: %08x%08x%08x%08x\r\n"
      .. "penstock-timeout: %d.%06d\r\n",
    r(most), r(most), r(most), r(most), r(most), r(most),
    r(most), r(most), r(most), r(most), r(20, 29), r(0, 999999)
  ) .. rest[number]
end

function request()
  turn = turn % #rest + 1
  if heads == "different" then return fresh(turn) end
  return whole[turn]
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
