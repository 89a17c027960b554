"""A class with seats, as a service.

Environment: ``EXECUTOR`` is that of the class. It writes into ``FOLDER``: a line for each step with
the keys of the running requests, and one for each that joins or leaves; a FIFO there, opened for
writing, lets the step of a request of this key go on.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from penstock import App, Done, HttpError, op

app = App("seats")
folder = Path(os.environ["FOLDER"])
executor = os.environ["EXECUTOR"]


@dataclass
class State:
    key: str
    upto: int
    fault: str
    n: int = 0


@app.post("/count", seats=16, executor=executor)
class Count:
    """Counts for up to 16 callers at once."""

    def load(self) -> None:
        self.log = (folder / "log").open("a", buffering=1)

    def join(self, key: str, upto: int = 3, fault: str = "") -> State:
        if fault == "join":
            raise HttpError(404, f"there is no {key}")
        if fault == "dies in join":
            os._exit(3)
        self.log.write(f"join {key}\n")
        return State(key, upto, fault)

    def step(self, running: list[State]) -> list[str | Done | Exception | None]:
        self.log.write(f"step {' '.join(each.key for each in running)}\n")
        time.sleep(0.001)
        results: list[str | Done | Exception | None] = []
        for each in running:
            each.n += 1
            if each.fault == "gate" and each.n == 2:
                (folder / each.key).read_bytes()
            if each.n <= 1 or not each.fault:
                text = f"é{each.n}" + "x" * 1000 * (each.upto > 1000)
                results.append(Done(text) if each.n == each.upto else text)
            elif each.fault == "raises":
                raise ValueError("it cannot")
            elif each.fault == "error":
                results.append(HttpError(418, "a teapot"))
            elif each.fault == "type":
                results.append(7)  # type: ignore[arg-type]
            elif each.fault == "dies":
                os._exit(3)
            elif each.fault == "number":
                return results
            else:
                results.append(None if each.n < each.upto else Done())
        return results

    def leave(self, state: State) -> None:
        self.log.write(f"leave {state.key}\n")


@op()
def clean(request: dict[str, str]) -> dict[str, str]:
    return {"word": request["word"].strip()}


@op(clean, seats=4, executor=executor)
class Letters:
    """The last op of a graph."""

    def join(self, cleaned: dict[str, str]) -> list[str]:
        return [*cleaned["word"]]

    def step(self, running: list[list[str]]) -> list[dict[str, str] | Done]:
        return [{"letter": each.pop(0)} if each else Done() for each in running]


app.graph("/letters", Letters)

if __name__ == "__main__":
    app.run()
