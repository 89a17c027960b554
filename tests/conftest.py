"""What holds for every test: signals end programs, however the test run was started."""

import signal

# A shell starts a background job with these two ignored, and programs hand that on to the programs
# that they start. The services of the tests must be able to get them.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL,
        )
