"""For every test: SIGINT and SIGQUIT end programs, however the test run was started."""

import signal

# A shell starts a background job with these two signals ignored, which child processes inherit. The
# tests' services must receive them.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL,
        )
