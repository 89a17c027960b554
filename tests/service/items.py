"""A service whose routes take parameters from everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from penstock import App, Cookie, Header, Query

app = App("items", docs=True)


class Item(BaseModel):
    name: str
    price: float = 1.0


@app.get("/items/{id:int}", examples=[({"id": 5, "limit": 3, "tag": ["a"]}, [5, 3, ["a"]])])
def item(id: int, limit: Annotated[int, Query(ge=1)] = 10, tag: list[str] = []) -> list[Any]:  # noqa: B006
    return [id, limit, tag]


@app.delete("/items/{id:int}")
def remove(id: int) -> int:
    return -id


@app.put("/items/{id:int}", examples=[({"id": 5, "name": "n", "dry": True}, [5, "n", 1.0, True])])
def put(id: int, item: Item, dry: Annotated[bool, Query()] = False) -> list[Any]:
    return [id, item.name, item.price, dry]


@app.patch("/items/{id:int}")
async def patch(id: int, name: str) -> list[Any]:
    return [id, name]


@app.get("/items/latest")
def latest() -> str:
    return "latest"


@app.get("/items/{name}")
def named(name: str) -> str:
    return name


@app.get("/files/{path:path}")
def file(path: str) -> str:
    return path


@app.get("/caller")
def caller(
    user_agent: Annotated[str, Header()],
    token: Annotated[list[int], Header(alias="X-Token")],
    session: Annotated[str, Cookie()] = "none",
) -> list[Any]:
    return [user_agent, token, session]


@app.get("/sum/{x}", batch=8)
def total(x: list[float], y: list[float], ten: list[bool] = [False]) -> list[float]:  # noqa: B006
    return [a + b + 10 * c for a, b, c in zip(x, y, ten, strict=True)]


@app.get("/class/{x:int}", executor="process", workers=1)
class Counted:
    def load(self) -> None:
        self.by = 3

    def preprocess(self, x: int, plus: int = 0) -> int:
        return x + plus

    def inference(self, x):  # type: ignore[no-untyped-def]
        return x * self.by

    def postprocess(self, x: Any) -> int:
        return int(x)


if __name__ == "__main__":
    app.run()
