"""One model that makes texts step by step, served with seats and with fixed batches.

A step of the model takes 5 ms and 100 us for each text, as on a device that runs beside Python; the
texts of a fixed batch are done when the longest is.
"""

import time
from dataclasses import dataclass

from penstock import App, Done

app = App("seats against batches")
SIZE = 16


def run_model(texts: int) -> None:
    time.sleep(0.005 + 0.0001 * texts)


@dataclass
class State:
    left: int


@app.post("/seats", seats=SIZE)
class Seated:
    def join(self, length: int) -> State:
        return State(length)

    def step(self, running: list[State]) -> list[str | Done]:
        run_model(len(running))
        results: list[str | Done] = []
        for state in running:
            state.left -= 1
            results.append("token" if state.left else Done("token"))
        return results


@app.post("/batches", batch=SIZE)
def batches(length: list[int]) -> list[list[str]]:
    for _ in range(max(length)):
        run_model(len(length))
    return [["token"] * each for each in length]


if __name__ == "__main__":
    app.run()
